"""Positive controls of rules and prefilters: what each withstands, and its cost in peace.

``python benchmarks/defense_controls.py`` plays them, each beside its victim, the plain mean or the
rule without its prefilter, and beside both without an attack, and prints the two tables of
docs/results/defenses.md. ``--only krum`` plays those with that word. Records stay in ``--out``:
what is there is not played again. What a verdict means was fixed before: `Control.verdict`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fedbench
from fedbench.experiment.record import Record

SEEDS = (0, 1, 2)
COMMON: dict[str, Any] = {
    **{"dataset": "digits", "model": "logistic", "partition": "iid", "malicious": 0.2},
    **{"clients": 20, "per_round": 20, "rounds": 20, "epochs": 1, "eval_every": 20},
}
SKEWED = {"partition": "shards:classes=2"}
FEW = {"clients": 10, "per_round": 10}  # as many subsets as there are of more take minutes
FLIP = "sign-flip:scale=10"
IPM = "ipm:eps=20"
BITES = 0.1  # accuracy that a victim must lose for an attack to be a test
LOSES = 0.05  # accuracy that a rule may lose, from its victim's without an attack
SUCCEEDS = 0.5  # success of a backdoor that a victim must have for it to be a test
PASSES = 0.2  # success that a rule may leave

Play = Callable[..., list[Record]]


@dataclass(frozen=True)
class Control:
    """One claim: ``rule`` withstands ``attack``, to which ``victim`` falls."""

    rule: str
    attack: str
    changes: dict[str, Any] = field(default_factory=dict)  # of the common scenario
    victim: str = "mean"

    def options(self) -> str:
        """Return what follows the common options of ``fedbench attack``."""
        parts = [f"-d {self.rule}", f"-a {self.attack}"]
        for name, value in self.changes.items():
            parts.append(f"{'-p' if name == 'protocol' else option(name)} {value}")
        return " ".join(parts)

    def parts(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return defense, attack and changes of what it plays."""
        attacks = ("none", self.attack)
        return [(rule, x, self.changes) for rule in (self.victim, self.rule) for x in attacks]

    def line(self, play: Play) -> str:
        """Return the line of the table."""
        clean = play(self.victim, "none", self.changes)
        hit = play(self.victim, self.attack, self.changes)
        own = play(self.rule, "none", self.changes)
        ours = play(self.rule, self.attack, self.changes)
        name = self.victim if self.victim != "mean" else ""
        cells = [
            f"`{self.options()}`",
            *(accuracy(records) for records in (clean, own)),
            f"{accuracy(hit)} {name}".strip(),
            f"**{accuracy(ours)}**",
            *(f"{rate(of(ours, key))}" for key in ("true_positive_rate", "false_positive_rate")),
            self.verdict(clean, hit, ours),
        ]
        return "| " + " | ".join(cells) + " |"

    def verdict(self, clean: list[Record], hit: list[Record], ours: list[Record]) -> str:
        """Return whether the rule stands where the victim falls, by means over the seeds."""
        best, fallen, left = (mean(of(x, "accuracy")) for x in (clean, hit, ours))
        victim, remains = (mean(of(x, "success")) for x in (hit, ours))
        assert best is not None
        assert fallen is not None
        assert left is not None
        keeps = left >= best - LOSES
        if victim is not None and remains is not None:
            if victim < SUCCEEDS:
                return "no test"
            if not keeps or remains > victim / 2:
                return "fails"
            return "holds" if remains <= PASSES else "in part"
        if fallen > best - BITES:
            return "no test"
        if keeps:
            return "holds"
        return "in part" if left >= (best + fallen) / 2 else "fails"


