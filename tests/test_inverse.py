"""FedPM's bias correction, right and as printed."""

import math

import numpy as np
import pytest
from figure5 import printed_mean
from scipy.stats import norm

from fedbench.privacy.amplification import inverse_marginal, marginal


@pytest.mark.parametrize("c", [1e-6, 0.05, 0.2, 0.45])
@pytest.mark.parametrize("sigma", [0.0, 1e-9, 1e-4, 0.01, 0.1, 0.5, 1.0, 30.0, 1e4])
def test_the_inverse_takes_the_marginal_back(sigma: float, c: float) -> None:
    draw = np.random.Generator(np.random.PCG64(4))
    theta = np.concatenate([[c, 0.5, 1 - c], c + (1 - 2 * c) * draw.random(3000)])
    theta = np.concatenate([theta, np.minimum(c + sigma * draw.random(1000), 1 - c)])
    back = inverse_marginal(marginal(theta, sigma, c), sigma, c)
    flat = max(sigma, 1) / (1 - 2 * c)  # 1/slope, up to a factor of 3
    np.testing.assert_allclose(back, theta, rtol=0, atol=1e-8 if sigma <= 1 else 1e-15 * flat)


def test_the_inverse_clips_what_few_masks_can_say_and_keeps_the_shape() -> None:
    p = np.array([[0.0, 0.5], [1.0, 0.3]])
    back = inverse_marginal(p, 0.5, 0.2)
    assert back.shape == (2, 2)
    assert back[0].tolist() == [0.2, 0.5]
    assert back[1, 0] == 0.8
    assert 0.2 <= back[1, 1] < 0.3
    assert (np.diff(inverse_marginal(np.linspace(0, 1, 999), 0.5, 0.2)) >= 0).all()
    assert inverse_marginal(0.3, 0.0, 0.2) == pytest.approx(0.3)


def test_the_inverse_of_a_mean_is_exact_only_if_clients_agree() -> None:
    """Jensen: 0.25 and 0.75 are symmetric, 0.2 and 0.6 are not."""
    for thetas, right in (((0.25, 0.75), True), ((0.2, 0.6), False), ((0.6, 0.6), True)):
        mean = marginal(np.array(thetas), 0.3, 0.2).mean()
        error = abs(inverse_marginal(mean, 0.3, 0.2) - np.mean(thetas))
        assert (error < 1e-9) == right
        assert error < 0.02


def test_e2_the_printed_mean_leaves_the_clip() -> None:
    assert printed_mean(0.25, 2.0, 0.2) == pytest.approx(0.914, abs=5e-4)
    assert marginal(0.25, 2.0, 0.2) == pytest.approx(0.470, abs=5e-4)
    theta, sigma, c = np.linspace(0.2, 0.8, 13), 0.7, 0.2
    low, high = c - theta, 1 - c - theta
    cdf = norm(scale=sigma).cdf
    bell = sigma / math.sqrt(2 * math.pi) * np.exp(-(low**2) / (2 * sigma**2))
    rest = 1 - c - high * cdf(high) + low * cdf(low)
    np.testing.assert_allclose(
        printed_mean(theta, sigma, c), rest - bell * (np.exp(-2 * low - 1) - 1), rtol=1e-12
    )
    exponent = -(1 - 2 * c) * (1 - 2 * theta) / (2 * sigma**2)
    np.testing.assert_allclose(
        marginal(theta, sigma, c), rest - bell * np.expm1(exponent), rtol=1e-12
    )
    np.testing.assert_allclose(printed_mean(theta, 0.0, c), theta)
