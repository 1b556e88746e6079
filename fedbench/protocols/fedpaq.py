"""FedPAQ: periodic averaging of quantized updates."""

from dataclasses import dataclass

from fedbench.payload.levels import Norm
from fedbench.protocols.qsgd import QSGD


@dataclass(frozen=True, kw_only=True)
class FedPAQ(QSGD):
    """Clients train locally and send their update in QSGD's levels; the server adds the mean.

    ``x <- x + (1 / r) sum_i Q(x_i - x)`` over the ``r`` clients of a round, which all count the
    same. ``Q`` has one L2 norm for the whole network, so few levels send almost nothing: at most
    ``s (s + sqrt(d))`` coordinates are expected to differ from 0 (with ``s = 10``, the most in the
    paper's experiments, one in a hundred of a million), and the variance is up to ``sqrt(d) / s``
    times the squared norm of the update.

    References:
        Reisizadeh et al., "FedPAQ: A Communication-Efficient Federated Learning Method with
        Periodic Averaging and Quantization", AISTATS 2020, https://arxiv.org/abs/1909.13014,
        Algorithm 1; its quantizer: Alistarh et al., NIPS 2017, https://arxiv.org/abs/1610.02132,
        section 3.1.
    """

    weighted = False

    levels: int = 10
    bucket: int = 0
    norm: Norm = "l2"
