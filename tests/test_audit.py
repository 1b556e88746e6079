"""Audits of one mechanism through its own code: honest ones hold, sabotaged ones are caught."""

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fedbench.api import Adjacency, DpEvent, Mechanism, Release
from fedbench.audits.bounds import AuditFinding
from fedbench.audits.laws import Bernoullis, Gaussians
from fedbench.audits.pairs import NeighbourPair, worst_pair
from fedbench.audits.releases import ReleaseBench, audit, one_by_one, scores, together
from fedbench.core import registry
from fedbench.core.errors import ConfigError, NoTheorem
from fedbench.core.rng import Key
from fedbench.privacy.amplification import marginal
from fedbench.privacy.events import FlippedBits, GaussianSum
from fedbench.privacy.mechanisms.dp_fedavg import DPFedAvg
from fedbench.privacy.mechanisms.dp_sgd import DPSGD
from fedbench.privacy.mechanisms.mask_gaussian import MaskGaussian, MaskSampling, SampledMasks
from fedbench.privacy.mechanisms.noisy_sign import NoisySign
from fedbench.privacy.mechanisms.randomized_response import FlipBits
from fedbench_defenses.mean import Mean

HONEST: list[Mechanism] = [
    *[MaskGaussian(sigma=0.5), MaskGaussian(sigma=0.2, clip=0.1)],
    *[MaskSampling(), MaskSampling(clip=0.2), FlipBits(), FlipBits(form="affine")],
    *[NoisySign(), DPFedAvg(), DPSGD(clip=0.3)],
]
SAMPLINGS: list[tuple[Any, Adjacency]]
SAMPLINGS = [("fixed", "replace-one"), ("fixed", "zero-out")]
SAMPLINGS += [("poisson", "add-remove"), ("poisson", "zero-out")]


def bench(mechanism: Mechanism, protocol: str | None = None, d: int = 5) -> ReleaseBench:
    names = {SampledMasks: "fedpm", FlipBits: "fedpm", NoisySign: "signsgd", Mechanism: "fedavg"}
    fitting = (name for kind, name in names.items() if isinstance(mechanism, kind))
    return ReleaseBench(mechanism, registry.load("protocol", protocol or next(fitting)), Mean(), d)


def pair_of(mechanism: Mechanism, adjacency: Adjacency, d: int = 5) -> NeighbourPair:
    event = mechanism.event(Release(d, 1, 1, 1, 10, 10))
    assert event is not None
    return worst_pair(event, mechanism, bench(mechanism).protocol.space, d, adjacency, 1e-5)


def found(mechanism: Mechanism, releases: int = 20_000, **changes: Any) -> AuditFinding:
    return audit(bench(mechanism), 1e-5, 0.95, releases, Key(1), **changes)


@pytest.mark.slow
def test_the_sandwich_audit_exact_claimed_paper() -> None:
    one = found(MaskGaussian(c=0.2, sigma=0.5), 200_000)
    assert one.exact == pytest.approx(2.630, abs=1e-3)  # Theorem A
    assert one.claimed == pytest.approx(one.exact, abs=1e-9)
    assert 2.45 < one.epsilon <= one.claimed + 1e-9
    assert one.paper == pytest.approx(6.93, abs=0.01)


@pytest.mark.parametrize(
    "mechanism",
    [pytest.param(x, marks=[pytest.mark.slow] * isinstance(x, DPFedAvg)) for x in HONEST],
    ids=repr,
)
def test_honest_mechanisms_hold_and_no_pair_costs_more_than_is_claimed(
    mechanism: Mechanism,
) -> None:
    priced = 0
    for sampling, adjacency in SAMPLINGS:
        try:
            one = found(mechanism, 4000, sampling=sampling, adjacency=adjacency)
        except NoTheorem:
            continue
        priced += 1
        assert one.adjacency == adjacency
        assert one.exact is not None
        assert one.epsilon <= one.exact <= one.claimed + 1e-6
        assert not one.broken
    assert priced >= 2


@pytest.mark.parametrize("mechanism", HONEST, ids=repr)
def test_releases_at_once_are_the_same_numbers_as_one_by_one(mechanism: Mechanism) -> None:
    pair = pair_of(mechanism, "replace-one")
    seeds = Key(3).bits(40)
    release = bench(mechanism).release(pair, pair.second)
    fast, slow = together(release, seeds, 16), one_by_one(release, seeds)
    torch.testing.assert_close(fast, slow)
    assert len(set(fast.flatten().tolist())) > 1


