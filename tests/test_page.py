"""The pages of a leaderboard, as files: what stands in them, and what cannot."""

from __future__ import annotations

import base64
import csv
import hashlib
import html
import json
import re
import statistics
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import tomli_w

from fedbench.core.errors import ConfigError
from fedbench.experiment.scenario import Scenario
from fedbench.figures.heatmap import luminance
from fedbench.leaderboard.board import archive, place
from fedbench.leaderboard.entry import (
    AttackedCell,
    Entry,
    Interval,
    Member,
    Point,
    Price,
    RankingStage,
    Replay,
    Score,
)
from fedbench.leaderboard.leads import leads
from fedbench.leaderboard.rank import VIEWS, comparable_groups, ranking
from fedbench.leaderboard.site import words
from fedbench.leaderboard.site.drawings import curves, cut, cut_apart, scatter
from fedbench.leaderboard.site.page import TEMPLATES, edited, render
from fedbench.leaderboard.site.views import RankedView

DATA = "8cf43c50" * 8
SET = {"partition": "dirichlet:beta=0.3", "malicious": 0.1, "rounds": 30}
TRACK = {
    "name": "digits",
    "seeds": [0, 1, 2, 3, 4],
    "data": DATA,
    "clean": {"low": 0.5, "high": 0.99},
    "scenario": {"dataset": "digits", **SET},
}
RULES: dict[str, Any] = {
    "seeds": 5,
    "confidence": 0.95,
    "free": ["protocol", "defense", "mechanism"],
    "tolerance": {"accuracy": 0.02, "bits": 0.01, "epsilon": 1e-6},
    "ensemble": {"FloatVectors": ["none", "sign-flip"]},
    "track": [TRACK],
}
LOOKS = (3, 9, 15, 21, 30)  # rounds

# Protocol, mechanism, rule, alphabet, bits up, bits down, epsilon, clean, worst, half an interval.
SYSTEMS = (
    ("fedavg", "none", "trimmed-mean:f=4", "FloatVectors", 32.0, 32.0, None, 0.91, 0.62, 0.05),
    ("fedavg", "none", "mean", "FloatVectors", 32.0, 32.0, None, 0.93, 0.11, 0.02),
    ("signsgd", "none", "mean", "SignBits", 1.0, 32.0, None, 0.84, 0.58, 0.06),
    ("fsl", "none", "mean", "Rankings", 11.21, 11.21, None, 0.72, 0.66, 0.04),
    ("fedpm", "none", "median", "BinaryMasks", 0.97, 32.0, None, 0.80, 0.41, 0.09),
    ("fedmrn", "none", "mean", "NoiseMasks", 1.02, 32.0, None, 0.90, 0.23, 0.07),
    ("drive", "none", "median", "RotatedLevels", 1.003, 32.0, None, 0.89, 0.47, 0.08),
    ("fedavg", "dp-fedavg:clip=0.5", "mean", "FloatVectors", 32.0, 32.0, 8.25, 0.55, 0.37, 0.06),
    ("signsgd", "randomized-response:p=0.4", "mean", "SignBits", 1.0, 32.0, 1540.0, 0.6, 0.5, 0.07),
)
ATTACKS = (("none", 1.0), ("sign-flip", 0.4), ("dyn-opt", 0.0), ("dyn-opt:direction=sign", 0.7))
ON_ITS_BOUND = "the attack's search ended on its bound in some rounds"


def interval(mean: float, half: float) -> Interval:
    values = [mean + half * x for x in (-1, -0.5, 0, 0.5, 1)]
    return Interval(mean=mean, low=mean - half, high=mean + half, values=values)


def cell(attack: str, end: float, clean: float, half: float, up: float, down: float) -> Any:
    """A cell whose accuracy is ``end``, and a little more on the way."""
    looks = [(look, interval(end * look / (look + 4) * 34 / 30, half)) for look in LOOKS]
    return AttackedCell(
        attack=attack,
        mandatory=True,
        accuracy=interval(end, half),
        area=0.8 * end,
        impact=None if attack == "none" else interval(clean - end, half),
        uplink_bits=up,
        downlink_bits=down,
        curve=[Point(rounds=look, bits=look * (up + down), accuracy=x) for look, x in looks],
        flags=[],
        records=[Member(seed=s, id="0" * 16, digest="0" * 64, accuracy=end) for s in range(5)],
    )


