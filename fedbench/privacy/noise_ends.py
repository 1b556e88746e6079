"""Ends of computed noise, beyond which an epsilon of ideal noise is not that of the numbers drawn.

A number of ``b`` random bits has no outcome rarer than ``2**-b``. Where neighbours are ``r``
standard deviations apart, noise that ends at ``e`` of them shows with a chance of ``Phi(r - e)``
what the other neighbour never shows, and no epsilon covers that: it adds to delta. (Over several
coordinates the chances add up to the most if one of them holds the whole distance, but for
``2**-116`` each.)
"""

import math

from scipy.special import ndtr

from fedbench.api import Adjacency, DpEvent
from fedbench.privacy import events

GAUSSIAN_END = 12.4  # of `Key.gaussian`, in standard deviations
SKELLAM_END = 9.0  # of a share of Skellam noise: what is rarer than 2**-63 is not drawn
SURE_SIGN = 11.0  # distance of a number from 0 above which noise flips its sign too seldom
IDEAL_NOISE = (
    "for ideal noise: these neighbours are further apart than noise of finitely many bits reaches"
)


def beyond(event: DpEvent, adjacency: Adjacency, rounds: int, times: int, honest: int) -> float:
    """Bound the chance of a number in a run that its neighbour never shows.

    ``times`` are the rounds of the client that is priced, of all ``rounds``, and ``honest`` the
    shares of noise that are seen in one sum.
    """
    norms = 2 if adjacency == "replace-one" else 1
    if isinstance(event, events.GaussianSum):
        return rounds * float(ndtr(norms / event.z - GAUSSIAN_END))
    if isinstance(event, events.GaussianGradients):
        return times * event.steps * float(ndtr(norms / event.z - GAUSSIAN_END))
    if isinstance(event, events.NoisySigns):
        return float(1 / event.z > SURE_SIGN)
    if isinstance(event, events.SkellamShare) and event.variance > 0:
        apart = norms * event.norm / math.sqrt(honest * event.variance)
        return times * float(ndtr(apart - math.sqrt(honest) * SKELLAM_END))
    return 0.0