SHARE: dict[str, Any] = {"malicious": 0.4}
CONTROLS = [
    Control("krum", IPM),
    Control("multi-krum", FLIP),
    Control("bulyan", IPM),
    Control("median", FLIP),
    Control("trimmed-mean", FLIP),
    Control("meamed", IPM),
    Control("geometric-median", FLIP, SHARE),
    Control("centered-clipping", IPM),
    Control("mda", FLIP, FEW),
    Control("smea", FLIP, FEW),
    Control("caf", IPM, FEW),
    Control("cge", FLIP),
    Control("nna", IPM),
    Control("dnc", FLIP),
    Control("dnc", "dyn-opt"),
    Control("signguard", FLIP),
    Control("lasa", IPM),
    Control("clipped-clustering", IPM),
    Control("fltrust", IPM, {"malicious": 0.6}),
    Control("fltrust", "stat-opt", {"malicious": 0.6}),
    Control("foolsgold", "ipm:eps=2", SHARE | SKEWED),
    Control("foolsgold", "dba"),
    Control("fldetector", FLIP, {"rounds": 40}),
    Control("flame", "pixel"),
    Control("flame", "model-replacement"),
    Control("deepsight", "pixel"),
    Control("deepsight", "dba"),
    Control("alignins", "pixel"),
    Control("alignins", "dba"),
    Control("lasa", "pixel"),
    Control("rlr", "pixel"),
    Control("rlr", "dba"),
    Control("rlr:theta=5", "pixel"),
    Control("norm-bound", "model-replacement", {"malicious": 0.05}),
    Control("norm-bound", "model-replacement"),
    Control("crfl", "noise:scale=1000", {"attack_until": 5, "rounds": 40}),
    Control("crfl", "model-replacement", {"malicious": 0.05}),
    Control("nnm+trimmed-mean", "ipm:eps=2", SKEWED, "trimmed-mean"),
    Control("nnm+trimmed-mean", "mimic", SKEWED, "trimmed-mean"),
    Control("nnm+median", "ipm:eps=2", SKEWED, "median"),
    Control("bucketing+median", "mimic", SKEWED, "median"),
    Control("bucketing+median", "mimic", {"protocol": "worker-momentum"} | SKEWED, "median"),
    Control("arc+mean", FLIP),
    Control("clip+mean", "model-replacement", {"malicious": 0.05}),
    Control("oracle+multi-krum", FLIP, {"declared": 0.05}, "multi-krum"),
    Control("safesparse", "sign-flip:scale=10", {"protocol": "topk"}),
    Control("safesparse", "index-concentration", {"protocol": "topk"}),
    Control("density-filter+mean", "saturation", {"protocol": "fedpm"}),
    Control("entropy-filter+mean", "complement", {"protocol": "fedpm"}),
    Control("log-odds-cap", "saturation", {"protocol": "fedpm"}),
    Control("reputation-clipping", "rank-reversal", {"protocol": "fsl"} | SHARE),
]
COSTS = [  # rules without an attack, on data split evenly and by label
    *("mean", "krum", "multi-krum", "bulyan", "median", "trimmed-mean", "meamed"),
    *("geometric-median", "centered-clipping", "cge", "nna", "dnc", "signguard", "lasa"),
    *("clipped-clustering", "flame", "fltrust", "foolsgold", "fldetector", "deepsight"),
    *("alignins", "safesparse", "rlr", "norm-bound", "crfl", "nnm+trimmed-mean"),
    *("bucketing+median", "arc+mean"),
]


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def of(records: Sequence[Record], name: str) -> list[float]:
    """Return what these records measured; nothing if one of them did not."""
    values = [getattr(record.result, name) for record in records]
    return [] if any(value is None for value in values) else values


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def rate(values: Sequence[float]) -> str:
    return f"{100 * statistics.fmean(values):.0f}" if values else ""


def spread(values: Sequence[float]) -> str:
    return f"{100 * statistics.fmean(values):.0f} ± {100 * statistics.stdev(values):.0f}"


def accuracy(records: Sequence[Record]) -> str:
    """Return the accuracy, and of a backdoor also its success."""
    success = of(records, "success")
    return spread(of(records, "accuracy")) + (f", {spread(success)}" if success else "")


def costs(rule: str, play: Play) -> str:
    """Return what a rule leaves out and loses where nobody attacks."""
    cells = [f"`{rule}`"]
    for changes in ({}, SKEWED):
        records = play(rule, "none", changes)
        cells += [accuracy(records), rate(of(records, "false_positive_rate"))]
    return "| " + " | ".join(cells) + " |"


def scenario(defense: str, attack: str, changes: dict[str, Any]) -> fedbench.Scenario:
    """Return the common scenario with these changes, of which a run without attack has no end."""
    fields = COMMON | changes | {"defense": defense, "attack": attack}
    if attack == "none":
        fields.pop("attack_until", None)
    return fedbench.Scenario.of(**fields)


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--out", type=Path, default=Path("results/defense-controls"))
    parser.add_argument("--only", default="", metavar="WORD")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    controls = [control for control in CONTROLS if given.only in control.options()]
    rules = [rule for rule in COSTS if given.only in rule]
    parts = [part for control in controls for part in control.parts()]
    parts += [(rule, "none", changes) for rule in rules for changes in ({}, SKEWED)]
    scenarios = list(dict.fromkeys(scenario(*part) for part in parts))
    records = fedbench.sweep(
        scenarios, seeds=SEEDS, out=given.out, device="cpu", workers=given.workers
    )
    played = {
        each: list(records[len(SEEDS) * i : len(SEEDS) * (i + 1)])
        for i, each in enumerate(scenarios)
    }

    def play(*part: Any) -> list[Record]:
        return played[scenario(*part)]

    print("common: " + " ".join(f"{option(name)} {value}" for name, value in COMMON.items()) + "\n")
    print("| rule, attack | clean: victim | rule | attacked: victim | rule | out: bad | good | |")
    print("|:--|--:|--:|--:|--:|--:|--:|:--|")
    for control in controls:
        print(control.line(play))
    print("\n| rule | even: accuracy | left out | by label: accuracy | left out |")
    print("|:--|--:|--:|--:|--:|")
    for rule in rules:
        print(costs(rule, play))


if __name__ == "__main__":
    main()