def entry(number: int, **changes: Any) -> Entry:
    """The same entry for the same number; the ninth and later ones are variations."""
    turn, system = divmod(number, len(SYSTEMS))
    protocol, mechanism, defense, alphabet, up, down, epsilon, clean, worst, half = SYSTEMS[system]
    worst, up = worst * (1 - 0.07 * turn), up * (1 - 0.09 * turn)
    ends = {attack: worst + kept * (clean - worst) for attack, kept in ATTACKS}
    cells = [cell(attack, end, clean, half, up, down) for attack, end in ends.items()]
    if number % 3 == 1:
        cells[2] = cells[2].model_copy(update={"flags": [ON_ITS_BOUND]})
    of_model = protocol == "fedavg"
    price = {
        **{"epsilon": epsilon, "delta": 1e-5, "unit": "client"},
        "sees": "model" if of_model else "messages",
        "adjacency": "add-remove" if of_model else "replace-one",
        "sampler": "10 of 50 clients a round, 30 rounds, who takes part is hidden",
        "winner": "rdp",
    }
    paid = None if epsilon is None else Price.model_validate(price)
    where: dict[str, Any] = {
        "code": "0.1.0+abc",
        "platform": "Linux",
        "processor": "x86_64 Q",
        "device": "cpu",
    }
    again = Replay(by="CI", **where, torch="2.9", digests=["0" * 64] * 20)
    named = {"protocol": protocol, "mechanism": mechanism, "defense": defense}
    options = "".join(f" --{kind} {text}" for kind, text in named.items())
    attacks = "".join(f" --attack {attack}" for attack in ends)
    score: dict[str, Any] = {"attack": "dyn-opt", "uplink_bits": up, "downlink_bits": down}
    score["area"] = cells[2].area
    score["epsilon"] = epsilon
    fields: dict[str, Any] = {
        **{"id": "0" * 12, "division": "closed", "track": "digits", "rules": 1},
        "name": f"{protocol} {defense.partition(':')[0]}" + (f" {turn + 1}" if turn else ""),
        "authors": "A. Uthor and C. O. Author",
        "link": "https://example.org/paper",
        "tried": number % 4 + 1,
        **named,
        "votes": alphabet in ("SignBits", "Rankings"),
        "alphabet": alphabet,
        "parameters": 151_072,
        "scenario": Scenario(**named, **SET),  # type: ignore[arg-type]
        "seeds": [0, 1, 2, 3, 4],
        **{"data_digest": DATA, "code": "0.1.0+54cdf87a9208", "device": "cpu"},
        "cells": cells,
        "price": paid,
        "score": Score(worst=interval(worst, half), clean=interval(clean, half), **score),
        "command": f"fedbench attack{options}{attacks} --rounds 30 --seeds 0,1,2,3,4",
        "status": ("submitted", "replayed", "contested")[number % 3 if number else 1],
        "ranking": RankingStage(season="2026", seeds=[0, 1, 2, 3, 4], cells=cells, price=paid),
        "replays": [again],
        "rules_digest": "0" * 64,
        "sources": [],
    }
    made = Entry(**fields | changes)
    return made.model_copy(update={"id": made.content_id()})


def write_board(folder: Path, entries: Sequence[Entry], versions: int = 1) -> Path:
    """A board with those entries and so many versions of the rules."""
    (folder / "rules").mkdir(parents=True)
    for version in range(1, versions + 1):
        text = tomli_w.dumps({"version": version, **RULES})
        (folder / "rules" / f"{version}.toml").write_text(text)
    for one in entries:
        path = place(folder, one)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(one.to_json())
    return folder


def rendered(folder: Path, entries: Sequence[Entry], versions: int = 1) -> Path:
    """The pages of a board with those entries."""
    board = write_board(folder / "board", entries, versions)
    render(board, board / "page")
    return board / "page"


def numbered(count: int) -> list[Entry]:
    return [entry(i) for i in range(count)]


