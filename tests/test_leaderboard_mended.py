"""What a reviewer broke: files that are ranked and shown without `check`, doubtful statuses."""

import csv
import hashlib
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from rich.console import Console

from fedbench.cli import main
from fedbench.cli.leaderboard_table import RankingTable, as_csv
from fedbench.core.errors import ConfigError
from fedbench.leaderboard import board as boards
from fedbench.leaderboard.check import check, reproduced
from fedbench.leaderboard.entry import Entry, Price, Repeated, Reproduction, status
from fedbench.leaderboard.entry_rules import errors
from fedbench.leaderboard.rank import ranking
from fedbench.leaderboard.rules import Rules, read_rules
from fedbench.leaderboard.submission import submit

BOARD = Path(__file__).parents[1] / "leaderboards"
PLAYED = (
    Path(__file__).parent / "entries"
)  # under version 1 of the rules, of which the board has none
ENTRY = PLAYED / "closed/digits/signsgd-b76dfe99bf43.json"
OTHER = PLAYED / "closed/digits/fedavg-5dbc623046d5.json"
SEEDS = [0, 1, 2, 3, 4]


@pytest.fixture
def board(tmp_path: Path) -> Path:
    for path in (ENTRY, OTHER, boards.archive(ENTRY), boards.archive(OTHER)):
        target = tmp_path / "board" / path.relative_to(PLAYED)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    rules = tmp_path / "board" / "rules"
    rules.mkdir()
    shutil.copy(
        BOARD / "rules" / "1.toml", rules
    )  # the version that these entries were scored under
    return tmp_path / "board"


