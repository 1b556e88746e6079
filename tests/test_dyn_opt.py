"""DYN-OPT meets its definition for each kind of rule; the published search is what it was."""

import dataclasses
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.adversary.threat_model import attack_view
from fedbench.api import AttackView
from fedbench.core.rng import Key
from fedbench.payload import FloatVectors, Payload, Rankings, SignBits, SparseVectors, ranking
from fedbench.testing import example_context, example_payloads
from fedbench_attacks.order_line import saturating
from fedbench_attacks.search import Scale, best_of_grid
from fedbench_attacks.searched import DynOpt
from fedbench_attacks.squares import Squares
from fedbench_defenses.distances import squared_distances
from fedbench_defenses.mean import Mean
from fedbench_defenses.median import Median, TrimmedMean
from fedbench_defenses.multi_krum import MultiKrum

M = 2


def honest(seed: int = 0, n: int = 9, d: int = 40) -> FloatVectors:
    key = Key(seed)
    return FloatVectors(key.normal(n, d) * (key.fold("scale").uniform(n)[:, None] * 4 + 0.2))


def attacked(
    attack: DynOpt, rule: Any, payload: Payload | None = None
) -> tuple[AttackView, Payload]:
    view = attack_view(attack, example_context(payload or honest(), rule, range(M)))
    sent, _ = attack.craft(view, None)
    assert isinstance(sent, FloatVectors | SignBits | Rankings | SparseVectors)
    return view, sent


def unit(benign: Tensor) -> float:
    """Gamma at which the push along the deviation is as long as the rows, root mean square."""
    return float(benign.norm(dim=1).square().mean().sqrt() / benign.std(dim=0).norm())


def trial(attack: DynOpt, rule: Any, gamma: float, seed: int = 0) -> Tensor:
    """All ``n`` rows when the colluders use ``gamma``."""
    x = honest(seed).x
    benign = x[M:]
    push = -benign.std(dim=0)
    return torch.cat([(benign.mean(dim=0) + gamma * push).expand(M, -1), benign])


@pytest.mark.parametrize("rule", [MultiKrum(f=2), MultiKrum(f=2, m=1), MultiKrum(f=2, m=4)])
@pytest.mark.parametrize("seed", range(3))
def test_a_selecting_rule_accepts_gamma_and_not_a_thousandth_more(
    rule: MultiKrum, seed: int
) -> None:
    view, _ = attacked(DynOpt(selected="all"), rule, honest(seed))
    gamma = view.notes["gamma"]
    assert isinstance(gamma, float)
    if view.notes["ended"] == "never":
        assert rule.m == 1  # not even the mean is what Krum picks here: one row is much closer
        assert not bool(rule.select(squared_distances(trial(DynOpt(), rule, 0.0, seed)))[:M].any())
        return
    assert view.notes["ended"] == "converged"
    taken = min(M, rule.m or M)  # two equal rows cannot both be the one that Krum picks
    accepted = rule.select(squared_distances(trial(DynOpt(), rule, gamma, seed)))
    beyond = rule.select(squared_distances(trial(DynOpt(), rule, 1.0011 * gamma, seed)))
    assert accepted is not None
    assert beyond is not None
    assert int(accepted[:M].sum()) == taken
    assert int(beyond[:M].sum()) < taken


@pytest.mark.parametrize("rule", [TrimmedMean(f=2), TrimmedMean(f=3), Median()])
@pytest.mark.parametrize("seed", range(3))
def test_a_saturated_rule_is_at_its_limit_at_no_smaller_gamma(
    rule: TrimmedMean | Median, seed: int
) -> None:
    view, _ = attacked(DynOpt(), rule, honest(seed))
    gamma = view.notes["gamma"]
    assert isinstance(gamma, float)
    assert view.notes["search"] == "saturating"
    mean = honest(seed).x[M:].mean(dim=0)

    def damage(strength: float) -> float:
        x = FloatVectors(trial(DynOpt(), rule, strength, seed).double().float())
        out, _ = rule.aggregate(x, None, view)  # type: ignore[arg-type]
        return float(torch.linalg.vector_norm(out - mean))

    limit = damage(1e4)
    assert damage(gamma) >= (1 - 2e-6) * limit
    assert damage(0.99 * gamma) < (1 - 1e-6) * limit


def test_where_the_mean_itself_is_beyond_the_rows_that_count_nothing_is_left_to_search() -> None:
    # Eight rows, mean 2.5; two colluders at 2.5 already make the median of ten the least it can be,
    # and going down from there changes nothing.
    benign = torch.tensor([[-50.0], *([10.0],) * 7])
    weights = Median().order_weights(10)
    search = saturating(weights, benign, benign.mean(dim=0), torch.tensor([-1.0]), 2, 1e5)
    assert search.gamma == 0.0
    assert search.ended == "converged"
    assert len(search.trace) == 1