class Page(HTMLParser):
    """What a browser would make of a page: its elements, with their attributes and their texts."""

    def __init__(self, source: Path | str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.source = source if isinstance(source, str) else source.read_text("utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"{tag} says an attribute twice"
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    handle_startendtag = handle_starttag

    def handle_data(self, data: str) -> None:
        if self.elements and data.strip():
            self.texts.append((self.elements[-1][0], data))

    def all(self, tag: str, **wanted: str) -> list[dict[str, str]]:
        return [
            attributes
            for name, attributes in self.elements
            if name == tag and all(attributes.get(k) == v for k, v in wanted.items())
        ]

    def rows(self, view: str) -> list[tuple[str, dict[str, str]]]:
        """Key and values by column of every line of the tables of a view, from top to bottom."""
        out: list[tuple[str, dict[str, str]]] = []
        here = False
        for tag, attributes in self.elements:
            here = attributes.get("data-view") == view if "data-view" in attributes else here
            if here and tag == "tr" and "data-entry" in attributes:
                out.append((attributes["data-entry"], {}))
            elif here and tag in ("td", "th") and "data-value" in attributes:
                column = attributes["class"].split()[0].removeprefix("c-")
                out[-1][1][column] = attributes["data-value"]
        return out


@pytest.fixture
def board(tmp_path: Path) -> Path:
    return write_board(tmp_path / "a board #1 %", numbered(9))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A board whose pages are rendered; tests that use it only read."""
    board = write_board(tmp_path_factory.mktemp("site") / "a board #1 %", numbered(9))
    for one in numbered(9):
        archive(place(board, one)).write_bytes(b"")
    render(board, board / "page")
    return board / "page"


def stem(of: Entry) -> str:
    return of.file_name.removesuffix(".json")


@pytest.mark.slow
def test_the_tables_are_there_as_csv_and_json_and_the_page_links_to_them(site: Path) -> None:
    rows = json.loads((site / "leaderboard.json").read_text())
    index = Page(site / "index.html")
    shown = {f"entries/{key}.html": row["rank"] for key, row in index.rows(VIEWS[0])}
    told = {row["page"]: str(row["rank"] or "") for row in rows if row["view"] == VIEWS[0]}
    assert told == shown
    lines = list(csv.DictReader((site / "leaderboard.csv").read_text().splitlines()))
    assert len(lines) == len(rows)
    for line, row in zip(lines, rows, strict=True):
        assert line["uplink_bits"] == str(row["uplink_bits"])
        assert (site / line["page"]).is_file()
    first = next(row for row in rows if row["name"] == "fedavg mean")
    assert (first["worst"], first["clean"], first["attack"]) == (0.11, 0.93, "dyn-opt")
    assert first["epsilon"] is None
    heads = [text for tag, text in index.texts if tag == "h2"]
    promised = {row["promise"] for row in rows if row["epsilon"] is not None}
    assert len(promised) == 2
    for one in promised:
        assert any(f"private ({one})" in head for head in heads), heads
    assert {row["promise"] for row in rows if row["epsilon"] is None} == {""}
    assert {"leaderboard.csv", "leaderboard.json"} <= {a["href"] for a in index.all("a")}


def test_every_entry_has_a_page_and_the_index_a_line_of_it_in_both_views(site: Path) -> None:
    stems = {stem(one) for one in numbered(9)}
    assert {path.stem for path in site.rglob("*.html")} == stems | {"index"}
    index = Page(site / "index.html")
    links = {a["href"] for a in index.all("a") if a["href"].startswith("entries/")}
    assert links == {f"entries/{one}.html" for one in stems}
    # the order, the ranks and the front of the one ranking
    for view in VIEWS:
        groups = [ranking(group, view) for group in comparable_groups(numbered(9))]
        standings = [one for group in groups for one in group.standings]
        rows = index.rows(view)
        assert {key for key, _ in rows} == stems
        assert [key for key, _ in rows] == [stem(one.entry) for one in standings]
        for (_, row), one in zip(rows, standings, strict=True):
            assert row["rank"] == ("" if one.rank is None else str(one.rank))
            assert row["pareto"] == str(int(one.pareto))
            assert one.score is not None
            assert float(row["worst"]) == one.score.worst.mean
            assert float(row["clean"]) == one.score.clean.mean
    fronts = [
        [
            one.pareto
            for group in comparable_groups(numbered(9))
            for one in ranking(group, view).standings
        ]
        for view in VIEWS
    ]
    drawn = [a for a in index.all("a") if "point" in a.get("class", "")]
    assert len(drawn) == 2 * 2 * 2 * 9  # two sizes of two views, of all bits and of those up
    assert sum("best" in a["class"] for a in drawn) == 4 * sum(map(sum, fronts))
    diamonds = index.all("path", **{"class": "sign"})
    assert len(diamonds) == 2 * 2 * 2 * 2  # two have an epsilon


def test_pages_load_nothing_and_run_nothing_but_their_own_script(site: Path) -> None:
    for path in site.rglob("*.html"):
        page = Page(path)
        (policy,) = [m["content"] for m in page.all("meta") if "http-equiv" in m]
        parts = dict(part.split(" ", 1) for part in policy.split("; "))
        assert parts["default-src"] == "'none'"
        for kind, tag in (("script-src", "script"), ("style-src", "style")):
            (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page.source, re.S)
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            assert parts[kind] == f"'sha256-{digest}'"
        for tag, attributes in page.elements:
            assert "src" not in attributes
            assert "style" not in attributes, tag
            assert not [name for name in attributes if name.startswith("on")]
            if tag == "link":
                assert attributes["href"] == "data:,"
    for name in ("page.css", "page.js"):
        text = (TEMPLATES / name).read_text()
        assert not re.search(r"https?:|url\(|@import|fetch\(|innerHTML", text)


HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)",
    "</title><b>&amp;&lt;",
    "javascript:alert(1)",
    "{{ 7 * 7 }}{% raw %}",
    "x" * 80,
    "نظام قوي",
    "🚀 rocket",
    "</script></style>-->",
)


@pytest.mark.slow
def test_whatever_a_name_holds_is_text(tmp_path: Path) -> None:
    entries = [
        entry(i, name=bad, authors=bad, note=bad, device=bad, command=bad)
        for i, bad in enumerate(HOSTILE)
    ]
    one = entry(0)
    kinds = ("protocol", "mechanism", "defense", "dataset", "model", "partition")
    for bad in HOSTILE:
        scenario = one.scenario.model_copy(update=dict.fromkeys(kinds, bad))
        cells = [one.cells[0], one.cells[2].model_copy(update={"attack": bad, "flags": [bad]})]
        score = one.score.model_copy(update={"attack": bad})
        texts: dict[str, Any] = dict.fromkeys(
            ("mechanism", "defense", "alphabet", "data_digest", "code"), bad
        )
        texts["ranking"] = None
        entries.append(entry(0, scenario=scenario, cells=cells, score=score, **texts))
    plain = rendered(tmp_path / "plain", numbered(1))
    allowed = {tag for path in plain.rglob("*.html") for tag, _ in Page(path).elements} | {"wbr"}
    site = rendered(tmp_path, entries)
    for path in site.rglob("*.html"):
        page = Page(path)
        assert {tag for tag, _ in page.elements} <= allowed, path
        assert len(page.all("script")) == len(page.all("style")) == len(page.all("title")[:1]) == 1
        assert not [name for _, at in page.elements for name in at if name.startswith("on")]
        assert all(urlsplit(a["href"]).scheme in ("", "https") for a in page.all("a"))
    index = Page(site / "index.html")
    for bad in HOSTILE:
        assert bad in "".join(text for _, text in index.texts)


@pytest.mark.slow
def test_links_go_to_https_without_an_opener_or_to_a_file_that_is_there(site: Path) -> None:
    elsewhere = site.parents[1] / "pages"
    render(site.parent, elsewhere)
    for out in (site, elsewhere):
        for path in out.rglob("*.html"):
            page = Page(path)
            ids = {at["id"] for _, at in page.elements if "id" in at}
            for link in page.all("a"):
                href = urlsplit(link["href"])
                if href.scheme:
                    assert link["rel"] == "noopener noreferrer"
                    assert link["href"] == "https://example.org/paper"
                elif href.path:
                    assert (path.parent / unquote(href.path)).is_file(), link
                else:
                    assert href.fragment in ids
        first = Page(out / "entries" / f"{stem(entry(0))}.html")
        files = [a["href"].rpartition("/")[2] for a in first.all("a")][-4:-1]
        assert files == [f"{stem(entry(0))}.json", f"{stem(entry(0))}.jsonl.gz", "1.toml"]


def test_a_protocol_that_would_leave_the_folder_is_refused_and_nothing_is_written(
    tmp_path: Path,
) -> None:
    board = write_board(tmp_path / "board", numbered(2))
    bad = entry(1, protocol="../../../evil")
    (board / "closed" / "digits" / "evil.json").write_text(bad.to_json())
    with pytest.raises(ConfigError, match=r"must be named by a-z.*'\.\./\.\./\.\./evil'"):
        render(board, board / "page")
    assert not (board / "page").exists()
    assert not list(tmp_path.rglob("*.html"))


@pytest.mark.slow
def test_the_same_board_gives_the_same_bytes_and_a_broken_entry_leaves_them(board: Path) -> None:
    before = {path: path.read_bytes() for path in render(board, board / "page")}
    assert {path: path.read_bytes() for path in render(board, board / "page")} == before
    (board / "closed" / "digits" / "fsl-000000000000.json").write_text('{"truncated": ')
    with pytest.raises(ConfigError, match="is no entry"):
        render(board, board / "page")
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.slow
def test_pages_of_entries_that_left_are_removed_and_nothing_else(board: Path) -> None:
    gone = entry(3)
    out = board / "page"
    render(board, out)
    # the first is named like one of ours, the last is one of ours under another name
    names = ("fsl-0123456789ab.html", "notes.html", "fsl-0123456789ab.txt", "my copy.html")
    others = [out / "entries" / name for name in names]
    for other in others:
        other.write_text("mine")
    others[-1].write_text((out / "entries" / f"{stem(gone)}.html").read_text())
    place(board, gone).unlink()
    render(board, out)
    assert not (out / "entries" / f"{stem(gone)}.html").exists()
    assert all(other.is_file() for other in others)
    assert len(list((out / "entries").glob("*.html"))) == 8 + 3


def test_an_entry_of_older_rules_says_so(tmp_path: Path) -> None:
    entries = [entry(0), entry(3, rules=2)]
    site = rendered(tmp_path, entries, versions=2)
    said = {key: row["rules"] for key, row in Page(site / "index.html").rows(VIEWS[0])}
    assert said == {stem(entries[0]): "1", stem(entries[1]): "2"}
    pages = [(site / "entries" / f"{stem(one)}.html").read_text() for one in entries]
    assert ["older" in page.split("<body>")[1] for page in pages] == [True, False]
    index = (site / "index.html").read_text().split("<body>")[1]
    assert index.count('class="older"') == len(VIEWS)


@pytest.mark.slow
def test_an_entry_that_was_never_looked_at_within_the_bits_has_no_numbers_there(
    tmp_path: Path,
) -> None:
    late = [cell.model_copy(update={"curve": cell.curve[-1:]}) for cell in entry(0).cells]
    stage = entry(0).ranking
    assert stage is not None
    dear = entry(0, cells=late, ranking=stage.model_copy(update={"cells": late}))
    cheap = entry(4)
    index = rendered(tmp_path, [dear, cheap]) / "index.html"
    rows = dict(Page(index).rows("equal-bits"))
    assert rows[stem(dear)]["worst"] == rows[stem(dear)]["rank"] == ""
    assert rows[stem(cheap)]["worst"] != ""
    assert rows[stem(cheap)]["rank"] == ""  # nothing is left to compare it with
    assert "never looked at within the budget" in index.read_text()


def test_letters_that_turn_a_text_around_are_shown_and_a_name_that_shows_nothing_is_replaced(
    tmp_path: Path,
) -> None:
    turned = entry(4).scenario.model_copy(update={"partition": "iid\u202e\u2066\x1b[31m"})
    blank = entry(4, name="   ", scenario=turned)
    site = rendered(tmp_path / "one", [blank])
    assert f"<bdi>{stem(blank)}</bdi></a>" in (site / "index.html").read_text()
    (path,) = site.glob("entries/*.html")
    text = path.read_text("utf-8")
    assert "iid\ufffd\ufffd\ufffd[31m" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b]", text)
    (index,) = rendered(tmp_path / "none", []).rglob("*.html")
    assert "There are no entries yet." in index.read_text()


@pytest.mark.slow
def test_the_page_of_an_entry_says_what_was_attacked_by_whom_and_what_it_is_worth(
    tmp_path: Path,
) -> None:
    where: dict[str, Any] = {
        "code": "0.1.0+abc",
        "platform": "Linux",
        "processor": "x86_64 Q",
        "device": "H200",
    }
    again = Replay(by="A & Lab", **where, torch="2.9", digests=["0" * 64] * 20)
    one = entry(7, replays=[again], status="contested", name="A & B")
    site = rendered(tmp_path, [one, *numbered(5)])
    page = Page(site / "entries" / f"{stem(one)}.html")
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.source.split("<body>")[1])).split())
    for said in (
        "A & B",
        "37.0 % [31.0, 43.0]",  # the worst case
        "18.0 [12.0, 24.0]",  # what dyn-opt costs
        "somebody who sees the models that the server deploys",
        "The adversary owns 5 clients",
        "the attack's search ended on its bound in some rounds dyn-opt",
        "A & Lab 20 H200, x86_64 Q, Linux, torch 2.9, fedbench 0.1.0+abc",
        "8cf43c50" * 8,
        one.command,
        "\N{EN DASH} of 1",  # a contested entry has no rank among the private ones
    ):
        assert said in text, said
    assert len(page.all("tr", **{"class": "worst"})) == 1


def test_a_system_without_a_mechanism_promises_nothing_and_one_without_a_price_says_so() -> None:
    free, priced = entry(0), entry(7)
    assert priced.price is not None
    unknown = {"epsilon": None}
    price = priced.price.model_copy(update=unknown)
    unpriced = priced.model_copy(update={"score": priced.score.model_copy(update=unknown)})
    assert [words.epsilon(one) for one in (free, priced, unpriced)] == ["n/a", "8.25", "unknown"]
    assert ("ε", "no finite one is known (natural logarithms)") in words.covers(price)
    # a system is named by what is not the default
    assert words.system(entry(2)) == "signsgd + vote"
    assert words.rule(entry(0)) == "trimmed-mean:f=4"
    assert words.system(entry(8)) == "signsgd + randomized-response:p=0.4 + vote"
    nowhere = entry(0).scenario.model_copy(update={"mechanism": "installed-nowhere:a=1"})
    assert words.mechanism(entry(0, scenario=nowhere)) == "installed-nowhere:a=1"
    assert words.attack("dyn-opt:direction=sign,bound=100000.0", entry(0)) == (
        "dyn-opt:direction=sign"
    )
    assert words.knows("installed-nowhere") == "not installed where this page was made"


def test_the_threat_model_says_the_law_of_a_round_and_the_tier_of_the_adversary() -> None:
    whole = words.threat(entry(0))
    assert "A round draws exactly 10 of them, all sets alike." in whole
    fields = {"cohorts": "stratified", "knowledge": "colluders+state"}
    scenario = entry(0).scenario.model_copy(update=fields)
    tier = words.threat(entry(0).model_copy(update={"scenario": scenario}))
    assert tier[1].startswith("A round draws exactly 10 of them, with the malicious clients' share")
    assert set(tier) - set(whole) >= {
        "What an attack is shown at most: the malicious clients read each other's messages; "
        "reads a snapshot of the server's state."
    }
    assert len(tier) == len(whole) + 1


def drawing(*entries: Entry, counted: str = "total") -> Page:
    """The drawing of a race at equal rounds, on a desk."""
    view = RankedView(ranking(list(entries), "equal-rounds"))
    return Page(str(scatter(view, "at-desk", counted)))


def system(bits: float, worst: float, epsilon: float | None = None) -> Entry:
    """An entry with those numbers; with an epsilon it is a diamond."""
    fields = {"uplink_bits": bits, "downlink_bits": 0.0, "epsilon": epsilon}
    score = entry(0).score.model_copy(update={"worst": interval(worst, 0.1), **fields})
    return entry(0, score=score, name=f"{bits:g} {worst:g}")


def test_a_point_lies_where_its_logarithm_and_its_accuracy_say() -> None:
    page = drawing(system(1, 0.25), system(32, 0.95))
    # 846 wide and 362 high, from 0.5 to 64: seven octaves.
    signs = page.all("circle", **{"class": "sign"})
    xs = [40 + 846 / 7, 40 + 846 * 6 / 7]
    assert [float(sign["cx"]) for sign in signs] == pytest.approx(xs, abs=0.1)
    ys = [14 + 0.75 * 362, 14 + 0.05 * 362]
    assert [float(sign["cy"]) for sign in signs] == pytest.approx(ys, abs=0.1)
    whiskers = [path["d"] for path in page.all("path", **{"class": "whisker"}) if "L" in path["d"]]
    assert any(d.endswith(" 14") for d in whiskers)  # 105 % is cut to 100 %
    ticks = [text for tag, text in page.texts if tag == "text"]
    assert set(ticks) >= {"0", "20", "40", "60", "80", "100", "1", "2", "16", "64"}


def test_a_drawing_counts_the_bits_up_alone_where_it_says_so() -> None:
    one = system(1, 0.25)
    two = system(32, 0.95)
    down = two.score.model_copy(update={"downlink_bits": 992.0})
    both = (one, two.model_copy(update={"score": down}))
    names = {"class": "sign"}
    up = [float(sign["cx"]) for sign in drawing(*both, counted="up").all("circle", **names)]
    assert up == pytest.approx([40 + 846 / 7, 40 + 846 * 6 / 7], abs=0.1)
    total = [float(sign["cx"]) for sign in drawing(*both).all("circle", **names)]
    # from 0.5 to 2048: twelve octaves, of which the points are one from the ends
    assert total == pytest.approx([40 + 846 / 12, 40 + 846 * 11 / 12], abs=0.1)


def test_an_entry_is_compared_with_those_that_share_its_seeds() -> None:
    def played(values: list[float], seeds: list[int]) -> Entry:
        worst = interval(statistics.fmean(values), 0.1).model_copy(update={"values": values})
        score = entry(0).score.model_copy(update={"worst": worst})
        return entry(0).model_copy(update={"score": score, "seeds": seeds, "ranking": None})

    ours = played([0.9, 0.8, 0.7, 0.6], [0, 1, 2, 3])
    below = played([0.5, 0.65, 0.75], [2, 3, 4])  # two seeds in common
    theirs = played([0.55, 0.6, 0.8], [2, 1, 0])  # in another order: lost are 0.1, 0.2, 0.15
    (found,) = leads(ours, [ours, below, theirs])
    assert found.other is theirs
    assert found.worst.values == pytest.approx([0.1, 0.2, 0.15])
    assert found.worst.mean == pytest.approx(0.15)
    assert found.verdict == "better"
    (back,) = leads(theirs, [ours])
    assert back.worst.mean == pytest.approx(-0.15)
    assert back.verdict == "worse"
    far = played([0.0, 0.7, 0.0], [0, 1, 2])  # 0.9, 0.1, 0.7 below: Student's leaves [-1, 1]
    assert leads(ours, [far])[0].worst.high == 1.0
    assert leads(far, [ours])[0].worst.low == -1.0
    even = played([0.85, 0.95, 0.7], [0, 1, 2])  # ahead on average, and behind in one seed
    (unsure,) = leads(even, [ours])
    assert (unsure.worst.mean > 0, unsure.verdict) == (True, "open")
    assert leads(ours, [even])[0].verdict == "open"
    (same,) = leads(played([0.9, 0.8, 0.7], [0, 1, 2]), [ours])
    assert (same.worst.low, same.worst.high, same.verdict) == (0, 0, "open")


def test_the_front_is_drawn_in_steps() -> None:
    front = [system(1, 0.2), system(4, 0.6), system(32, 0.9)]
    page = drawing(*front, system(2, 0.1))
    (steps,) = [path["d"] for path in page.all("path", stroke="var(--best)") if "class" not in path]
    heights = [f"{14 + 362 * (1 - worst):g}" for worst in (0.2, 0.6, 0.9)]
    corners = re.findall(r"[ML] (\S+) (\S+)", steps)
    assert [y for _, y in corners[::2]] == [*heights, heights[-1]][: len(corners[::2])]
    classes = [a["class"] for a in page.all("a")]
    assert classes == ["point"] + ["point best"] * 3  # those of the front lie on top


def test_what_is_too_long_is_cut_and_what_has_no_place_is_left_out() -> None:
    assert drawing(system(0.0, 0.5), system(-1.0, 0.5), system(1e300, 0.5)).all("a") == []
    assert cut("x" * 30, 10) == "x" * 9 + "…"
    assert cut("a\n b", 10) == "a b"
    # Names with one beginning lose it; of the last three the first two still begin alike then.
    long = "FedAvg with central noise,"
    names = ["FSL", f"{long} the server clips", f"{long} the server adds", f"{long} plain mean"]
    assert cut_apart(names, 14) == ["FSL", "FedA…clips", "FedA…adds", "FedA…plain me…"]
    assert cut_apart(["x" * 40 + "1", "x" * 40, "x" * 40], 14) == ["xxxx…xxx1", *["xxxx…xxx"] * 2]
    pair = [system(1, 0.25), system(32, 0.95)]
    entries = [one.model_copy(update={"name": f"{long} {i} clips"}) for i, one in enumerate(pair)]
    labels = {text for tag, text in drawing(*entries).texts if tag == "text"}
    assert labels >= {"FedAvg w…0 clips", "FedAvg w…1 clips"}
    bar = words.bar(Interval(mean=0.625, low=0.1, high=1.0, values=[]))
    assert (bar.mean, bar.low, bar.high) == (62.5, 10.0, 100.0)


def test_all_curves_of_an_entry_share_their_axes_and_the_worst_one_is_marked() -> None:
    one = entry(0)
    drawn = curves(one)
    attacks = ["clean", "sign-flip", "dyn-opt", "dyn-opt:direction=sign"]
    assert [attack for attack, _, _ in drawn] == attacks
    assert [worst for _, worst, _ in drawn] == [False, False, True, False]
    for attack, worst, text in drawn:
        page = Page(str(text))
        assert ("text", "1,920 bits") in page.texts
        dashed = [path for path in page.all("path") if "stroke-dasharray" in path]
        assert len(dashed) == (attack != "clean")
        dots = page.all("circle")
        # The first look is at 3 of 30 rounds, the last one at the right end.
        assert [float(dots[i]["cx"]) for i in (0, -1)] == pytest.approx([30 + 21.8, 248.0])
        assert dots[0]["fill"] == ("var(--worst)" if worst else "var(--ink)")
    # 91 % of 118 units above 126.
    assert float(Page(str(drawn[0][2])).all("circle")[-1]["cy"]) == pytest.approx(18.6, abs=0.1)
    free = [p.model_copy(update={"bits": 0.0}) for p in one.cells[0].curve]
    cells = [cell.model_copy(update={"curve": free}) for cell in one.cells]
    assert curves(entry(0, cells=cells)) == []


def colours(scheme: str) -> dict[str, str]:
    css = (TEMPLATES / "page.css").read_text()
    blocks = re.findall(r":root \{(.*?)\}", css, re.S)
    assert len(blocks) == 2
    return dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6});", blocks[scheme == "dark"]))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_signs_stand_out_in_both_schemes(scheme: str) -> None:
    found = colours(scheme)
    for paper in ("paper", "raised"):
        for text in ("ink", "soft", "accent", "worst-ink"):
            assert contrast(found[text], found[paper]) >= 4.5, (text, paper)
        for sign in ("edge", "best", "worst", "focus"):
            assert contrast(found[sign], found[paper]) >= 3, (sign, paper)
    assert set(colours("dark")) == set(colours("light"))


def test_the_page_in_the_repository_is_that_of_its_entries() -> None:
    board = Path(__file__).parents[1] / "leaderboards"
    assert (board / "index.html").exists()
    assert edited(board) == [], "run: fedbench leaderboard render"