@pytest.mark.parametrize("mechanism", HONEST[:7], ids=repr)
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_bits_that_come_through_the_real_code_have_the_law_of_theory(
    mechanism: Mechanism, adjacency: Adjacency
) -> None:
    pair = pair_of(mechanism, adjacency)
    count = 20_000
    assert isinstance(pair.law, Bernoullis)
    k = pair.law.k
    assert int((pair.direction != 0).sum()) == k
    for name, given, p in (("a", pair.first, pair.law.p), ("b", pair.second, pair.law.q)):
        drawn = bench(mechanism).releases(pair, given, count, Key(0).fold(name)) * k**0.5 / k
        error = (p * (1 - p) / (count * k)) ** 0.5
        assert float(drawn.mean()) == pytest.approx(p, abs=4.5 * error)


def test_pairs_differ_as_the_adjacency_allows_and_in_a_chunk_where_b3_says_so() -> None:
    for mechanism in HONEST:
        pair = pair_of(mechanism, "zero-out")
        inputs = [given for given in (pair.first, pair.second) if given is not None]
        assert any(torch.equal(given, pair.reference) for given in inputs)
        if isinstance(mechanism, DPFedAvg | DPSGD):
            pair = pair_of(mechanism, "add-remove")
            assert (pair.first is None) != (pair.second is None)
    # sampling alone at a small radius: of 64 probabilities a few near c tell more than all a little
    pair = pair_of(MaskSampling(c=0.05, clip=0.06), "replace-one", d=64)
    assert isinstance(pair.law, Bernoullis)
    assert pair.law.k < 64
    assert pair.law.q == pytest.approx(0.05)
    even = Bernoullis(64, 0.05 + 0.12 / 8, 0.05).epsilon(1e-5)
    assert pair.law.epsilon(1e-5) > 1.1 * even


def debias_too_early(self: MaskGaussian, *hook: Any) -> Any:
    """What the server does to the mean of masks, done by the client before it samples one."""
    noisy, state = MaskGaussian.on_updates(self, *hook)
    least = float(marginal(self.c, self.sigma, self.c))
    stretched = 0.5 + (noisy - 0.5) * (0.5 - self.c) / (0.5 - least)  # nearly the inverse
    return stretched.clamp(0, 1), state


def noise_without_clip(self: NoisySign, x: Tensor, _: Tensor, keys: Any, state: Any) -> Any:
    noise = torch.stack([key.gaussian(x.shape[1]) for key in keys])
    return x + self.z * self.clip * noise.to(x), state


def acting_as(other: Mechanism, hook: str) -> Any:
    """A method that does what that of another mechanism does."""
    return lambda self, *given: getattr(other, hook)(*given)


MASKS = MaskGaussian(sigma=0.5)
# what a mechanism claims, and the method that does something else
SABOTAGED: dict[str, tuple[Mechanism, str, Any]] = {
    "half the noise": (MASKS, "on_updates", acting_as(MaskGaussian(sigma=0.25), "on_updates")),
    "no first clip": (MASKS, "box", lambda self, updates, reference: updates),
    "debiased too early": (MASKS, "on_updates", debias_too_early),
    "a key that was not folded": (
        *(MASKS, "on_updates"),
        lambda self, x, at, keys, state: MASKS.on_updates(x, at, [Key(7) for _ in keys], state),
    ),
    "few flips": (FlipBits(), "on_payload", acting_as(FlipBits(p=0.125), "on_payload")),
    "sign without clip": (NoisySign(), "on_updates", noise_without_clip),
    "half the central noise": (
        DPFedAvg(z=2.0),
        "on_aggregate",
        acting_as(DPFedAvg(), "on_aggregate"),
    ),
    "central without clip": (DPFedAvg(), "on_updates", lambda self, x, at, keys, state: (x, state)),
    "half the noise of gradients": (DPSGD(z=2.0), "wrap_grad", acting_as(DPSGD(), "wrap_grad")),
    "clip at ten norms": (DPSGD(), "wrap_grad", acting_as(DPSGD(clip=10.0, z=0.1), "wrap_grad")),
}


@pytest.mark.parametrize("what", SABOTAGED)
def test_a_sabotaged_mechanism_is_caught(what: str) -> None:
    honest, hook, method = SABOTAGED[what]
    mechanism = type("Sabotaged", (type(honest),), {hook: method})(**vars(honest))
    central = isinstance(mechanism, DPFedAvg)
    one = found(mechanism, 40_000, sampling="poisson" if central else "fixed")
    assert one.broken, one
    assert one.epsilon > one.claimed * 1.05