@pytest.mark.parametrize("rule", [Mean(), TrimmedMean(f=1), MultiKrum(f=0, m=9)])
def test_against_an_unbounded_rule_gamma_is_the_bound_without_a_question(rule: Any) -> None:
    # A trimmed mean that is prepared for one of two malicious rows is as unbounded as the mean; a
    # Multi-Krum that selects everyone accepts everything.
    view, sent = attacked(DynOpt(bound=1e3), rule)
    gamma = view.notes["gamma"]
    assert gamma == pytest.approx(1e3 * unit(honest().x[M:]))
    assert isinstance(gamma, float)
    assert view.notes["ended"] == "bound"
    assert view.defense is not None
    assert isinstance(rule, MultiKrum) or view.defense.queries == 0
    torch.testing.assert_close(sent.values(), trial(DynOpt(), rule, gamma)[:M])


def test_sparse_vectors_have_no_limit_either_and_the_bound_is_the_bound() -> None:
    x = honest().x
    blank = SparseVectors(
        torch.zeros(9, 8, dtype=torch.int64), torch.zeros(9, 8), torch.zeros(9, 0), 40
    )
    sparse = blank.nearest(x)
    view, _ = attacked(DynOpt(bound=50.0), Mean(), sparse)
    assert view.notes["gamma"] == pytest.approx(50.0 * unit(sparse.values()[M:]))
    assert view.notes["search"] == "unbounded"
    assert view.defense is not None
    assert view.defense.queries == 0


@pytest.mark.parametrize("rule", [Mean(), MultiKrum(f=1, m=1), TrimmedMean(f=2), Median()])
def test_with_no_honest_row_in_the_round_nothing_has_to_be_accepted(rule: Any) -> None:
    context = example_context(honest(n=5), rule, range(5))
    view = attack_view(DynOpt(bound=50.0), context)
    DynOpt(bound=50.0).craft(view, None)
    assert view.notes["gamma"] == pytest.approx(50.0 * unit(honest(n=5).x))
    assert view.notes["ended"] == "bound"
    assert view.notes["benign"] == 0


@pytest.mark.parametrize("direction", ["std", "sign", "unit"])
def test_the_direction_is_the_published_one(direction: Any) -> None:
    _, sent = attacked(DynOpt(direction=direction, bound=2.0), Mean())
    benign = honest().x[M:]
    mean = benign.mean(dim=0)
    push = {"std": benign.std(dim=0), "sign": mean.sign(), "unit": mean / mean.norm()}[direction]
    gamma = 2 * benign.norm(dim=1).square().mean().sqrt() / push.norm()  # twice as long as they are
    torch.testing.assert_close(sent.values(), (mean - gamma * push).expand(M, -1))


def test_one_benign_row_has_no_deviation_and_the_fall_back_is_recorded() -> None:
    view, sent = attacked(DynOpt(bound=2.0), Mean(), FloatVectors(honest().x[: M + 1]))
    assert view.notes["direction"] == "sign"
    row = honest().x[M]
    gamma = 2 * row.norm() / 40**0.5
    torch.testing.assert_close(sent.values(), (row - gamma * row.sign()).expand(M, -1))


def test_the_published_search_returns_its_start_where_damage_is_flat() -> None:
    # A5 and D19: what the literature calls DYN-OPT on trimmed mean is mean - 5 std.
    view, _ = attacked(DynOpt(search="published", start=5.0), TrimmedMean(f=2))
    assert view.notes["gamma"] == 5.0
    # It can reach no gamma from twice its start on; the exact search finds the supremum.
    short = attacked(DynOpt(search="published", start=0.05), MultiKrum(f=2))[0].notes["gamma"]
    exact = attacked(DynOpt(selected="all"), MultiKrum(f=2))[0].notes["gamma"]
    assert isinstance(short, float)
    assert isinstance(exact, float)
    assert short < 0.1 < exact


