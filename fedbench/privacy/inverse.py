"""Back from the mean of masks to a probability: FedPM's bias correction."""

import numpy as np
import numpy.typing as npt

from fedbench.privacy.amplification import check_mask, marginal
from fedbench.privacy.conversion import Floats


def inverse_marginal(p: npt.ArrayLike, sigma: float, c: float) -> Floats:
    """The ``theta`` in ``[c, 1-c]`` of which ``p`` is the `marginal`, any shape.

    ``p`` is clipped to ``[p(c), 1-p(c)]``, where means of few masks fall outside. The answer is
    linear between 90 000 points of the curve, closer by the clip, and good to 1e-8 if ``sigma <=
    1``. Where noise flattens the curve, an error of 1e-16 in ``p`` is ``1e-16/p'``, some ``1e-15
    sigma / (1-2c)``: nothing beside the noise of ``p`` itself, which the inverse enlarges as much.
    Of the mean over clients it is exact only if they all share ``theta``: the marginal is no line,
    so that its mean is not that of the mean (Jensen).

    References:
        Isik et al., "Sparse Random Networks for Communication-Efficient Federated Learning"
        (FedPM), ICLR 2023, https://arxiv.org/abs/2209.15328, Appendix C, bias correction, with the
        expectation after Equation 13 corrected (erratum E2).
    """
    check_mask(sigma, c)
    given = np.asarray(p, dtype=np.float64)
    layer = c + sigma * np.linspace(0.0, 10.0, 20_001)
    theta = np.unique(np.concatenate([np.linspace(c, 0.5, 2**15), layer[layer < 0.5]]))
    below = marginal(theta, sigma, c)
    points = np.concatenate([below, 1 - below[-2::-1]])
    return np.asarray(np.interp(given, points, np.concatenate([theta, 1 - theta[-2::-1]])))
