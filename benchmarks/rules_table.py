"""Rules against the ensemble, as Markdown: the tables of the defenses in docs/results.md.

``python benchmarks/rules_table.py STORE`` for one of ``benchmarks/six_rules.toml``,
``assumed_f.toml``, ``defense_draws.toml`` and their like. For each protocol a row per rule (and per
value of what else was varied): accuracy without attack, the two worst attacks, and of rules that
leave rows out the rates over all attacks; mean and sample standard deviation over the seeds.

``--by ATTACK`` (repeated) shows these attacks instead of the worst ones; ``--draws`` says how far
apart the means of several defense draws are, beside the spread over seeds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from fedbench.core.registry import split
from fedbench.results.gather import cells_of, gather
from fedbench.results.summary import Row, rows

Systems = dict[tuple[str, str], dict[str, Row]]


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("store", type=Path)
    parser.add_argument("--by", action="append", default=[], metavar="ATTACK")
    parser.add_argument("--draws", action="store_true")
    given = parser.parse_args()
    cells = cells_of(gather([given.store]))
    table = rows(list(cells), cells)
    if given.draws:
        print("\n".join(draws(table)))
        return
    systems: Systems = {}
    for row in table:
        mine = systems.setdefault((row.cell.scenario.protocol, named(row)), {})
        if attack(row) in mine:
            sys.exit(f"attacks of a rule must differ in what the table says, got {attack(row)}")
        mine[attack(row)] = row
    for protocol in dict.fromkeys(protocol for protocol, _ in systems):
        rules = {rule: of for (its, rule), of in sorted(systems.items()) if its == protocol}
        print(f"\n### `{split(protocol)[0]}`\n")
        print("\n".join(by_attack(rules, given.by) if given.by else by_worst(rules)))


def named(row: Row) -> str:
    """The rule, and what of the scenario it shares with no other row of that rule."""
    scenario = row.cell.scenario
    names = "+".join(split(part)[0] for part in scenario.defense.split("+"))
    if "declared" not in row.cell.varied or names.startswith("oracle+"):
        return names
    share = scenario.malicious if scenario.declared is None else scenario.declared
    return f"{names}, told {100 * share:g} %"


def attack(row: Row) -> str:
    """Its name, with the settings that tell it from another one of the ensemble."""
    name, given = split(row.cell.attack)
    settings = [x for key, x in given.items() if key in ("direction", "rest")]
    budget = given.get("budget", "1.0")
    return ", ".join([name, *settings, *([] if budget == "1.0" else [f"budget {float(budget):g}"])])


def by_worst(systems: dict[str, dict[str, Row]]) -> list[str]:
    """A line a rule: without attack, under the two that do most, and whom it left out."""
    lines = [
        "| rule | no attack | worst attack | | second | | left out: malicious | benign |",
        "|:--|--:|:--|--:|:--|--:|--:|--:|",
    ]
    for rule, of in systems.items():
        clean = of.get("none")
        hostile = sorted(
            (row for row in of.values() if row is not clean), key=lambda row: row.accuracy
        )
        if len(hostile) < 2:
            continue
        worst, second = hostile[:2]
        lines.append(
            f"| {rule} | {said(clean)} | {attack(worst)} | **{said(worst)}** | {attack(second)} | "
            f"{said(second)} | {rate([r['true_positive_rate'] for r in hostile])} | "
            f"{rate([r['false_positive_rate'] for r in hostile])} |"
        )
    return lines


def by_attack(systems: dict[str, dict[str, Row]], names: list[str]) -> list[str]:
    """A line a rule, a column each of these attacks."""
    lines = ["| rule | " + " | ".join(names) + " |", "|:--" + "|--:" * len(names) + "|"]
    for rule, of in systems.items():
        lines.append(f"| {rule} | " + " | ".join(said(of.get(name)) for name in names) + " |")
    return lines


def draws(table: list[Row]) -> list[str]:
    """Lines of a table: for each rule and attack the mean over all, and both spreads."""
    lines = [
        "| rule | attack | accuracy | between draws | between seeds |",
        "|:--|:--|--:|--:|--:|",
    ]
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in table:
        groups.setdefault((named(row), attack(row)), []).append(row)
    for (rule, name), of in groups.items():
        if len(of) < 2:
            continue
        means = [row.accuracy for row in of]
        seeds = statistics.fmean(row.accuracy_std for row in of)
        lines.append(
            f"| {rule} | {name} | {100 * statistics.fmean(means):.1f} | "
            f"{100 * statistics.stdev(means):.1f} | {100 * seeds:.1f} |"
        )
    return lines


def rate(rates: list[float | None]) -> str:
    """Mean over the attacks, in percent; empty for a rule that leaves nobody out."""
    measured = [x for x in rates if x is not None]
    return f"{100 * statistics.fmean(measured):.0f}" if measured else ""


def said(row: Row | None) -> str:
    if row is None:
        return ""
    return f"{100 * row.accuracy:.1f} ± {100 * row.accuracy_std:.1f}"


if __name__ == "__main__":
    main()
