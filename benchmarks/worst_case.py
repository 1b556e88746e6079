"""Worst of a fixed ensemble beside the adaptive attack, for every protocol and its usual rules.

    python benchmarks/worst_case.py plan > worst_case.toml
    fedbench sweep worst_case.toml --out STORE
    python benchmarks/worst_case.py table STORE [STORE ...]

The ensemble of an alphabet is the mandatory list of the newest rules without their adaptive
attacks. The setting is that of the track `mnist-5k` in version 2 of the leaderboard's rules, with
the small network `micro`; later versions train ten times as long, in stratified cohorts. Accuracy
in percent, mean and sample standard deviation over the seeds; of an ensemble that of the attack
with the lowest mean. Seconds are those of a seed, with training and evaluation, of all runs of an
ensemble together.
"""

import argparse
import json
import statistics
from pathlib import Path

from fedbench.core import registry
from fedbench.leaderboard.rules import Rules, newest
from fedbench.results.gather import cells_of, gather
from fedbench.results.summary import Row, rows

SEEDS = (0, 1, 2)
SCENARIO = {
    "dataset": "mnist-5k",
    "model": "micro",
    "partition": "dirichlet:beta=0.3",
    "clients": 50,
    "per_round": 10,
    "cohorts": "random",
    "malicious": 0.1,
    "rounds": 20,
    "epochs": 1,
    "batch_size": 8,
    "eval_every": 20,
}
RULES = {
    "fedavg": ("mean", "median", "multi-krum", "centered-clipping", "geometric-median"),
    "fsl": ("own", "median"),
    "fedpm": ("own", "trimmed-mean"),
    "drive": ("mean", "median"),
    "worker-momentum": ("nna",),
    "rosdhb": ("nnm+trimmed-mean",),
    "byz-ef21": ("trimmed-mean",),
    "byz-dasha-page": ("geometric-median",),
}
RELATIVES = (  # of a protocol that is played before them: the same messages from other training
    *("cast", "fedpaq", "fedprox", "fedmrns", "stochastic-sign", "randk", "feddrop", "fedlaplace"),
    *("fedmog", "pbm", "skellam"),
)


def systems() -> list[tuple[str, str]]:
    """Return every installed protocol with its usual rules, those with several rules first."""
    chosen = [(name, rule) for name, rules in RULES.items() for rule in rules]
    others = [name for name in registry.names("protocol") if name not in (*RULES, *RELATIVES)]
    return chosen + [(name, "own") for name in (*others, *RELATIVES)]


def ensemble(protocol: str, rules: Rules) -> list[str]:
    """Return the mandatory attacks on a protocol's alphabet but the adaptive ones."""
    alphabet = registry.load("protocol", protocol).sends.__name__
    return [attack for attack in rules.attacks(alphabet) if attack not in rules.adaptive]


def plan(board: Path) -> str:
    """Return the sweep as TOML: one scenario, and a grid for every system."""
    rules = newest(board)
    lines = ['title = "Worst of the ensemble, and auto"', f"seeds = {list(SEEDS)}"]
    lines += ["", "[scenario]"]
    lines += [f"{name} = {json.dumps(value)}" for name, value in SCENARIO.items()]
    for protocol, rule in systems():
        attacks = [*ensemble(protocol, rules), "auto"]
        lines += ["", "[[grid]]", f'protocol = ["{protocol}"]']
        lines += [f'defense = ["{rule}"]', f"attack = {json.dumps(attacks)}"]
    return "\n".join(lines)


def lines(stores: list[Path]) -> list[str]:
    """Return the table of one store or several as Markdown."""
    cells = cells_of(gather(stores))
    table: dict[tuple[str, str], dict[str, Row]] = {}
    for row in rows(list(cells), cells):
        scenario = row.cell.scenario
        table.setdefault((scenario.protocol, scenario.defense), {})[row.cell.attack] = row
    text = ["| system | clean | ensemble | `auto` | seconds of each |"]
    text.append("|:--|--:|:--|--:|--:|")
    order = systems()
    played = [system for system in table if "auto" in table[system]]  # the others are not there yet
    for protocol, rule in sorted(played, key=lambda system: position(order, system)):
        by_attack = table[protocol, rule]
        fixed = [row for name, row in by_attack.items() if name not in ("none", "auto")]
        worst = min(fixed, key=lambda row: row.accuracy)
        seconds = [sum(map(duration, fixed)), duration(by_attack["auto"])]
        texts = [worst.cell.system, percent(by_attack["none"])]
        typed_worst = worst.cell.attack.replace("via=codec,", "").replace(":via=codec", "")
        texts.append(f"{percent(worst)} {typed_worst}, of {len(fixed)}")
        texts.append(percent(by_attack["auto"]))
        texts.append(" / ".join(f"{value:.0f}" for value in seconds))
        text.append("| " + " | ".join(texts) + " |")
    return text


def position(order: list[tuple[str, str]], system: tuple[str, str]) -> int:
    """Return the place of a system in the order of the plan; resolved rules come by protocol."""
    names = [protocol for protocol, _ in order]
    return order.index(system) if system in order else names.index(system[0])


def percent(row: Row) -> str:
    """Return mean and sample standard deviation of an accuracy, in percent."""
    return f"{100 * row.accuracy:.1f} ± {100 * row.accuracy_std:.1f}"


def duration(row: Row) -> float:
    """Return the mean seconds of a run."""
    return statistics.fmean(record.timing.seconds for record in row.records)


def main() -> None:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("what", choices=["plan", "table"])
    parser.add_argument("store", type=Path, nargs="*", help="folders of sweeps, of a table")
    parser.add_argument("--board", type=Path, default=Path("leaderboards"))
    given = parser.parse_args()
    print(plan(given.board) if given.what == "plan" else "\n".join(lines(given.store)))


if __name__ == "__main__":
    main()