def of(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def put(board: Path, content: dict[str, Any], name: str | None = None) -> Path:
    """The content as an entry's file, under the id that it has by now."""
    one = Entry.model_validate_json(json.dumps(content))
    if name is None:
        one = one.model_copy(update={"id": one.content_id()})
    path = board / "closed" / "digits" / (name or one.file_name)
    path.write_text(one.to_json())
    return path


def refused(board: Path, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["rank", str(board)], ["render", str(board), "--out", str(board / "page")]):
        with pytest.raises(SystemExit) as stopped:
            main(["leaderboard", *words])
        assert stopped.value.code == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert message in said.err
        assert "fedbench leaderboard check" in said.err


def test_an_edited_score_is_not_shown(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content = of(ENTRY)
    content["score"]["worst"] = {"mean": 0.99, "low": 0.98, "high": 1.0}
    put(board, content, ENTRY.name)
    refused(board, "must have the id of its content", capsys)
    (board / "closed" / "digits" / ENTRY.name).unlink()
    put(board, content)  # with the id that fits the lie
    refused(board, "must have the score that follows from its cells", capsys)


def test_an_epsilon_that_is_not_the_prices_is_not_shown(
    board: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = of(ENTRY)
    content["score"]["epsilon"] = 1.0
    put(board, content)
    refused(board, "must have the score that follows from its cells", capsys)


def test_an_entry_elsewhere_is_not_shown(board: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(board, of(ENTRY), "signsgd-000000000000.json")
    refused(board, "must be at", capsys)


def test_two_entries_with_one_id_keep_their_own_scores() -> None:
    one, other = boards.read(ENTRY), boards.read(OTHER)
    found = ranking([one, other.model_copy(update={"id": one.id})]).standings
    assert {s.entry.protocol: s.score for s in found} == {
        one.protocol: one.score,
        other.protocol: other.score,
    }


def _no_curve(content: dict[str, Any]) -> None:
    content["cells"][0]["curve"] = []


def _no_clean(content: dict[str, Any]) -> None:
    content["cells"][0]["impact"] = content["cells"][1]["impact"]


def _two_clean(content: dict[str, Any]) -> None:
    content["cells"][1]["impact"] = None


def _only_clean(content: dict[str, Any]) -> None:
    del content["cells"][1:]


def _clean_last(content: dict[str, Any]) -> None:
    content["cells"].append(content["cells"].pop(0))


def _clean_scored(content: dict[str, Any]) -> None:
    content["score"]["attack"] = content["cells"][0]["attack"]


HOSTILE = (_no_curve, _no_clean, _two_clean, _only_clean, _clean_last, _clean_scored)


@pytest.mark.parametrize("spoil", HOSTILE)
def test_an_entry_that_cannot_be_ranked_is_no_entry(spoil: Any, board: Path) -> None:
    content = of(ENTRY)
    spoil(content)
    path = board / "closed" / "digits" / ENTRY.name
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="is no entry"):
        boards.read(path)


USED = {
    "1": "e949cd00df0ffa3a03a74d7994d41f33a5354f3233f412390096b750fb3d2c9c",
    "2": "475227a8e973d7ceca29d30e2414b89273021db12529213a8d16ed4d387132e6",
}


def test_rules_that_are_used_are_never_changed() -> None:
    found = {p.stem: hashlib.sha256(p.read_bytes()).hexdigest() for p in BOARD.glob("rules/*.toml")}
    assert found == USED, "a used version never changes: write the next one, and pin it here"


LOOSE: tuple[tuple[str, Any], ...] = (
    ("version", 0),
    ("seeds", 1),
    ("confidence", 0.0),
    ("confidence", 1.0),
    ("tolerance.accuracy", -0.1),
    ("tolerance.bits", -0.1),
    ("tolerance.epsilon", -0.1),
    ("track.0.clean", {"low": 0.5, "high": 0.5}),
    ("track.0.clean", {"low": -0.1, "high": 0.5}),
    ("track.0.clean", {"low": 0.5, "high": 1.1}),
)


@pytest.mark.parametrize(("where", "value"), LOOSE)
def test_rules_that_mean_nothing_are_refused(where: str, value: Any) -> None:
    content = read_rules(BOARD / "rules" / "1.toml").model_dump()
    Rules.model_validate(content)
    *parts, last = where.split(".")
    part: Any = content
    for name in parts:
        part = part[int(name) if name.isdigit() else name]
    part[last] = value
    with pytest.raises(ValidationError):
        Rules.model_validate(content)


def again(agrees: bool, *seeds: int, attack: str = "dyn-opt") -> Reproduction:
    cells = [Repeated(attack=attack, accuracy=0.6, difference=0.0, agrees=agrees)]
    return Reproduction(
        code="c", platform="p", device="d", torch="t", seeds=list(seeds), cells=cells
    )


def test_only_a_word_over_all_its_seeds_takes_the_place_of_an_earlier_one() -> None:
    no = again(False, 0, 1, 2)
    assert status([no, again(True, 3)], SEEDS) == "contested"
    assert status([no, again(True, 1, 2, 3, 4)], SEEDS) == "contested"
    assert status([no, again(True, 0, 1, 2)], SEEDS) == "claimed"
    assert status([no, again(True, *SEEDS)], SEEDS) == "reproduced"
    assert status([again(True, *SEEDS), again(False, 3)], SEEDS) == "contested"
    assert status([again(False, 3), again(True, *SEEDS)], SEEDS) == "reproduced"


def test_some_seeds_do_not_reproduce_an_entry() -> None:
    assert status([again(True, 0, 1, 2, 3)], SEEDS) == "claimed"
    assert status([again(True, 0, 1), again(True, 2, 3, 4)], SEEDS) == "claimed"


def test_a_seed_counts_once() -> None:
    entry = boards.read(ENTRY)
    found = entry.model_copy(update={"reproductions": [again(True, 3, 3, 3, 3, 3)]})
    (line,) = reproduced(found, read_rules(BOARD / "rules" / "1.toml"))
    assert "each once, got [3, 3, 3, 3, 3]" in line


def test_coverage_is_of_the_cell_with_the_fewest_seeds() -> None:
    one = boards.read(ENTRY)
    assert one.coverage() == "0 of 4 cells, 0 of 5 seeds"
    played = [again(True, 0), again(True, 0, 1, 2), again(True, 3, 4, attack="none")]
    found = one.model_copy(update={"reproductions": played})
    assert found.coverage() == "2 of 4 cells, 2 of 5 seeds"


def priced(epsilon: float | None, mean: float, **promise: Any) -> Entry:
    base = boards.read(ENTRY)
    assert base.price is not None
    price = Price.model_validate({**base.price.model_dump(), "epsilon": epsilon, **promise})
    worst = base.score.worst.model_copy(update={"mean": mean})
    score = base.score.model_copy(update={"epsilon": epsilon, "worst": worst})
    return base.model_copy(update={"price": price, "score": score})


@pytest.mark.parametrize(
    ("promise", "front"),
    [
        ({}, [True, False]),
        ({"delta": 1e-6}, [True, True]),
        ({"unit": "example"}, [True, True]),
        ({"sees": "model"}, [True, True]),
        ({"adjacency": "add-remove"}, [True, True]),
    ],
)
def test_two_epsilons_compare_only_if_they_promise_the_same(
    promise: dict[str, Any], front: list[bool]
) -> None:
    found = ranking([priced(1.0, 0.6), priced(2.0, 0.5, **promise)]).standings
    assert [one.pareto for one in sorted(found, key=lambda s: -s.entry.score.worst.mean)] == front


def test_any_finite_epsilon_beats_none_and_is_beaten_by_no_other() -> None:
    finite, unknown = priced(9e5, 0.5), priced(None, 0.5, unit="example")
    found = {s.entry.score.epsilon: s.pareto for s in ranking([finite, unknown]).standings}
    assert found == {9e5: True, None: False}
    better = ranking([finite, priced(None, 0.9)]).standings
    assert all(one.pareto for one in better)


def again_submitted(board: Path, **said: Any) -> Any:
    records = boards.records(ENTRY)
    words = {"name": "Flipped", "authors": "A. Uthor", "tried": 1, **said}
    return submit(records, words, board, "closed", "digits")


def test_a_broken_entry_of_others_stops_no_submission(board: Path) -> None:
    (board / "closed/digits" / OTHER.name).write_text("{")
    done = again_submitted(board)
    assert [one.rule for one in errors(done.findings)] == ["duplicate"]


def test_what_a_killed_submission_leaves_is_cleared_by_the_next(board: Path) -> None:
    mine = board / "closed/digits" / ENTRY.name
    mine.unlink()  # the archive is there, the entry was not written any more
    theirs = board / "closed/digits" / OTHER.name
    theirs.rename(board / "other.json")
    temporary = mine.with_name(f".{mine.name}.a1b2c3d_")
    temporary.write_text("{")
    assert any(one.findings for one in check(board, own_rules=True))
    path = again_submitted(board, name="Another name").write()
    assert path != mine
    assert not boards.archive(mine).exists()
    assert boards.archive(theirs).exists()  # whatever is of others is theirs to clear
    (board / "other.json").rename(theirs)
    assert [found for one in check(board, own_rules=True) for found in errors(one.findings)] == []


def test_other_hidden_files_are_still_refused(board: Path) -> None:
    hidden = board / "closed/digits/.hidden.json"
    hidden.write_text("{")
    assert hidden in boards.files(board)


def place(entry: Entry) -> RankingTable:
    return RankingTable("closed", "digits", ranking([entry]), 1)


def test_a_name_is_no_formula_in_a_spreadsheet() -> None:
    entry = boards.read(ENTRY).model_copy(update={"name": "=1+1"})
    (row,) = csv.DictReader(io.StringIO(as_csv([place(entry)])))
    assert row["name"] == "'=1+1"
    assert (row["unit"], row["sees"], row["adjacency"]) == ("client", "messages", "replace-one")
    assert float(row["delta"]) == 1e-5


@pytest.mark.parametrize("width", [80, 120])
def test_a_ranking_is_legible(width: int) -> None:
    entry = boards.read(ENTRY).model_copy(update={"status": "reproduced"})
    console = Console(width=width, file=io.StringIO())
    with console.capture() as got:
        console.print(place(entry))
    text = got.get()
    assert max(map(len, text.splitlines())) <= width
    for whole in ("SignSGD, flipped bits", "reproduced", "sign-flip", "worst case %"):
        assert whole in text
    assert ("clean %" in text) == (width == 120)
    assert "…" not in text