def test_an_adaptive_clip_is_audited_one_by_one_with_what_it_shows() -> None:
    adaptive = DPFedAvg(adaptive=True, bit_noise=0.51)
    here = bench(adaptive)
    pair = pair_of(adaptive, "add-remove")
    shown = here.releases(pair, pair.second, 200, Key(0))
    assert shown.shape == (200, 2)
    assert len(set(shown[:, 1].tolist())) > 100
    gone = here.releases(pair, pair.first, 200, Key(0))
    # almost all that can be learned is in the bits: half a bit, under noise of .51
    a, b = scores(gone, shown)
    weights = np.linalg.lstsq(gone.numpy(), a, rcond=None)[0]
    spread = shown.numpy().std(axis=0) * weights
    assert abs(spread[1]) > 2 * abs(spread[0])
    assert a.mean() > b.mean()


def test_what_nobody_has_worked_out_is_refused() -> None:
    with pytest.raises(ConfigError, match="DpEvent has no audit"):
        worst_pair(DpEvent(), Mechanism(), "weights", 5, "zero-out", 1e-5)
    with pytest.raises(ConfigError, match="claims nothing"):
        found(Mechanism())
    with pytest.raises(ConfigError, match="--releases must"):
        found(FlipBits(), 99)
    with pytest.raises(ConfigError, match="masks, signs or floats, got Rankings"):
        audit(bench(NoisySign(), "fsl"), 1e-5, 0.95, 100, Key(0))


def test_local_noise_on_floats_is_audited_and_half_of_it_is_caught(tmp_path: Path) -> None:
    page = (Path(__file__).parents[1] / "docs" / "how-to" / "own-mechanism.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S)
    file = tmp_path / "own_mechanism.py"
    file.write_text(blocks[0] + blocks[-1])  # the mechanism, and its pair
    laplace = runpy.run_path(str(file))["LocalLaplace"]

    def audited(mechanism: Mechanism) -> AuditFinding:
        return audit(bench(mechanism, "fedavg"), 1e-5, 0.95, 20_000, Key(1))

    whole = audited(laplace(z=1.0))
    assert whole.claimed == pytest.approx(2.0, abs=1e-4)  # 2 / z
    assert not whole.broken
    assert whole.epsilon > 1.8  # a tail beyond the clip has a likelihood ratio of e^2
    half = type("Half", (laplace,), {"event": lambda self, release: laplace(z=2.0).event(release)})
    assert audited(half(z=1.0)).broken


def test_pairs_of_a_sum_are_as_far_apart_as_their_adjacency_allows() -> None:
    event = GaussianSum(z=2.0)
    for adaptive, adjacency, law in (
        (False, "replace-one", Gaussians(2 / 2.0)),  # the clip and its opposite
        (True, "replace-one", Gaussians(2 / 2.0)),  # both count alike
        (False, "add-remove", Gaussians(1 / 2.0)),
        (False, "zero-out", Gaussians(1 / 2.0)),
        (True, "zero-out", None),  # an adaptive clip counts who is below it, too
    ):
        chosen: Any = adjacency
        mechanism = DPFedAvg(z=2.0, adaptive=adaptive, bit_noise=4.0)
        assert worst_pair(event, mechanism, "weights", 5, chosen, 1e-5).law == law


def test_signs_that_are_flipped_are_compared_with_those_of_nothing_or_of_the_opposite() -> None:
    event = FlippedBits(d=3, p=0.25)
    for adjacency, other in (("zero-out", 0.0), ("replace-one", 1.0)):
        chosen: Any = adjacency
        pair = worst_pair(event, FlipBits(), "weights", 3, chosen, 1e-5)
        assert pair.first is not None
        assert pair.second is not None
        assert (pair.first.tolist(), pair.second.tolist()) == ([-1.0] * 3, [other] * 3)
        assert pair.law == Bernoullis(3, 0.75, 0.25)


def test_channels_are_weighted_by_the_scores_that_choose_the_test_and_no_others() -> None:
    first = Key(0).normal(400, 2) + torch.tensor([1.0, 0.5])
    second = Key(1).normal(400, 2)
    before = scores(first, second)
    for x in (first, second):
        x[100:, 1] += 7.0  # of the quarter that chooses, nothing has changed
    after = scores(first, second)
    for old, new in zip(before, after, strict=True):
        assert np.array_equal(old[:100], new[:100])
        assert not np.array_equal(old[100:], new[100:])