def test_squares_are_the_distances_of_the_rows_that_would_be_sent() -> None:
    benign = honest().x[M:]
    mean, push = benign.mean(dim=0), -benign.std(dim=0)
    squares = Squares(benign, mean, push, M)
    for gamma in (0.0, 0.7, 30.0):
        rows = torch.cat([benign, (mean + gamma * push).expand(M, -1)])
        expected = squared_distances(rows)
        torch.testing.assert_close(squares(gamma), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("n", [5, 8])
def test_the_clamp_identity_is_the_rule_on_the_merged_rows(n: int) -> None:
    # gamma is far beyond what `saturating` needs, so its aggregate must be the rule's own.
    benign = Key(3).normal(n, 30)
    mean, push = benign.mean(dim=0), -benign.std(dim=0)
    for rule in (TrimmedMean(f=2), Median(), Median(even="lower")):
        search = saturating(rule.order_weights(n + M), benign, mean, push, M, 1e5)
        merged = torch.cat([benign, (mean + search.gamma * push).expand(M, -1)])
        limit = torch.cat([benign, (mean + 1e4 * push).expand(M, -1)])
        near, far = (
            rule.aggregate(FloatVectors(x), None, None)[0] - mean  # type: ignore[arg-type]
            for x in (merged, limit)
        )
        assert float(near.norm()) == pytest.approx(float(far.norm()), rel=2e-6)


@pytest.mark.parametrize("payload", example_payloads(), ids=lambda p: type(p).__name__)
def test_it_hurts_more_than_an_honest_round_on_every_alphabet(payload: Payload) -> None:
    rule = TrimmedMean(f=2)
    view = attack_view(DynOpt(), example_context(payload, rule, range(M)))
    sent, _ = DynOpt().craft(view, None)
    assert view.defense is not None
    mean = view.seen.values().double().mean(dim=0)
    honest_damage = (view.defense(view.own).double() - mean).norm()
    assert float((view.defense(sent).double() - mean).norm()) > float(honest_damage)


def test_both_ways_through_the_codec_exist_and_a_unit_step_is_felt_by_rankings() -> None:
    x = Key(0).normal(9, 12)
    payload = Rankings(ranking(x, (12,)), (12,))
    by_codec = attacked(DynOpt(via="codec"), Mean(), payload)[1]
    by_wire = attacked(DynOpt(via="wire"), Mean(), payload)[1]
    assert by_codec.values().tolist() == by_wire.values().tolist()  # sorting has no headers
    x = Key(0).normal(1, 4000).expand(9, -1) + 0.01 * Key(1).normal(9, 4000)
    payload = Rankings(ranking(x, (4000,)), (4000,))
    view, sent = attacked(DynOpt(direction="unit", bound=10.0), Mean(), payload)
    votes = view.seen.values().double().mean(dim=0)
    correlation = torch.corrcoef(torch.stack([sent.values()[0].double(), votes]))[0, 1]
    assert float(correlation) < -0.99


UNIT = Scale(near=1.0, far=1.0, bound=1e5)


def test_the_grid_search_finds_peaks_the_smallest_of_equals_and_its_bound() -> None:
    search = best_of_grid(lambda gamma: min(gamma, 4.0), UNIT)
    assert search.gamma == pytest.approx(4.0, rel=1e-3)
    assert search.ended == "converged"
    assert best_of_grid(lambda gamma: gamma, UNIT).ended == "bound"

    # A tooth that rises in proportion and falls off at once: within 1 % of its tip.
    def tooth(gamma: float, tip: float) -> float:
        return gamma if 0 < gamma <= tip else 0.0

    for tip in (0.3, 0.777, 2.9, 20.0, 300.0):
        gamma = best_of_grid(partial(tooth, tip=tip), UNIT).gamma
        assert 0.99 * tip <= gamma <= tip

        def other_side(gamma: float, tip: float = tip) -> float:
            return tooth(-gamma, tip)

        gamma = best_of_grid(other_side, UNIT, sides=(1, -1)).gamma
        assert 0.99 * tip <= -gamma <= tip
    assert best_of_grid(lambda gamma: 1 / (1 + gamma), UNIT).gamma == 0.0
    assert best_of_grid(lambda gamma: 3.0, UNIT).gamma == 0.0
    assert best_of_grid(lambda gamma: float("nan"), UNIT).ended == "never"
    assert best_of_grid(lambda g: float("inf") if g > 2 else g, UNIT).gamma <= 2


def test_the_oracle_does_not_know_the_server_s_randomness() -> None:
    class Dice(Mean):
        def aggregate(self, received, state, view):  # type: ignore[no-untyped-def]
            return view.key.uniform(received.values().shape[1]), state

    context = example_context(honest(), Dice(), range(M))
    view = attack_view(DynOpt(), context)
    assert view.defense is not None
    server, _ = Dice().aggregate(context.honest, None, context.view)  # type: ignore[no-untyped-call]
    assert not torch.equal(view.defense(view.own), server)


def test_the_oracle_is_a_snapshot() -> None:
    # D16: a stateful rule that is queried must not drift.
    class Moody(Mean):
        def init(self, spec: Any) -> Any:
            return torch.zeros(1)

        def aggregate(self, received, state, view):  # type: ignore[no-untyped-def]
            state.add_(1)
            return received.values().mean(dim=0) * state, state

    context = example_context(honest(), Moody(), range(M))
    state = torch.zeros(1)
    context = dataclasses.replace(context, defense_state=state)
    view = attack_view(DynOpt(), context)
    assert view.defense is not None
    first, second = view.defense(view.own), view.defense(view.own)
    assert torch.equal(first, second)
    assert state.item() == 0
    assert view.defense.queries == 2
