"""Numbers of the papers that follow from a formula: sizes of messages, bounds, counts."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fedbench.core import registry
from fedbench.models.network import Network
from fedbench.privacy.amplification import r_alpha
from fedbench.reproduce.sizes import POOLS

MEGABYTE = 2**20  # bytes, as FSL counts (F6)


def computed(name: str, given: Mapping[str, Any]) -> float:
    """Return what the formula of a name gives for its arguments."""
    return float(FORMULAS[name](**given))


def network_of(model: str, dataset: str) -> Network:
    """Return a network with the shapes that it has on a data set, without loading the data."""
    _, _, image, classes = POOLS[dataset]
    network: Network = registry.load("model", model).build(image, classes)
    return network


def weights_by_layer(model: str, dataset: str) -> dict[str, int]:
    """Return the number of weights ``n_l`` of each layer, without biases and normalisation."""
    network = network_of(model, dataset)
    return {name: math.prod(network.shapes[name]) for name in network.weights}


def layer_weights(model: str, dataset: str, layer: str) -> int:
    """Return the number of weights of one layer."""
    return weights_by_layer(model, dataset)[layer]


def fsl_message_megabytes(model: str, dataset: str, protocol: str, way: str) -> float:
    """Size of a client's message in MB of 2**20 bytes, as Table 1 of the FSL paper counts (F6).

    ``way`` is ``upload``, ``download`` or ``both``, their sum.
    """
    layers = list(weights_by_layer(model, dataset).values())
    name, params = registry.split(protocol)
    n = sum(layers)
    floats = 32.0 * n
    ranking = float(sum(size * math.ceil(math.log2(size)) for size in layers))
    bits = {  # up, down
        "fedavg": (floats, floats),
        "fsl": (ranking, ranking),
        "sfsl": (float(params.get("top", 1)) * ranking, ranking),
        "signsgd": (float(n), floats),
        "topk": (float(params.get("k", 1)) * floats + n, floats),
    }
    up, down = bits[name]
    return {"upload": up, "download": down, "both": up + down}[way] / 8 / MEGABYTE


def fsl_improvement(model: str, dataset: str, protocol: str, against: str, way: str) -> float:
    """Return how many times larger a message of ``against`` is than one of ``protocol``."""
    larger = fsl_message_megabytes(model, dataset, against, way)
    return larger / fsl_message_megabytes(model, dataset, protocol, way)


def fsl_saving(model: str, dataset: str, protocol: str, against: str, way: str) -> float:
    """Return the share of the bytes of ``against`` that ``protocol`` saves."""
    return 1 - 1 / fsl_improvement(model, dataset, protocol, against, way)


def expected_malicious(n: int, alpha: float) -> float:
    """Malicious clients of a round of ``n``, on average."""
    return alpha * n


def fsl_vote_threshold(n: int, alpha: float) -> float:
    """Votes for an edge minus votes against it that malicious clients can overturn (F5)."""
    return 2 * alpha * n


def float_bits() -> float:
    """Return the bits of a weight in full precision."""
    return 32.0


def ratio(numerator: float, denominator: float, digits: int) -> float:
    """Return the quotient of two numbers of a paper, rounded as it prints it."""
    return round(numerator / denominator, digits)


def difference(minuend: float, subtrahend: float) -> float:
    """Return the difference of two numbers of a paper."""
    return minuend - subtrahend


def sum_of_differences(ours: Sequence[float], base: Sequence[float]) -> float:
    """Return the sum of ``ours - base`` over the numbers of a paper's table."""
    return sum(x - y for x, y in zip(ours, base, strict=True))


def renyi_cap(d: int, c: float) -> float:
    """Largest Rényi divergence of ``d`` bits with odds in ``[c, 1 - c]``, over all orders (E3)."""
    return d * math.log((1 - c) / c)


def converted_renyi(d: int, c: float, alpha: float, delta: float) -> float:
    """Epsilon of ``d`` such bits at one order: ``d r_alpha(c) + ln(1 / delta) / (alpha - 1)`` (E3).

    References:
        FedPM, https://arxiv.org/abs/2209.15328, Appendix C, Remark C.1.
    """
    return d * float(r_alpha(alpha, c)) + math.log(1 / delta) / (alpha - 1)


FORMULAS: dict[str, Callable[..., float]] = {
    "layer-weights": layer_weights,
    "fsl-message-megabytes": fsl_message_megabytes,
    "fsl-improvement": fsl_improvement,
    "fsl-saving": fsl_saving,
    "expected-malicious": expected_malicious,
    "fsl-vote-threshold": fsl_vote_threshold,
    "float-bits": float_bits,
    "ratio": ratio,
    "difference": difference,
    "sum-of-differences": sum_of_differences,
    "renyi-cap": renyi_cap,
    "converted-renyi": converted_renyi,
}
