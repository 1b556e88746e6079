"""Names that stand for several attacks, and the catalogue page."""

import tomllib
from pathlib import Path

import pytest

from fedbench.api import Attack
from fedbench.cli.catalogue_page import page, replace
from fedbench.core import registry
from fedbench.core.errors import ConfigError, UnknownPluginError
from fedbench.leaderboard import rules
from fedbench.leaderboard.rules import versions
from fedbench.sweeps.ensemble import candidates, capped, ensemble
from fedbench.sweeps.grid import Grid, unite

ROOT = Path(__file__).parent.parent
*_, NEWEST = versions(ROOT / "leaderboards").values()


def test_all_is_the_ensemble_of_the_newest_rules_for_the_alphabet() -> None:
    protocols = ("fedavg", "fsl", "fedpm", "drive")
    cells, skipped = Grid({"protocol": protocols, "attack": ("all",)}).cells()
    assert not skipped
    for protocol in protocols:
        sends = registry.load("protocol", protocol).sends.__name__
        attacks = [cell.attack for cell in cells if cell.protocol == protocol]
        assert attacks == list(NEWEST.attacks(sends))
        assert attacks[-2:] == ["auto", "auto:budget=4"]
        assert attacks[0] == "none"
        assert ("rank-reversal" in attacks) == (protocol == "fsl")


def test_installed_is_everything_and_what_does_not_fit_is_skipped() -> None:
    cells, skipped = Grid({"protocol": ("fsl",), "attack": ("installed",)}).cells()
    played = {cell.attack for cell in cells}
    left_out = {skip.attack for skip in skipped}
    assert played | left_out == set(registry.names("attack"))
    assert {"none", "sign-flip", "dyn-opt", "rank-reversal"} <= played
    assert {"scale-field", "seed-grinding", "index-concentration"} <= left_out


def test_a_cap_or_a_hidden_sum_leaves_attacks_what_they_can_do_with_less_knowledge() -> None:
    assert capped("min-max", "colluders+defense") == "min-max:knows=colluders"
    assert capped("min-max:direction=sign", "colluders") == "min-max:direction=sign,knows=colluders"
    assert capped("min-max", "all") == "min-max"
    assert capped("min-max", "own") == "min-max"  # nothing it could know: left out, with a reason
    assert capped("sign-flip", "colluders") == "sign-flip"
    cells, skipped = Grid({"attack": ("all",), "knowledge": ("colluders",)}).cells()
    assert "auto:knows=colluders,asks=false" in {cell.attack for cell in cells}
    assert skipped
    assert all("must be shown" in skip.reason for skip in skipped)
    axes = {"protocol": ("pbm",), "sees": ("sum",), "attack": ("all", "strongest:budget=9")}
    cells, skipped = Grid(axes).cells()
    assert {"mimic:knows=colluders", "auto:knows=colluders"} <= {c.attack for c in cells}
    assert not skipped
    assert sum(cell.sought == 9 for cell in cells) == 9


def test_a_clean_run_is_not_repeated_for_every_window_and_cap() -> None:
    axes = {"attack": ("sign-flip",), "knowledge": ("own", "all"), "attack_from": (0, 5)}
    cells, skipped = Grid(axes).cells()
    assert [cell.attack for cell in cells].count("none") == 1
    assert "without an attack another knowledge changes nothing" in {
        skip.reason for skip in skipped
    }


