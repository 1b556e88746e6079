"""Attacks in real space that search: they find what they seek, of any rule, and say how."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedbench.adversary.threat_model import AttackContext, attack_view, forge
from fedbench.api import Attack, AttackView, Defense, Knowledge, ServerView
from fedbench.core import registry
from fedbench.core.rng import Key
from fedbench.payload import FloatVectors, Payload, SignBits
from fedbench.testing import example_context, example_payloads
from fedbench_attacks.crafted import sender
from fedbench_attacks.searched import DynOpt, OptALIE, OptIPM
from fedbench_attacks.stat_opt import StatOpt, largest_lambda
from fedbench_attacks.trials import Trials
from fedbench_defenses.bulyan import Bulyan
from fedbench_defenses.distances import squared_distances
from fedbench_defenses.geometric_median import GeometricMedian
from fedbench_defenses.mean import Mean
from fedbench_defenses.median import Median, TrimmedMean
from fedbench_defenses.multi_krum import MultiKrum

M = 2


def rows(seed: int = 0, n: int = 9, d: int = 40) -> Tensor:
    key = Key(seed)
    x = key.normal(n, d) * (key.fold("scale").uniform(n)[:, None] * 4 + 0.2)
    return x + key.fold("mean").normal(d)


def honest(rule: Any, seed: int = 0, n: int = 9, d: int = 40, m: int = M) -> AttackContext:
    return example_context(FloatVectors(rows(seed, n, d)), rule, range(m))


def column(rule: Any, own: list[float], *benign: float, d: int = 1) -> AttackContext:
    x = torch.tensor([*own, *benign])[:, None].expand(-1, d).clone()
    return example_context(FloatVectors(x), rule, range(len(own)))


def sent(attack: Attack, here: AttackContext) -> tuple[AttackView, Tensor]:
    view = attack_view(attack, here)
    message, _ = attack.craft(view, None)
    assert isinstance(message, Payload)
    return view, message.values()


def damage(rule: Any, here: AttackContext, x: Tensor, draws: int = 1) -> float:
    """What the rule makes of these rows of the colluders, far from the benign mean."""
    benign = here.honest.values()[len(here.owned.rows) :]
    received = FloatVectors(torch.cat([x, benign]))
    total = 0.0
    for draw in range(draws):
        view = dataclasses.replace(here.view, key=Key(77).fold(draw))
        total += float((rule.aggregate(received, None, view)[0] - benign.mean(dim=0)).norm())
    return total / draws


@dataclass(frozen=True)
class Clipped(Defense[None]):
    """The mean of rows that are clipped to the median norm. It says nothing of how it works."""

    def tolerates(self, n: int) -> int:
        return (n - 1) // 2

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        norms = x.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return (x * (norms.median() / norms).clamp(max=1)).mean(dim=0), None


@dataclass(frozen=True)
class Misleading(Clipped):
    """Long rows count in the tenth of the draws that is about ``coin``."""

    coin: float

    def aggregate(self, received: Payload, state: None, view: ServerView) -> tuple[Tensor, None]:
        x = received.values()
        lenient = abs(float(view.key.uniform(1)) - self.coin) < 0.05
        short = x.norm(dim=1) <= (6.0 if lenient else 2.0)
        return (x * short[:, None]).mean(dim=0), None


RULES = [Median(), TrimmedMean(f=2), MultiKrum(f=2), MultiKrum(f=2, m=1), Clipped()]
MIXED = registry.load("defense", "nnm:f=2+multi-krum:f=2")


@pytest.mark.parametrize("rule", [*RULES, Bulyan(f=1), MIXED, GeometricMedian()], ids=repr)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("attack", [OptIPM(), OptALIE()], ids=repr)
def test_no_strength_on_a_fine_grid_hurts_more_than_it(attack: Any, seed: int, rule: Any) -> None:
    here = honest(rule, seed)
    view, x = sent(attack, here)
    benign = here.honest.values()[M:]
    mean = benign.mean(dim=0)
    push = -mean if isinstance(attack, OptIPM) else -benign.std(dim=0)
    strength = view.notes["gamma"]
    assert isinstance(strength, float)
    torch.testing.assert_close(x, (mean + strength * push).expand(M, -1))
    spread = (benign - mean).norm(dim=1).square().mean().sqrt() / push.norm()
    grid = [spread * 2 ** (i / 12) for i in range(-30, 42)]
    both = [*grid, *(-gamma for gamma in grid)] if isinstance(attack, OptALIE) else grid
    most = max(damage(rule, here, (mean + gamma * push).expand(M, -1)) for gamma in both)
    assert damage(rule, here, x) >= 0.99 * most


def test_opt_ipm_of_masks_shrinks_to_one_half_and_reaches_the_other_side() -> None:
    attack = OptIPM(via="wire")
    for payload in example_payloads():
        view, _ = sent(attack, example_context(payload, Mean(), range(M)))
        assert float(view.notes["gamma"]) > 1, type(payload).__name__  # eps = gamma - 1 > 0


def test_opt_alie_hurts_a_rule_that_selects_no_less_than_dyn_opt() -> None:
    better = 0
    for seed in range(6):
        for rule in (MultiKrum(f=2), MultiKrum(f=2, m=1), MultiKrum(f=3, m=4)):
            here = honest(rule, seed)
            all_taken = DynOpt(selected="all")
            theirs, ours = (damage(rule, here, sent(a, here)[1]) for a in (all_taken, OptALIE()))
            assert ours >= 0.999 * theirs
            better += ours > 1.01 * theirs
    assert better  # where it pays not to have all colluders selected


def test_a_search_tells_every_trial_and_forge_hands_it_on() -> None:
    for attack in (DynOpt(), OptIPM(), OptALIE(), StatOpt()):
        for rule in (MultiKrum(f=2), MultiKrum(f=2, m=1), Clipped()):
            here = honest(rule)
            forged = forge(attack, here, {})
            if isinstance(attack, StatOpt) and isinstance(rule, Clipped):
                assert not forged.fields["trace"]  # nothing is searched
                continue
            assert len(forged.fields["trace"]) > 5
            strengths = [strength for strength, _ in forged.fields["trace"]]
            name = "lambda" if isinstance(attack, StatOpt) else "gamma"
            assert forged.fields["notes"][name] in [0.0, *strengths]
    found = forge(DynOpt(), honest(Clipped()), {})
    best = max(found.fields["trace"], key=lambda pair: pair[1] or 0.0)[1]
    at = dict(found.fields["trace"])[found.fields["notes"]["gamma"]]
    assert best is not None
    assert at is not None
    assert at >= 0.999 * best
    assert forge(DynOpt(), honest(Mean()), {}).fields["trace"] == []  # no search


def test_the_trace_is_of_damages_or_of_verdicts() -> None:
    here = honest(TrimmedMean(f=2))
    view, x = sent(DynOpt(), here)
    gamma = view.notes["gamma"]
    strength = dict(view.trace)[gamma]  # type: ignore[index]
    assert strength == pytest.approx(damage(TrimmedMean(f=2), here, x), rel=1e-5)
    view, _ = sent(DynOpt(selected="all"), honest(MultiKrum(f=2)))
    assert {value for _, value in view.trace} == {0.0, 1.0}


@pytest.mark.parametrize("attack", [DynOpt, OptIPM, OptALIE, StatOpt])
@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_who_knows_the_colluders_alone_cannot_ask_about_the_others(attack: Any, rule: Any) -> None:
    blind, twin = honest(rule, m=4), honest(rule, m=4)
    other = torch.cat([twin.honest.values()[:4], 50 + 9 * Key(5).normal(5, 40)])
    twin = dataclasses.replace(twin, honest=FloatVectors(other))
    attack = attack(knows="colluders")
    assert attack.needs() == Knowledge("colluders", defense=True)
    (view, x), (_, y) = sent(attack, blind), sent(attack, twin)
    assert torch.equal(x, y)
    if not isinstance(attack, StatOpt):  # and what it asks about are rounds of the true size
        mean = view.own.values().mean(dim=0)
        push = attack.push(view, view.own.values(), mean)
        trials = Trials(view, view.own.values(), mean, push, sender(view, "codec"), 1, "colluders")
        assert trials.n == 9


def test_who_knows_the_colluders_alone_still_hurts() -> None:
    for rule in (TrimmedMean(f=4), Median(), Clipped()):
        here = honest(rule, n=13, m=4)
        attacked = sent(DynOpt(knows="colluders"), here)[1]
        assert damage(rule, here, attacked) > 1.2 * damage(rule, here, here.honest.values()[:4])


def test_the_average_over_draws_is_not_misled_by_one_draw() -> None:
    # The oracle's first draw is one of the tenth in which rows of norm 6 count; those of norm 2
    # always do, and 2 is more than a tenth of 6.
    x = 0.01 * Key(0).normal(9, 40)
    x[:, 0] += 0.1
    secret = example_context(FloatVectors(x), Mean()).owned.secret.derive("oracle")
    coin = float(secret.key(0).uniform(1))
    rule = Misleading(coin)
    here = example_context(FloatVectors(x), rule, range(M))
    naive, careful = (sent(OptIPM(eot=eot), here) for eot in (1, 32))
    assert damage(rule, here, careful[1], 400) > 1.2 * damage(rule, here, naive[1], 400)
    for view, draws in ((naive[0], 1), (careful[0], 32)):
        assert view.defense is not None
        assert view.defense.queries == draws * len(view.trace)
    strength = max(value for _, value in careful[0].trace)  # an average and not a sum
    assert strength == pytest.approx(damage(rule, here, careful[1], 400), rel=0.2)


def test_equal_draws_of_the_oracle_give_equal_answers_and_others_do_not() -> None:
    here = honest(Misleading(0.5))
    view = attack_view(DynOpt(), here)
    assert view.defense is not None
    answers = {draw: view.defense(view.own, draw) for draw in range(60)}
    assert torch.equal(answers[7], view.defense(view.own, 7))
    assert len({tuple(x.tolist()) for x in answers.values()}) > 1


def test_stat_opt_draws_beyond_the_benign_rows_or_deviations_against_the_direction() -> None:
    # Means are 3, 2, -3 and -2. Down from a smallest that is positive means towards 0.
    for benign, low, high in (
        ((1.0, 2.0, 6.0), 0.5, 1.0),
        ((-4.0, -2.0, 12.0), -8.0, -4.0),
        ((-1.0, -2.0, -6.0), -1.0, -0.5),
        ((-9.0, 1.0, 2.0), 2.0, 4.0),
    ):
        _, x = sent(StatOpt(), column(Median(), [50.0, 60.0], *benign, d=2000))
        assert low <= float(x.min()) < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < float(x.max()) <= high
        assert not torch.equal(x[0], x[1])  # each colluder draws
    _, x = sent(StatOpt(b=10.0), column(Median(), [50.0, 60.0], -9.0, 1.0, 2.0, d=2000))
    assert float(x.max()) > 19.9
    # mean 3, std sqrt(7) with ddof 1: from 3 - 10.5830 to 3 - 7.9373.
    here = column(Median(), [1.0, 2.0, 6.0], 70.0, 80.0, 90.0, 95.0, d=2000)
    _, x = sent(StatOpt(knows="colluders"), here)
    assert float(x.min()) == pytest.approx(3 - 4 * math.sqrt(7), abs=0.01)
    assert float(x.max()) == pytest.approx(3 - 3 * math.sqrt(7), abs=0.01)


@pytest.mark.parametrize("rule", [MultiKrum(f=2), MultiKrum(f=2, m=1)])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_stat_opt_finds_the_largest_lambda_that_is_selected(rule: MultiKrum, seed: int) -> None:
    here = honest(rule, seed)
    benign = here.honest.values()[M:]
    sign = benign.mean(dim=0).sign()
    view, x = sent(StatOpt(), here)
    strength = view.notes["lambda"]
    assert isinstance(strength, float)
    torch.testing.assert_close(x, (-strength * sign).expand(M, -1))
    taken = min(M, rule.m or M)

    def selected(strength: float) -> int:
        every = torch.cat([(-strength * sign).expand(M, -1), benign])
        return int(rule.select(squared_distances(every))[:M].sum())

    if view.notes["ended"] == "never":
        assert selected(0.0) < taken
        return
    assert selected(strength) == taken
    assert selected(1.0011 * strength) < taken
    halved, _ = sent(StatOpt(search="published"), here)
    published = halved.notes["lambda"]
    assert isinstance(published, float)
    assert selected(published) == taken
    assert selected(2 * published) < taken
    assert published <= 1.001 * strength


def test_the_published_lambda_starts_at_the_bound_of_the_theorem() -> None:
    # n = 7, m = 2: the n - m - 2 = 3 rows closest to 3 are at 2, 3 and 4: 4 + 9 + 16 = 29, less
    # than the 41 of the row at 1. n - 2 m - 1 = 2, and the row at 20 is farthest from 0.
    here = column(MultiKrum(f=2), [50.0, 60.0], 0.0, 1.0, 3.0, 7.0, 20.0)
    view = attack_view(StatOpt(), here)
    known = here.honest.values()[M:]
    push = -torch.ones(1)
    trials = Trials(view, known, torch.zeros(1), push, sender(view, "codec"))
    assert largest_lambda(trials) == pytest.approx(math.sqrt(29 / 2) + 20)
    # Of four equal coordinates both terms are per coordinate: nothing changes.
    wide = column(MultiKrum(f=2), [50.0, 60.0], 0.0, 1.0, 3.0, 7.0, 20.0, d=4)
    trials = Trials(
        attack_view(StatOpt(), wide),
        known.expand(-1, 4),
        torch.zeros(4),
        -torch.ones(4),
        sender(view, "codec"),
    )
    assert largest_lambda(trials) == pytest.approx(math.sqrt(29 / 2) + 20)


def test_stat_opt_on_signs_against_a_rule_that_selects_looks_for_damage() -> None:
    signs = SignBits(rows(3) >= 0)
    view, x = sent(StatOpt(), example_context(signs, MultiKrum(f=2), range(M)))
    assert view.notes["search"] == "grid"
    benign = signs.values()[M:].mean(dim=0)
    assert float(x[0] @ benign) < 0


def test_dyn_opt_seeks_by_what_a_rule_says_and_not_by_its_name() -> None:
    class Renamed(TrimmedMean):
        pass

    class Silent(TrimmedMean):
        def order_weights(self, n: int) -> Any:
            return None

    a, b, c = (sent(DynOpt(), honest(rule(f=2))) for rule in (TrimmedMean, Renamed, Silent))
    assert torch.equal(a[1], b[1])
    assert [view.notes["search"] for view, _ in (a, b, c)] == ["saturating", "saturating", "grid"]
    here = honest(TrimmedMean(f=2))
    theirs, asked = (damage(TrimmedMean(f=2), here, x) for _, x in (a, c))
    assert asked == pytest.approx(theirs, rel=2e-3)  # a grid prefers the smallest of equals


@pytest.mark.parametrize("payload", example_payloads(), ids=lambda p: type(p).__name__)
@pytest.mark.parametrize("rule", [TrimmedMean(f=2), Median(), Median(even="lower")], ids=repr)
def test_a_trial_by_order_statistics_is_what_the_oracle_answers(payload: Any, rule: Any) -> None:
    here = example_context(payload, rule, range(M))
    view = attack_view(DynOpt(), here)
    known = view.seen.values().to(torch.float32)
    mean = known.mean(dim=0)
    trials = Trials(view, known, mean, -known.std(dim=0), sender(view, "wire"))
    assert view.defense is not None
    for gamma in (0.3, 1.0, 4.0):
        closed = trials.damage(gamma)
        answer = view.defense(trials.send(mean - gamma * known.std(dim=0))).double() - mean
        assert closed == pytest.approx(float(answer.norm()), rel=1e-4)


def test_a_search_survives_a_round_with_fewer_finite_rows_than_the_rule_needs() -> None:
    # Six of eight honest clients have diverged: four rows are left of ten, and 1 / (4 - 2 f) would
    # divide by 0. No rule speaks of so few: the server skips the round.
    x = torch.cat([rows(1, 4), torch.full((6, 40), torch.nan)])
    for rule in (TrimmedMean(f=2), MultiKrum(f=2)):
        here = example_context(FloatVectors(x), rule, range(M))
        for attack in (OptIPM(), OptALIE(), DynOpt()):
            view, message = sent(attack, here)
            assert view.notes["ended"] == "bound"
            assert message.shape == (M, 40)
