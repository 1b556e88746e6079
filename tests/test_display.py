"""What a user looks at: the live display, the tables and the chart."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from rich.console import Console
from sample_records import LONG, Results, cell, rows, sample_record, sample_round

from fedbench.cli import terminal as live
from fedbench.experiment.cells import Cell, Run, Skipped
from fedbench.experiment.record import Privacy, Record
from fedbench.experiment.scenario import Scenario
from fedbench.figures import systems
from fedbench.results import summary
from fedbench.results.store import Store
from fedbench.sweeps.watch import Watcher
from fedbench.tables import columns, report
from fedbench.tables.columns import ACCURACY
from fedbench.tables.report import results
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import FIRST_COLUMN, grid, narrowed

NAMES = {
    "up": "uplink_bits_per_parameter",
    "entropy": "entropy_bits_per_parameter",
    "own": "local_accuracy",
}


def record(
    of: Cell,
    seed: int,
    accuracy: float,
    *,
    rejected: int = 0,
    flags: Sequence[str] = (),
    **says: Any,
) -> Record:
    """A run of one round; ``says`` changes its result."""
    only = sample_round(0, accuracy, accepted=2 - rejected, rejected_malicious=rejected)
    scenario = of.scenario.model_copy(update={"seed": seed})
    result = {"downlink_bits_per_parameter": 20.31}
    result |= {NAMES.get(name, name): value for name, value in says.items()}
    return sample_record(scenario, [only], result, vote=of.defense == "vote", flags=list(flags))


def sweep() -> Results:
    """Two systems over three seeds; the first cell of the first system is not the clean one."""
    accuracies = {
        cell("fedavg", "mean", "sign-flip"): (0.90, 0.91, 0.92),
        cell("fedavg", "mean", "none"): (0.95, 0.96, 0.97),
        cell("fedavg", "mean", "dyn-opt"): (0.10, 0.10, 0.104),
        cell("fsl", "own", "none"): (0.92, 0.92, 0.92),
        cell("fsl", "own", "rank-reversal"): (0.80, 0.85, 0.90),
        cell("fsl", "own", "sign-flip"): (0.90, 0.90, 0.90),
    }
    return {
        of: [record(of, seed, x, up=20.31 if of.protocol == "fsl" else 32.0) for seed, x in xs]
        for of, xs in ((of, list(enumerate(values))) for of, values in accuracies.items())
    }


def masks() -> Results:
    """A mask protocol with everything that a record can say, beside one with dense floats."""
    found = {}
    for attack in ("none", "rank-reversal"):
        of, dense = cell("fedpm", "mean", attack), cell("fedavg", "mean", attack)
        found[of] = [
            record(of, 0, 0.75, up=1.001, entropy=0.9, model_bits=100, sparsity=0.4, own=0.7),
            record(of, 1, 0.95, up=0.995, entropy=1.0, model_bits=102, sparsity=0.5, own=0.8),
        ]
        found[dense] = [record(dense, seed, 1.0, sparsity=0.0) for seed in (0, 1)]
    return found


def printed(results: Results | list[summary.Row], width: int = 80, **options: Any) -> str:
    console = Console(file=io.StringIO(), width=width, **{"force_terminal": False} | options)
    table = rows(results) if isinstance(results, dict) else results
    console.print(report.terminal(table, console.options))
    return text_on(console)


def text_on(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def single(text: str) -> str:
    return " ".join(text.split())


def line(text: str, start: str, after: str = "") -> str:
    """The first line that starts so, after the first line that starts otherwise; single spaces."""
    lines = [single(one) for one in text.splitlines()]
    first = next(i for i, one in enumerate(lines) if one.startswith(after))
    return next(one for one in lines[first:] if one.startswith(start))


# the table


def test_a_system_is_named_once_its_clean_row_first_and_its_lowest_row_marked() -> None:
    text = printed(sweep(), 120).partition("worst case")[0]
    # 95, 96, 97: sample deviation 1, population deviation 0.8
    assert line(text, "none (clean)").startswith("none (clean) 96.0 ± 1.0 ")
    assert line(text, "sign-flip").startswith("sign-flip 91.0 ± 1.0 5.0 ")
    assert text.count("fedavg + mean") == 1
    lines = [one.strip() for one in text.splitlines()]
    assert lines[lines.index("fedavg + mean") + 1].startswith("none (clean)")
    assert set(lines[lines.index("fsl + vote") - 1]) == {"─"}
    marked = [one.split()[0] for one in text.partition("percent of")[0].splitlines() if "◀" in one]
    assert marked == ["dyn-opt", "rank-reversal"]
    text = printed(sweep(), force_terminal=True, color_system="standard")
    coloured = [one for one in text.splitlines() if "\x1b[1;31m" in one]
    assert coloured
    assert all("◀ worst" in one for one in coloured)


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("protocol", ["fedavg", LONG])
def test_tables_fit_the_width_and_have_no_control_codes(width: int, protocol: str) -> None:
    results = {}
    for attack, x in {"none": 0.6, "sign-flip:scale=4.0,via=codec": 0.6, "dyn-opt": 0.5}.items():
        of = cell(protocol, "trimmed-mean", attack)
        results[of] = [record(of, seed, x, flags=["a doubt " * 20]) for seed in (0, 1)]
    text = printed(results, width)
    assert "\x1b" not in text
    assert max(len(one) for one in text.splitlines()) <= width
    assert "…" not in text  # nothing is cut off
    last = single(text[text.rindex("─") :])  # the only line of the worst cases
    assert all(part in last for part in protocol.split(","))  # broken at spaces
    assert "60.0 ± 0.0 50.0 ± 0.0 50.0 dyn-opt 32.00 20.31 n/a" in last


def test_wide_terminals_show_all_columns_and_narrow_ones_fewer_in_one_table() -> None:
    wide, narrow = printed(sweep(), 120), printed(sweep(), 80)
    assert line(wide, "dyn-opt") == (
        "dyn-opt ◀ worst 10.1 ± 0.2 85.9 51.0 8.0 21.0 91.0 32.00 20.31 n/a"
    )
    assert "omitted" not in wide
    assert line(narrow, "dyn-opt") == "dyn-opt ◀ worst 10.1 ± 0.2 85.9 21.0 32.00 20.31 n/a"
    assert narrow.count("dyn-opt ◀ worst") == 1
    assert line(narrow, "omitted") == (
        "omitted client mean, client std, client max: the Markdown table has them"
    )
    last = printed(sweep(), 50).splitlines()  # there names break and numbers do not
    assert any("92.0 ± 0.0  85.0 ± 5.0" in one for one in last)
    assert max(map(len, last)) <= 50


def test_the_last_table_ranks_worst_cases_beside_bits_and_epsilon() -> None:
    fedavg = "fedavg + mean 96.0 ± 1.0 10.1 ± 0.2 10.1 dyn-opt 32.00 20.31 n/a"
    last = [single(one) for one in printed(sweep()).splitlines()[-2:]]
    assert last == ["fsl + vote 92.0 ± 0.0 85.0 ± 5.0 85.0 rank-reversal 20.31 20.31 n/a", fedavg]
    results = {of: found for of, found in sweep().items() if of.protocol == "fedavg" or of.clean}
    last = [single(one) for one in printed(results).splitlines()[-2:]]  # nobody attacked fsl yet
    assert last == [fedavg, "fsl + vote 92.0 ± 0.0 n/a n/a n/a 20.31 20.31 n/a"]


def test_a_system_without_a_clean_run_has_no_clean_accuracy_in_the_last_table() -> None:
    attacked = {of: found for of, found in sweep().items() if not of.clean}
    table = report.worst_cases(rows(attacked))
    heads = [" ".join(column.heading.split()) for column in table.columns]
    assert heads[:5] == ["system", "clean %", "worst case %", "by seed %", "attack"]
    assert heads[5:] == ["up bits", "down bits", "ε"]
    assert [line.texts[:3] for line in table.lines] == [
        ["fsl + vote", "n/a", "85.0 ± 5.0"],
        ["fedavg + mean", "n/a", "10.1 ± 0.2"],
    ]


def test_a_table_loses_its_last_column_only_where_it_does_not_fit() -> None:
    table = Table([Column("a", "left"), Column("bb"), Column("ccc")], [Line(["1", "2", "3"])])
    whole = 1 + 2 + 2 + 2 + 3  # with two spaces between columns
    assert len(narrowed(table, whole).columns) == 3
    fewer = narrowed(table, whole - 1)
    assert [column.heading for column in fewer.columns] == ["a", "bb"]
    assert [list(line.texts) for line in fewer.lines] == [["1", "2"]]


def test_what_a_system_costs_is_said_to_be_the_mean_over_its_runs() -> None:
    note = "of a whole system the mean over its runs, clean and attacked"
    assert note in columns.captions(rows(sweep()))["bits"]
    clean = {of: found for of, found in sweep().items() if of.clean}
    assert note not in columns.captions(rows(clean))["bits"]  # a system is its clean row


def test_an_adversary_that_chooses_for_every_run_stands_beside_the_worst_case() -> None:
    # Means are 50 and 53.3; the lowest of each seed are 20, 10 and 50, so 26.7 on the average.
    accuracies = {
        "none": (0.9, 0.9, 0.9),
        "sign-flip": (0.2, 0.8, 0.5),
        "dyn-opt": (0.9, 0.1, 0.6),
        "ipm": (0.95, 0.95),  # a seed is missing
    }
    cells = {cell("fedavg", "mean", attack): xs for attack, xs in accuracies.items()}
    played = {of: [record(of, s, x) for s, x in enumerate(xs)] for of, xs in cells.items()}
    later = {of: runs for of, runs in played.items() if of.attack != "ipm"}
    (worst,) = report.worst_cases(rows(later)).lines
    assert worst.texts[1:5] == ["90.0 ± 0.0", "50.0 ± 30.0", "26.7", "sign-flip"]
    (worst,) = report.worst_cases(rows(played)).lines
    assert worst.texts[3] == "15.0"  # over the seeds that all attacks have
    assert "by seed: mean over seeds of the lowest accuracy of each seed" in report.markdown(
        rows(later)
    )
    single_seed = {of: runs[:1] for of, runs in later.items()}
    assert "by seed" not in report.markdown(rows(single_seed))  # it is the worst case itself


def test_means_stand_below_each_other_whatever_the_deviation() -> None:
    accuracies = {"none": (1.0, 1.0), "dyn-opt": (0.01, 0.41)}
    cells = {cell("fedavg", "mean", attack): xs for attack, xs in accuracies.items()}
    text = printed({of: [record(of, s, x) for s, x in enumerate(xs)] for of, xs in cells.items()})
    found = [one for one in text.partition("percent of")[0].splitlines() if "±" in one]
    assert len({one.index("±") for one in found}) == 1
    assert "100.0 ± 0.0" in found[0]
    assert " 21.0 ± 28.3" in found[1]


def test_epsilon_is_a_number_or_not_applicable_or_unknown() -> None:
    noisy = "central:noise=1.0"
    for mechanism, epsilons, said in (
        ("none", [None], "n/a"),
        (noisy, [None], "unknown"),
        (noisy, [2.5, 3.14159], "3.14"),
        (noisy, [2.5, None], "unknown"),  # one seed's is not finite
    ):
        of = cell("fedavg", "mean", "none", mechanism)
        found = [record(of, seed, 0.5, epsilon=epsilon) for seed, epsilon in enumerate(epsilons)]
        assert columns.epsilon(rows({of: found})[0]) == said


def test_a_price_that_is_not_finite_is_the_most_and_is_never_no_mechanism() -> None:
    # The noise is the protocol's own, so its mechanism is none.
    price: dict[str, Any] = {"delta": 1e-5, "unit": "client"}
    price |= {"sees": "messages", "adjacency": "zero-out"}
    results = {}
    for attack, spent in (("none", 2.5), ("sign-flip", None)):
        of = cell("skellam", "mean", attack)
        privacy = Privacy(epsilon=spent, sampler="", winner="rdp", bounds={"rdp": spent}, **price)
        played = record(of, 0, 0.5, epsilon=spent)
        results[of] = [played.model_copy(update={"privacy": privacy})]
    shown = [played.summary()["ε"] for (played,) in results.values()]
    assert shown == ["2.5", "unknown"]
    table = rows(results)
    assert [columns.epsilon(row) for row in table] == ["2.50", "unknown"]
    (claim,) = columns.guarantees(table)
    assert claim.startswith("skellam + mean: ε = unknown at δ = 1e-05, per client, zero-out; ")
    page = report.markdown(table)
    assert f"\nPrivacy:\n\n- {claim}\n" in page
    assert f"privacy: - {claim}" in single(printed(table))
    for text in (single(printed(table, 120)), page):
        assert "; natural logarithms, and what it covers stands below" in text


def test_a_guarantee_is_that_with_most_provisos_and_names_who_sees_what() -> None:
    price: dict[str, Any] = {"epsilon": 2.0, "delta": 2.5e-6, "unit": "example", "sees": "sum"}
    price |= {"adjacency": "zero-out", "sampler": "", "winner": "rdp", "bounds": {"rdp": 2.0}}
    results = {}
    for attack, note in (("none", ""), ("sign-flip", "for others"), ("ipm", "")):
        of = cell("skellam", "mean", attack)
        played = record(of, 0, 0.5, epsilon=2.0)
        results[of] = [played.model_copy(update={"privacy": Privacy(note=note, **price)})]
    assert columns.guarantees(rows(results)) == [
        "skellam + mean: ε = 2.00 at δ = 2.5e-06, per example, zero-out; "
        "before who sees the sum of a round, and who took part; the least of rdp 2.00; for others"
    ]


def test_a_column_is_shown_only_if_it_says_something_of_a_row() -> None:
    of = cell("fedpm", "mean", "dyn-opt")
    text = printed({of: [record(of, seed, 0.5, rejected=1) for seed in (0, 1)]})
    assert "rejected" in text
    assert line(text, "dyn-opt").split()[-1] == "2"
    said = {"entropy bits": "entropy", "own model %": "own model", "zeros %": "zeros"}
    for shown, measured in (
        ([], record(of, 0, 0.5, sparsity=0.0)),
        (["entropy bits"], record(of, 0, 0.5, entropy=0.0)),
        (["own model %"], record(of, 0, 0.5, own=0.0)),
        (["zeros %"], record(of, 0, 0.5, sparsity=0.1)),
    ):
        found = rows({of: [measured]})
        text = report.markdown(found)
        heads = text.splitlines()[0]
        assert "rejected" not in heads
        assert [head for head in said if f"| {head} |" in heads] == shown
        assert [head for head, term in said.items() if term in columns.captions(found)] == shown
        assert ("model bits" in heads) == ("zeros %" in heads)  # what zeros make of the storage


def test_what_masks_cost_stands_beside_what_was_measured() -> None:
    text = printed(masks(), 160)
    assert line(text, "none (clean)", after="fedpm") == (
        "none (clean) 85.0 ± 14.1 51.0 8.0 21.0 91.0 75.0 0.998 0.950 20.31 1.010 45.0 n/a"
    )
    assert line(text, "none (clean)", after="fedavg") == (
        "none (clean) 100.0 ± 0.0 51.0 8.0 21.0 91.0 n/a 32.00 n/a 20.31 32.00 0.0 n/a"
    )
    assert "a model of its own" in single(text)
    assert "an estimate, the empirical entropy" in single(text)
    assert [single(one) for one in text.splitlines()[-2:]] == [
        "fedavg + mean 100.0 ± 0.0 100.0 ± 0.0 100.0 rank-reversal 32.00 20.31 n/a",
        "fedpm + mean 85.0 ± 14.1 85.0 ± 14.1 85.0 rank-reversal 0.998 20.31 n/a",
    ]
    text = report.markdown(rows(masks()))
    assert "| own model % | up bits | entropy bits | down bits | model bits | zeros % |" in text
    assert "| 91.0 | 75.0 | 0.998 | 0.950 | 20.31 | 1.010 | 45.0 | n/a |" in text
    assert "- own model: what each sampled client last sent" in text


def test_markdown_has_a_heading_for_every_cell_of_a_line() -> None:
    lines = [x for x in report.markdown(rows(sweep())).splitlines() if x.startswith("|")]
    first = lines[: 2 + len(sweep())]
    assert first[0].startswith("| system | attack | accuracy % |")
    assert len({line.count(" | ") for line in first}) == 1


def test_bits_behind_a_secure_sum_are_said_to_be_those_of_masked_residues() -> None:
    of = Cell(Scenario(protocol="signsgd", sees="sum"))
    results = {of: [record(of, 0, 0.5)]}
    for shown in (single(printed(results, 120)), report.markdown(rows(results))):
        assert f"; up, {columns.MASKED}" in shown
    assert columns.MASKED in report.markdown(rows(results | sweep()))  # if any system has one
    assert columns.MASKED not in report.markdown(rows(sweep()))


def test_the_spare_columns_of_masks_leave_a_narrow_table_group_by_group() -> None:
    heads = "accuracy impact client client client client own up entropy down model zeros"
    fewer = "accuracy impact client own up entropy down model zeros"
    least = "accuracy impact client own up down zeros"
    shown_at = {160: heads, 110: fewer, 92: least, 80: "accuracy impact client up down"}
    for width, shown in shown_at.items():
        text = printed(masks(), width).partition("worst case")[0]
        (top,) = [one for one in text.splitlines() if one.startswith("system ")]
        assert top.split()[1:] == shown.split()
        assert text.count("rank-reversal ◀ worst  ") == 2  # names stay in one line
        assert max(map(len, text.splitlines())) <= width
        terms = {word for word in ("entropy", "model", "zeros") if f"\n{word} " in text}
        assert terms == {word for word in ("entropy", "model", "zeros") if word in shown}
    # too wide without spare columns: what it costs stands in a second table
    found = rows(masks())
    first, second = report.layout(found, 50).values()
    assert [column.heading.split()[0] for column in first] == ["accuracy", "impact"]
    assert [column.heading.split()[0] for column in second] == ["up", "down", "ε"]
    missed = report.left_out(found, [*first, *second])
    assert missed.startswith("client mean, client std, client min")
    # fits to the character
    every = columns.saying(found, columns.ALL)
    whole = FIRST_COLUMN + report.span(found, every)
    assert report.layout(found, whole) == {report.TITLE: every}
    (fewest,) = report.layout(found, whole - 1).values()
    assert [column for column in every if column not in fewest] == list(columns.SPARE[0])
    rule = next(one for one in printed(found, whole).splitlines() if one.startswith("─"))
    name = max(len(f"  rank-reversal {columns.WORST}"), len("fedavg + mean"))
    assert len(rule) == whole - FIRST_COLUMN + name  # the span is what the columns take


def test_one_seed_has_no_deviation_and_while_some_are_missing_no_table_says_worst_case() -> None:
    of = cell("fedavg", "mean", "dyn-opt")
    text = printed({of: [record(of, 0, 0.5)]})
    assert line(text, "dyn-opt").startswith("dyn-opt ◀ worst 50.0 n/a ")
    assert "n/a: one seed" in text
    results = sweep()
    of = cell("fedavg", "mean", "sign-flip")
    text = printed(results | {of: results[of][:1]})
    assert line(text, "sign-flip").startswith("sign-flip (1 of 3 seeds)")
    assert "± sample standard deviation over 3 seeds" in single(text)
    assert line(text, "dyn-opt").startswith("dyn-opt ◀ lowest so far")
    planned = [*results, cell("fedavg", "mean", "alie"), cell("fedavg", "mean", "ipm")]
    partial = summary.rows(planned, results)
    for text in (single(printed(partial)), report.markdown(partial)):
        assert "2 of 4 attacks of fedavg + mean are missing: the lowest accuracy is no" in text
        assert "dyn-opt ◀ lowest so far" in text
        assert "rank-reversal ◀ worst" in text  # every attack of this system has finished
        assert "◀ worst: the lowest accuracy of an attack; ◀ lowest so far: the lowest" in text
        assert "worst case %" not in text
    assert "| dyn-opt (2 of 4 attacks) |" in report.markdown(partial)
    # titles of pictures and of the last table, where one of two systems has not finished
    assert columns.in_worst_case(partial) == ", lowest so far,"
    assert columns.worst_case(partial) == "lowest so far"
    assert columns.in_worst_case(rows(sweep())) == " in the worst case"
    assert columns.in_worst_case([row for row in partial if row.cell.clean]) == ""
    both = summary.rows([*planned, cell("fsl", "own", "ipm")], results)
    assert columns.unfinished(both).startswith(
        "2 of 4 attacks of fedavg + mean and some of 1 other system are missing: "
    )
    assert "| rank-reversal (2 of 3 attacks) |" in report.markdown(both)
    assert "by seed" not in report.markdown(rows({of: r for of, r in results.items() if of.clean}))
    alone = [row for row in partial if row.missing]
    text = single(printed(alone))
    assert "in percentage points; ◀ lowest so far: the lowest accuracy, of a system" in text
    assert "◀ worst" not in text
    # seeds that are planned and not played are missing too
    assert {row.missing for row in summary.rows(list(results), results, seeds=3)} == {0}
    assert {row.missing for row in summary.rows(list(results), results, seeds=4)} == {2}


def test_a_system_costs_the_mean_bits_and_the_largest_epsilon_of_all_its_cells() -> None:
    clean, attack = (cell("fedavg", "mean", name, "dp-fedavg") for name in ("none", "sign-flip"))
    results = {
        clean: [record(clean, seed, 0.9, up=30.0, epsilon=5.39) for seed in (0, 1)],
        attack: [record(attack, seed, 0.2, up=20.0, epsilon=3.78) for seed in (0, 1)],
    }
    worst = report.worst_cases(rows(results)).lines[0].texts
    assert worst[5:] == ["25.00", "20.31", "5.39"]
    price = systems.systems(rows(results))[0].cost
    assert (price["uplink_bits"], price["epsilon"]) == (25.0, 5.39)
    results[clean][0] = record(clean, 0, 0.9, up=30.0)  # a price that is not finite
    assert report.worst_cases(rows(results)).lines[0].texts[-1] == "unknown"


def test_each_doubt_is_listed_once_with_its_cells() -> None:
    results = sweep()
    for of in list(results)[:2]:
        results[of] = [record(of, seed, 0.5, flags=["is it one?"]) for seed in (0, 1, 2)]
    text = printed(results, 120)
    assert text.count("is it one?") == 1
    doubt = "- is it one?: fedavg + mean / sign-flip; fedavg + mean / none"
    assert doubt in text
    assert f"\nDoubts:\n\n{doubt}\n" in report.markdown(rows(results))
    assert "doubts" not in printed(sweep())


def test_an_ascii_output_gets_ascii() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    console = Console(file=out, width=80, force_terminal=False)
    console.print(report.terminal(rows(sweep()), console.options))
    text = raw.getvalue().decode("ascii")
    assert "96.0 +- 1.0" in text
    assert "dyn-opt <- worst" in text


def test_combinations_that_cannot_exist_are_merged_by_reason() -> None:
    why = "attack rank-reversal works on Rankings, but fedavg sends FloatVectors"
    bits = "defense bits works on SignBits, but fedavg sends FloatVectors"
    rules = ("mean", "median", "mean")
    skipped = [Skipped("fedavg", rule, "rank-reversal", why) for rule in rules]
    skipped += [Skipped("fedavg", "bits", attack, bits) for attack in ("none", "sign-flip")]
    assert report.skipped_lines(skipped) == [
        f"fedavg + mean, median / rank-reversal: {why}",
        f"fedavg + bits / none, sign-flip: {bits}",
    ]


# the live display


def terminal(height: int = 30) -> Console:
    out = io.StringIO()
    return Console(file=out, width=80, height=height, force_terminal=True, color_system=None)


def drawn(watcher: Watcher, console: Console) -> list[str]:
    """What the live display shows at this moment."""
    assert isinstance(watcher, live.TerminalWatcher)
    return [
        "".join(segment.text for segment in one).rstrip() for one in console.render_lines(watcher)
    ]


def test_outside_a_terminal_each_run_is_a_plain_line() -> None:
    results = sweep()
    of = cell("fedavg", "mean", "dyn-opt")
    out = io.StringIO()
    console = Console(file=out, width=40, force_terminal=False)
    with live.watcher(console, list(results), [0, 1, 2]) as watcher:
        watcher.started(of, 0)
        watcher.round(of, 0, sample_round(0))
        watcher.finished(of, record(of, 0, 0.102))
        watcher.failed(of, 1, "[boom] it broke")
    assert out.getvalue() == (
        "[ 1/18] fedavg + mean / dyn-opt, seed 0: accuracy 10.2 %, 5.3 s\n"
        "[ 2/18] fedavg + mean / dyn-opt, seed 1: failed: [boom] it broke\n"
    )


def test_a_run_has_a_line_until_it_moves_to_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    console = terminal()
    of = cell("fedavg", "mean", "dyn-opt")
    watcher = live.watcher(console, [of], [0, 1], Store(tmp_path))
    watcher.started(of, 0)
    for step in range(10):
        watcher.round(of, 0, sample_round(step, 0.5 if step == 4 else None))
    now = 120.0  # ten rounds in 20 s: 30 more take 60 s; the other run another 80 s
    run, overall = drawn(watcher, console)[:2]
    assert run.startswith("fedavg + mean / dyn-opt, seed 0")
    assert run.endswith("round 10/40  50.0 %  1:00 left")
    assert run.count("━") == 3  # of 12
    assert overall.startswith("0 of 2 runs done, 1 running ")
    assert single(overall).split(" ")[7] == "━╸"  # an eighth of 12
    assert overall.endswith("0:20 elapsed  2:20 left")
    watcher.finished(of, record(of, 0, 0.102))
    watcher.finished(of, record(of, 1, 0.102))
    watcher.round(of, 0, sample_round(39))  # its queue is slower than its result
    lines = drawn(watcher, console)
    assert lines[0].startswith("2 of 2 runs done")
    assert not any("round" in one for one in lines)
    assert any(single(one) == "dyn-opt ◀ worst 10.2 ± 0.0 n/a" for one in lines)


def test_runs_that_had_a_record_are_in_the_table_of_the_display(tmp_path: Path) -> None:
    console = terminal()
    clean = cell("fedavg", "mean", "none")
    of = cell("fedavg", "mean", "alie")
    store = Store(tmp_path)
    record(clean, 0, 0.9).write(tmp_path).rename(store.path(Run(clean, 0)))
    watcher = live.watcher(console, [clean, of], [0], store)
    watcher.recorded(clean, 0)
    assert "none (clean) 90.0" in map(single, drawn(watcher, console))
    watcher.finished(of, record(of, 0, 0.7))
    assert "alie ◀ worst 70.0 20.0" in map(single, drawn(watcher, console))


def test_without_a_store_the_display_has_no_table() -> None:
    console = terminal()
    of = cell("fedavg", "mean", "alie")
    watcher = live.watcher(console, [of], [0, 1])
    watcher.recorded(of, 0)
    watcher.finished(of, record(of, 1, 0.7))
    (overall,) = drawn(watcher, console)
    assert overall.startswith("2 of 2 runs done, 0 running ")


def test_the_display_counts_runs_that_failed() -> None:
    console = terminal()
    of = cell("fedavg", "mean", "dyn-opt")
    watcher = live.watcher(console, [of], [0, 1, 2])
    watcher.finished(of, record(of, 0, 0.5))
    assert drawn(watcher, console)[0].startswith("1 of 3 runs done, 0 running  ━")
    watcher.failed(of, 1, "it broke")
    assert drawn(watcher, console)[0].startswith("2 of 3 runs done, 0 running, 1 failed  ━")


def test_as_many_of_the_last_rows_are_shown_as_fit_the_height() -> None:
    console = terminal()
    every = rows(sweep())  # of two systems
    for height in range(20):
        shown = [*live.last_rows(every, height), None][0]
        counts = {
            first: len(
                console.render_lines(grid(results("", every[first:], ACCURACY), console.options))
            )
            for first in range(len(every))
        }
        fitting = [first for first, count in counts.items() if count <= height]
        assert shown == (every[fitting[0]] if fitting else None), height


@pytest.mark.slow
@pytest.mark.parametrize("height", [8, 12, 16, 24])
def test_the_display_fits_the_height_and_keeps_the_last_rows(height: int, tmp_path: Path) -> None:
    console = terminal(height)
    cells = [cell(LONG, "mean", f"sign-flip:scale={i}.0") for i in range(1, 20)]
    watcher = live.watcher(console, cells, [0, 1], Store(tmp_path))
    for of in cells:
        watcher.finished(of, record(of, 0, 0.5))
        watcher.started(of, 1)
    lines = drawn(watcher, console)
    assert len(lines) < height
    assert any("more" in one for one in lines)
    if height >= 12:
        assert lines[-1].strip().startswith("sign-flip:scale=19.0")


def test_ctrl_c_gives_the_terminal_back() -> None:
    console = terminal()
    of = cell("fedavg", "mean", "dyn-opt")

    def interrupted() -> None:
        with live.watcher(console, [of], [0]) as watcher:
            watcher.started(of, 0)
            watcher.failed(of, 0, "it broke")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    text = text_on(console)
    assert text.index("\x1b[?25l") < text.rindex("\x1b[?25h")  # cursor hidden, then shown
    assert "fedavg + mean / dyn-opt, seed 0: failed: it broke" in text
    with live.watcher(console, [of], [0]):  # a second display can start
        pass


def test_a_second_ctrl_c_leaves_the_cursor_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    console = terminal()
    watcher = live.watcher(console, [cell("fedavg", "mean", "none")], [0])
    assert isinstance(watcher, live.TerminalWatcher)
    stop = watcher._live.stop
    watcher.__enter__()
    monkeypatch.setattr(watcher._live, "stop", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        watcher.__exit__(None, None, None)
    assert text_on(console).endswith("\x1b[?25h")
    stop()