def test_candidates_are_the_ensemble_then_variations_and_no_two_mean_the_same() -> None:
    known = [attack for attack in ensemble("fedavg") if attack != "none"]
    some = candidates("fedavg", 200)
    assert some[: len(known)] == known
    others = some[len(known) :]
    assert others.index("min-sum") < others.index("alie:z=0.5"), "no attack is left out"
    meanings = {registry.describe(a.partition(":")[0], registry.load("attack", a)) for a in some}
    assert len(meanings) == len(some) > len(known) + 10
    assert not any(registry.load("attack", attack).idle for attack in some)
    every = [registry.load("attack", attack) for attack in candidates("fedavg", 100_000)]
    assert all(type(attack).trigger is Attack.trigger for attack in every), "no backdoor"
    assert candidates("fedavg", 5) == some[:5]
    capped_ones = candidates("fedavg", 5, "own")
    assert len(capped_ones) == 5, "a budget is spent on what the cap allows"
    assert {registry.load("attack", attack).needs().tier for attack in capped_ones} == {"own"}


def test_every_choice_of_every_attack_can_be_had() -> None:
    for name in registry.names("attack"):
        plugin = registry.plugin("attack", name)
        for param, values in plugin.choices.items():
            for value in values:
                assert getattr(registry.load("attack", f"{name}:{param}={value}"), param) == value
    assert Attack.choices == {}


def test_candidates_of_the_strongest_are_cells_that_are_no_rows_of_their_own() -> None:
    cells, _ = Grid({"attack": ("strongest:budget=3",)}).cells()
    assert [(cell.sought, cell.listed) for cell in cells] == [(0, True)] + 3 * [(3, False)]
    both, _ = unite([Grid({"attack": ("strongest:budget=3", "sign-flip")})])
    listed = {cell.attack: (cell.sought, cell.listed) for cell in both}
    assert listed["sign-flip"] == (3, True), "asked for by name, and a candidate"


def test_a_search_needs_validation_data_to_choose_on() -> None:
    axes = {"dataset": ("mnist",), "split": ("published",), "attack": ("strongest:budget=2",)}
    rule = r"strongest must have validation data to choose on, got --split published"
    with pytest.raises(ConfigError, match=rule):
        Grid(axes).cells()


def test_a_search_without_a_budget_and_a_name_that_is_none_are_refused() -> None:
    for text in (
        "strongest:budget=0",
        "strongest:budget=many",
        "strongest:b=1",
        "strongest:budget=1000000",
    ):
        with pytest.raises(ConfigError, match=r"must be strongest:budget=N with N in 1 .. 999999"):
            Grid({"attack": (text,)}).cells()
    with pytest.raises(UnknownPluginError, match="--attack 'al' is not installed"):
        Grid({"attack": ("al",)}).cells()


@pytest.mark.parametrize(
    ("kind", "folder"), [("attack", "attacks"), ("defense", "defenses"), ("prefilter", "defenses")]
)
def test_the_catalogue_is_what_the_plug_ins_say(kind: str, folder: str, tmp_path: Path) -> None:
    stale = tmp_path / "README.md"
    names = registry.names(kind)
    text = (ROOT / folder / "README.md").read_text()
    stale.write_text(text)
    assert not replace(kind, stale), f"run: fedbench list {kind}s --into {folder}/README.md"
    stale.write_text(text.replace(f"### {names[-1]}", "### nothing"))
    assert replace(kind, stale)
    assert stale.read_text() == text
    shown = page(kind)
    for name in names:
        assert f"\n### {name}\n" in shown, name
        assert shown.count(f"[`{name}`](#{name})") == 1


def test_a_page_without_a_place_for_the_catalogue_is_refused(tmp_path: Path) -> None:
    page = tmp_path / "README.md"
    page.write_text("# Mine\n")
    with pytest.raises(ConfigError, match=r"must have the lines .*catalogue.*, got neither or one"):
        replace("attacks", page)
    assert page.read_text() == "# Mine\n"
    with pytest.raises(ConfigError, match="cannot be read"):
        replace("attacks", tmp_path / "absent.md")


def test_a_wheel_has_the_rules_where_they_are_looked_for() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    included = build["targets"]["wheel"]["force-include"]
    assert included == {"leaderboards/rules": "fedbench/leaderboard/board/rules"}
    assert rules.INSTALLED_BOARD == "leaderboard/board"
