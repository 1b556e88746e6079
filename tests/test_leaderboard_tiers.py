"""Tracks whose adversary is shown less: the mandatory attacks stay within what it may see."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedbench.adversary.threat_model import needs
from fedbench.api import Knowledge
from fedbench.core import registry
from fedbench.leaderboard.rules import Rules, Track, versions
from fedbench.leaderboard.submission import plan
from fedbench.leaderboard.tiers import mandatory
from fedbench.sweeps.plan import Plan

BOARD = Path("leaderboards")
NAME = "mnist-5k-20-percent"


def track(**fields: Any) -> tuple[Rules, Track]:
    """The rules with one track of theirs, where these fields of its scenario are others."""
    rules = versions(BOARD)[3]
    known = rules.named(NAME)
    assert known is not None
    changed = known.model_copy(update={"scenario": known.scenario | fields})
    return rules.model_copy(update={"track": (changed,)}), changed


def test_colluders_play_what_they_can_from_their_own_messages() -> None:
    assert mandatory(*track(knowledge="colluders"), "Rankings") == (
        "none",
        "sign-flip",
        "mimic:knows=colluders",  # instead of the clean messages of all
        "pga",
        "label-flip",
        "rank-reversal",
        "auto:knows=colluders,asks=false",
        "auto:budget=4,knows=colluders,asks=false",
    )  # dyn-opt asks the server's rule in every form


def test_who_may_ask_the_rule_keeps_the_searches() -> None:
    attacks = mandatory(*track(knowledge="colluders+defense"), "Rankings")
    assert "dyn-opt:knows=colluders" in attacks
    assert "auto:knows=colluders" in attacks  # asks, as it does by itself


@pytest.mark.parametrize("cap", ["own", "colluders", "colluders+defense", "all", "all+defense"])
def test_no_mandatory_attack_sees_more_than_its_track_allows(cap: str) -> None:
    rules, narrow = track(knowledge=cap)
    for alphabet in rules.ensemble:
        for attack in mandatory(rules, narrow, alphabet):
            seen = needs(registry.load("attack", attack))
            assert Knowledge.parse(cap).covers(seen), (attack, str(seen))


def test_a_track_without_a_cap_and_the_open_division_ask_for_the_whole_ensemble() -> None:
    rules, known = track()
    assert mandatory(rules, known, "SignBits") == rules.attacks("SignBits")
    assert mandatory(rules, None, "SignBits") == rules.attacks("SignBits")


def test_an_attack_that_is_within_stays_as_it_was_typed() -> None:
    assert "margin:rest=against" in mandatory(*track(knowledge="all"), "BinaryMasks")
    assert "label-flip" in mandatory(*track(knowledge="own"), "BinaryMasks")


@pytest.mark.parametrize("protocol", ["fedavg", "signsgd", "fedpm", "fsl", "fedmrn", "drive"])
def test_the_tier_of_the_rules_can_be_played_with_whatever_is_sent(protocol: str) -> None:
    rules = versions(BOARD)[3]
    table = tomllib.loads(plan(rules, f"{NAME}-colluders", {"protocol": protocol}))
    cells, skipped = Plan.of(table, "plan").cells()
    assert skipped == []
    assert {cell.scenario.knowledge for cell in cells} == {"colluders"}
    assert cells[0].attack == "none"
    assert any(cell.attack.startswith("auto") for cell in cells)
