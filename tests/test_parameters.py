"""Parameters and numbers without a meaning are refused in one line that names them."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from figure5 import gdp_mu, rdp_to_dp_mironov

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.privacy.amplification import (
    envelope,
    inverse_marginal,
    marginal,
    marginal_slope,
    mask_rdp,
)
from fedbench.privacy.conversion import gdp_delta, gdp_epsilon, gdp_rounds, rdp_rounds, rdp_to_dp
from fedbench.privacy.noisy_sign import sign_rdp
from fedbench.privacy.randomized_response import RandomizedResponse
from fedbench.privacy.sampling import fixed_size, fixed_size_rdp, poisson_epsilons, poisson_rdp
from fedbench.privacy.sums import sum_rdp

NAN, INF = math.nan, math.inf
NO_SCALE = (0.0, -0.01, 1e-8, NAN, INF, 1e39)

REFUSED: list[tuple[str, str, str, tuple[Any, ...], str]] = [
    # kind and name of a plug-in, its field, values that it must not have, how the rule begins
    ("mechanism", "dp-fedavg", "clip", (-1,), ""),
    ("mechanism", "dp-fedavg", "quantile", (1,), ""),
    ("mechanism", "dp-fedavg", "z", (0,), ""),
    ("mechanism", "dp-sgd", "clip", (0,), ""),
    ("protocol", "drive", "block", (0,), "a power of two"),
    ("protocol", "eden", "bits", (0, 9), "in"),
    ("protocol", "eden", "block", (100,), "a power of two"),
    ("protocol", "feddrop", "conv", (1.0, -0.1), ""),
    ("protocol", "feddrop", "dense", (1.0,), ""),
    ("protocol", "fedlaplace", "lam", (-1.0,), ""),
    ("protocol", "fedmrn", "magnitude", NO_SCALE, "in (1e-8, 1e30)"),
    ("protocol", "fedmrns", "magnitude", NO_SCALE, "in (1e-8, 1e30)"),
    ("protocol", "fedmask", "lr", (0.0,), "> 0"),
    ("protocol", "fedmog", "k", (0,), ""),
    ("protocol", "fedmog", "lam", (0.0,), ""),
    ("protocol", "fedpaq", "levels", (0,), ""),
    ("protocol", "fedpm", "clip", (1e-9,), "in [1e-6, 0.5)"),
    ("protocol", "fedpm", "prior", (0.5, INF), "in [1, 1e6]"),
    ("protocol", "fedpm", "reg", (-1.0, NAN), ">= 0"),
    ("protocol", "fedpm", "resets", ("every:0", "3"), "every:k"),
    ("protocol", "fedpm", "threshold", (0.0, 1.0), "in (0, 1)"),
    ("protocol", "fedprox", "lam", (-1.0,), ""),
    ("protocol", "fedsparse", "drift", (-1.0,), ""),
    ("protocol", "fedsparse", "epsilon", (0.0, 1.0), ""),
    ("protocol", "fedsparse", "lambda0", (-1e-9,), ""),
    ("protocol", "fedsparse", "lr", (0.0,), ""),
    ("protocol", "fedsparse", "server_threshold_lr", (0.0,), ""),
    ("protocol", "fedsparse", "temperature", (0.0,), ""),
    ("protocol", "fedsparsify", "final", (1.0, -0.1, NAN), ""),
    ("protocol", "fedsparsify", "frequency", (0,), ""),
    ("protocol", "fedsparsify", "initial", (0.91, -0.1), ""),
    ("protocol", "fedsparsify", "lr", (0.0,), ""),
    ("protocol", "fedsparsify", "start", (0,), ""),
    ("protocol", "fedsparsify", "until", (1, 2**24 + 1), ""),
    ("mechanism", "randomized-response", "p", (0.5,), ""),
    ("protocol", "hidenseek", "keep", (1.5,), "in (0, 1]"),
    ("model", "lenet5", "conv_dropout", (1.0, -0.1), "in [0, 1)"),
    ("mechanism", "mask-gaussian", "c", (0.5,), ""),
    ("mechanism", "mask-gaussian", "sigma", (-1,), ""),
    ("mechanism", "mask-sampling", "c", (0,), ""),
    ("mechanism", "mask-sampling", "clip", (0,), ""),
    ("mechanism", "noisy-sign", "clip", (0,), ""),
    ("mechanism", "noisy-sign", "z", (0,), ""),
    ("protocol", "pbm", "clients", (0,), ">= 1, got 0"),
    ("protocol", "pbm", "lr", (0,), ""),
    ("protocol", "pbm", "m", (0,), ">= 1"),
    ("protocol", "pbm", "m", (2**22,), "< 1677721"),
    ("protocol", "pbm", "sigmas", (0.0,), "in [0.01, 1e6]"),
    ("protocol", "pbm", "theta", (0.5,), "in [0.001, 1/2), got 0.5"),
    ("protocol", "qsgd", "bucket", (-1,), ">= 0, got -1"),
    ("protocol", "qsgd", "levels", (0, 32768), "in [1, 32767], got "),
    ("protocol", "qsgd", "lr", (0,), ""),
    ("protocol", "randk", "k", (0,), "in"),
    ("model", "resnet20", "groups", (0, 3), "a divisor"),
    ("protocol", "skellam", "beta", (1.0,), "in [0, 1)"),
    ("protocol", "skellam", "bits", (25,), "in [2, 24], got 25"),
    ("protocol", "skellam", "bits", (3,), "> 3.66"),  # log2(4 sqrt 10)
    ("protocol", "skellam", "clip", (0.0,), "in [1e-38, 1e38]"),
    ("protocol", "skellam", "z", (-1.0,), "in [0, 1e38]"),
    ("protocol", "stochastic-sign", "beta", (1,), "in"),
    ("protocol", "stochastic-sign", "server_lr", (0,), "> 0"),
    ("protocol", "terngrad", "clip", (-1.0,), ">= 0, got -1.0"),
    ("protocol", "topk-mask", "k", (0.0,), "in (0, 1]"),
]


@pytest.mark.parametrize(
    ("kind", "name", "field", "values", "rule"), REFUSED, ids=lambda x: x if type(x) is str else ""
)
def test_a_parameter_without_a_meaning_is_named_with_its_rule(
    kind: str, name: str, field: str, values: tuple[Any, ...], rule: str
) -> None:
    plugin = registry.plugin(kind, name)
    start = re.escape(f"{plugin.__name__}.{field} must be {rule}")
    for value in values:
        with pytest.raises(ConfigError, match=rf"^{start}[^\n]*$"):
            plugin(**{field: value})


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("mechanism", "randomized-response:form=affine,p=0.1,c=0.2", "must be"),
        ("protocol", "cast:form=fp8", "cast:form=fp8"),
        ("protocol", "drive:scale=best", "drive:scale=best"),
        ("protocol", "eden:bits=0.5,block=32", "EDEN.block must be >= 64 for a fraction of a bit"),
        ("protocol", "fedpm:lr=inf", "fedpm:lr must be a finite number"),
        ("protocol", "fedpm:reg=nan", "FedPM|finite number"),
        ("protocol", "fedsparsify:start=40", "FedSparsify.until must be"),
    ],
)
def test_text_without_a_meaning_is_refused(kind: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        registry.load(kind, text)


def gaussian(a: Any) -> Any:
    return a / 2


@pytest.mark.parametrize(
    ("wrong", "subject"),
    [
        (lambda: envelope([2.0], -1.0, 1.0, 0.2), "squared must"),
        (lambda: fixed_size(0.0, gaussian), "rate must"),
        (lambda: fixed_size(0.5, gaussian, -1.0), "pure must"),
        (lambda: fixed_size(0.5, gaussian, largest=1), "largest must"),
        (lambda: fixed_size_rdp(-1.0, 0.1), "z must"),
        (lambda: fixed_size_rdp(1.0, 2.0), "rate must"),
        (lambda: gdp_delta(1.0, -1.0), "epsilon must"),
        (lambda: gdp_epsilon(-1.0, 0.1), "mu must"),
        (lambda: gdp_mu(1.0, 1.0), "delta must"),
        (lambda: gdp_rounds(1.0, 0), "rounds must"),
        (lambda: inverse_marginal(0.3, -1.0, 0.2), "sigma must"),
        (lambda: inverse_marginal(0.3, 1.0, 0.5), "c must"),
        (lambda: marginal(0.3, -1.0, 0.2), "sigma must"),
        (lambda: marginal(0.3, 1.0, 0.0), "c must"),
        (lambda: marginal(0.3, 1.0, 0.5), "c must"),
        (lambda: marginal(0.3, NAN, 0.2), "sigma must"),
        (lambda: marginal_slope(0.3, INF, 0.2), "sigma must"),
        (lambda: mask_rdp([1.0], 5, 1.0, 0.2), "orders must"),
        (lambda: mask_rdp([2.0], 0, 1.0, 0.2), "d must"),
        (lambda: mask_rdp([2.0], 5, 1.0, 0.2, 0.0), "sensitivity must"),
        (lambda: fixed_size(0.5, lambda a: -a), "rdp_at must"),
        (lambda: fixed_size(0.5, lambda a: a[1:]), "rdp_at must"),
        (lambda: fixed_size(1.1, gaussian), "rate must"),
        (lambda: fixed_size(NAN, gaussian), "rate must"),
        (lambda: poisson_epsilons(1.0, 0.1, 1, 0.0), "delta must"),
        (lambda: poisson_rdp(0.0, 0.1), "z must"),
        (lambda: poisson_rdp(1.0, 0.0), "rate must"),
        (lambda: poisson_rdp(1.0, 0.1, 0), "rounds must"),
        (lambda: poisson_rdp(INF, 0.1), "z must"),
        (lambda: RandomizedResponse(0.2, 0), "n must"),
        (lambda: RandomizedResponse(0.2, 5).delta(-1.0), "epsilon must"),
        (lambda: RandomizedResponse(0.2, 5).epsilon([0.1, 1.0]), "delta must"),
        (lambda: RandomizedResponse(0.6, 5), "p must"),
        (lambda: rdp_rounds([1.0], 0), "rounds must"),
        (lambda: rdp_to_dp([2.0], [1.0], 0.0), "delta must"),
        (lambda: rdp_to_dp_mironov([0.5], [1.0], 0.1), "orders must"),
        (lambda: sign_rdp([1.0], 5, 1.0), "orders must"),
        (lambda: sign_rdp([2.0], 0, 1.0), "d must"),
        (lambda: sign_rdp([2.0], 5, 0.0), "z must"),
        (lambda: sign_rdp([2.0], 5, 1.0, "add-remove"), "adjacency must"),  # type: ignore[arg-type]
        (lambda: sign_rdp([2.0], 5, INF), "z must"),
        (lambda: sum_rdp([1.0], 5, 3, 1.0, 0.2), "orders must"),
        (lambda: sum_rdp([2.0], 0, 3, 1.0, 0.2), "d must"),
        (lambda: sum_rdp([2.0], 5, 0, 1.0, 0.2), "n must"),
        (lambda: sum_rdp([2.0], 5, 3, -1.0, 0.2), "sigma must"),
        (lambda: sum_rdp([2.0], 5, 3, 1.0, 0.2, 0.0), "sensitivity must"),
    ],
)
def test_wrong_numbers_are_refused_by_name(wrong: Callable[[], object], subject: str) -> None:
    with pytest.raises(ConfigError, match=subject):
        wrong()
