"""Parameters and numbers without a meaning are refused in one line that names them."""

import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from figure5 import gdp_mu, rdp_to_dp_mironov

from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.models.models import LeNet5, ResNet20
from fedbench.privacy.amplification import (
    envelope,
    inverse_marginal,
    marginal,
    marginal_slope,
    mask_rdp,
)
from fedbench.privacy.conversion import gdp_delta, gdp_epsilon, gdp_rounds, rdp_rounds, rdp_to_dp
from fedbench.privacy.mechanisms.dp_fedavg import DPFedAvg
from fedbench.privacy.mechanisms.dp_sgd import DPSGD
from fedbench.privacy.mechanisms.mask_gaussian import MaskGaussian, MaskSampling
from fedbench.privacy.mechanisms.noisy_sign import NoisySign
from fedbench.privacy.mechanisms.randomized_response import FlipBits
from fedbench.privacy.noisy_sign import sign_rdp
from fedbench.privacy.randomized_response import RandomizedResponse
from fedbench.privacy.sampling import fixed_size, fixed_size_rdp, poisson_epsilons, poisson_rdp
from fedbench.privacy.sums import sum_rdp
from fedbench.protocols.eden import DRIVE, EDEN
from fedbench.protocols.feddrop import FedDrop
from fedbench.protocols.fedmrn import FedMRN, FedMRNS
from fedbench.protocols.fedpm import FedPM
from fedbench.protocols.fedsparse import FedSparse
from fedbench.protocols.fedsparsify import FedSparsify
from fedbench.protocols.hidenseek import HideNSeek
from fedbench.protocols.priors import FedLaplace, FedMoG, FedProx
from fedbench.protocols.qsgd import QSGD, FedPAQ, TernGrad
from fedbench.protocols.score_training import FedMask, TopKMask
from fedbench.protocols.secure_sums import PBM, Skellam
from fedbench.protocols.signsgd import StochasticSign
from fedbench.protocols.sparse import RandK

NAN, INF = math.nan, math.inf
NO_SCALE = (0.0, -0.01, 1e-8, NAN, INF, 1e39)

REFUSED: list[tuple[type[Any], str, tuple[Any, ...], str]] = [
    # plug-in, field, values that it must not have, how the rule begins
    (DPFedAvg, "clip", (-1,), ""),
    (DPFedAvg, "quantile", (1,), ""),
    (DPFedAvg, "z", (0,), ""),
    (DPSGD, "clip", (0,), ""),
    (DRIVE, "block", (0,), "a power of two"),
    (EDEN, "bits", (0, 9), "in"),
    (EDEN, "block", (100,), "a power of two"),
    (FedDrop, "conv", (1.0, -0.1), ""),
    (FedDrop, "dense", (1.0,), ""),
    (FedLaplace, "lam", (-1.0,), ""),
    (FedMRN, "magnitude", NO_SCALE, "in (1e-8, 1e30)"),
    (FedMRNS, "magnitude", NO_SCALE, "in (1e-8, 1e30)"),
    (FedMask, "lr", (0.0,), "> 0"),
    (FedMoG, "k", (0,), ""),
    (FedMoG, "lam", (0.0,), ""),
    (FedPAQ, "levels", (0,), ""),
    (FedPM, "clip", (1e-9,), "in [1e-6, 0.5)"),
    (FedPM, "prior", (0.5, INF), "in [1, 1e6]"),
    (FedPM, "reg", (-1.0, NAN), ">= 0"),
    (FedPM, "resets", ("every:0", "3"), "every:k"),
    (FedPM, "threshold", (0.0, 1.0), "in (0, 1)"),
    (FedProx, "lam", (-1.0,), ""),
    (FedSparse, "drift", (-1.0,), ""),
    (FedSparse, "epsilon", (0.0, 1.0), ""),
    (FedSparse, "lambda0", (-1e-9,), ""),
    (FedSparse, "lr", (0.0,), ""),
    (FedSparse, "server_threshold_lr", (0.0,), ""),
    (FedSparse, "temperature", (0.0,), ""),
    (FedSparsify, "final", (1.0, -0.1, NAN), ""),
    (FedSparsify, "frequency", (0,), ""),
    (FedSparsify, "initial", (0.91, -0.1), ""),
    (FedSparsify, "lr", (0.0,), ""),
    (FedSparsify, "start", (0,), ""),
    (FedSparsify, "until", (1, 2**24 + 1), ""),
    (FlipBits, "p", (0.5,), ""),
    (HideNSeek, "keep", (1.5,), "in (0, 1]"),
    (LeNet5, "conv_dropout", (1.0, -0.1), "in [0, 1)"),
    (MaskGaussian, "c", (0.5,), ""),
    (MaskGaussian, "sigma", (-1,), ""),
    (MaskSampling, "c", (0,), ""),
    (MaskSampling, "clip", (0,), ""),
    (NoisySign, "clip", (0,), ""),
    (NoisySign, "z", (0,), ""),
    (PBM, "clients", (0,), ">= 1, got 0"),
    (PBM, "lr", (0,), ""),
    (PBM, "m", (0,), ">= 1"),
    (PBM, "m", (2**22,), "< 1677721"),
    (PBM, "sigmas", (0.0,), "in [0.01, 1e6]"),
    (PBM, "theta", (0.5,), "in [0.001, 1/2), got 0.5"),
    (QSGD, "bucket", (-1,), ">= 0, got -1"),
    (QSGD, "levels", (0, 32768), "in [1, 32767], got "),
    (QSGD, "lr", (0,), ""),
    (RandK, "k", (0,), "in"),
    (ResNet20, "groups", (0, 3), "a divisor"),
    (Skellam, "beta", (1.0,), "in [0, 1)"),
    (Skellam, "bits", (25,), "in [2, 24], got 25"),
    (Skellam, "bits", (3,), "> 3.66"),  # log2(4 sqrt 10)
    (Skellam, "clip", (0.0,), "in [1e-38, 1e38]"),
    (Skellam, "z", (-1.0,), "in [0, 1e38]"),
    (StochasticSign, "beta", (1,), "in"),
    (StochasticSign, "server_lr", (0,), "> 0"),
    (TernGrad, "clip", (-1.0,), ">= 0, got -1.0"),
    (TopKMask, "k", (0.0,), "in (0, 1]"),
]


@pytest.mark.parametrize(
    ("plugin", "field", "values", "rule"),
    REFUSED,
    ids=[f"{p.__name__}.{name}" for p, name, *_ in REFUSED],
)
def test_a_parameter_without_a_meaning_is_named_with_its_rule(
    plugin: type[Any], field: str, values: tuple[Any, ...], rule: str
) -> None:
    for value in values:
        start = re.escape(f"{plugin.__name__}.{field} must be {rule}")
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
