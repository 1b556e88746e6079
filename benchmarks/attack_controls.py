"""Positive controls: whether each attack does, at small size, what its paper says of it.

``python benchmarks/attack_controls.py STORE`` plays what the store lacks, on one core, and prints
the table of docs/results/attacks.md. Each line plays an attack and a rival, in the same setting and
with the same seeds; the rival is a weaker attack, or the same clients as if honest. A claim *holds*
if the difference has the claimed sign in every seed, and is 2 points or more on average. Some
settings were chosen after a first look that showed nothing: one local step for ALIE, `dyn-opt` and
`opt-alie`, and Krum for `opt-ipm`.
``--only NAME`` (repeated) plays the lines of these attacks alone.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fedbench
from fedbench.core.registry import split
from fedbench.experiment.record import Record
from fedbench.experiment.scenario import Scenario

SEEDS = (0, 1, 2)
BASE: dict[str, Any] = {
    "protocol": "fedavg:lr=0.05",
    "defense": "mean",
    "model": "micro",
    "partition": "iid",
    "clients": 10,
    "per_round": 10,
    "malicious": 0.2,
    "rounds": 12,
    "epochs": 1,
    "eval_every": 3,
}
TWIN = "honest twin"  # rival: the clients of the attack as if honest, tried with its trigger
WINDOW: dict[str, Any] = {"rounds": 18, "attack_from": 6, "attack_until": 12}
LAST: dict[str, Any] = {"rounds": 12, "attack_from": 11}  # one shot, in the last round
STEPS: dict[str, Any] = {  # one local step, of noisy gradients
    "protocol": "fedavg:lr=0.3,momentum=0",
    "defense": "trimmed-mean",
    "clients": 25,
    "per_round": 25,
    "batch_size": 64,
    "rounds": 40,
    "eval_every": 20,
}
LEAST = 0.02  # a smaller mean difference shows nothing


def accuracy(record: Record) -> float:
    return record.result.accuracy


def success(record: Record) -> float:
    """Success of the trigger after the last round of the attack."""
    end = (record.scenario.attack_until or record.scenario.rounds) - 1
    return record.rounds[end].success or 0.0


def kept(record: Record) -> float:
    """Success of the trigger after the last round, in which nobody attacks any more."""
    return record.rounds[-1].success or 0.0


def caught(record: Record) -> float:
    """Share of the malicious rows that the rule leaves out, over the rounds."""
    rates = [r.true_positive_rate for r in record.rounds if r.true_positive_rate is not None]
    return statistics.mean(rates)


def rejected(record: Record) -> float:
    """Share of the malicious messages that do not decode."""
    malicious = sum(r.malicious for r in record.rounds)
    return sum(r.rejected_malicious for r in record.rounds) / malicious


LOWER = (accuracy, caught)  # measures of which a stronger attack has less


@dataclass(frozen=True)
class Control:
    """A claim about an attack, and the two runs that show it."""

    claim: str
    attack: str
    rival: str = "none"
    measure: Callable[[Record], float] = accuracy
    setting: dict[str, Any] = field(default_factory=dict)

    def scenario(self, attack: str) -> Scenario:
        """Return the scenario of one of the two attacks."""
        fields = BASE | self.setting
        if attack == TWIN:
            fields |= {"attack_from": fields["rounds"], "attack_until": None}
            attack = self.attack
        return Scenario(attack=attack, **fields)

    def options(self) -> str:
        """Return the options of the command that differ from `BASE`."""
        short = {"protocol": "-p", "defense": "-d"}
        given = {name: value for name, value in self.setting.items() if BASE.get(name) != value}
        words = [f"{short.get(k, '--' + k.replace('_', '-'))} {v}" for k, v in given.items()]
        rival = [] if self.rival in ("none", TWIN) else [f"-a {self.rival}"]
        return " ".join([f"-a {self.attack}", *rival, *words])


def on(protocol: str, defense: str = "mean", **more: Any) -> dict[str, Any]:
    return {"protocol": protocol, "defense": defense, **more}


def behind(defense: str, **more: Any) -> dict[str, Any]:
    return {"defense": defense, **more}


CONTROLS = [
    Control("deviations as small as a client's turn a trimmed mean", "alie", setting=STEPS),
    Control("the formula's z is too small for 5 of 25", "alie", "alie:z=none", setting=STEPS),
    Control("still smaller ones turn Krum", "alie:z=1", setting=STEPS | behind("krum")),
    Control("knowing the rule helps", "dyn-opt", "min-max", setting=STEPS | behind("multi-krum")),
    Control(
        "the sought strength beats a fixed one",
        "opt-alie",
        "alie",
        setting=STEPS | behind("krum"),
    ),
    Control("the sought strength beats a fixed one", "opt-ipm", "ipm", setting=behind("krum")),
    Control("a small eps turns Krum", "ipm:eps=0.1", setting=behind("krum")),
    Control("it turns the median", "ipm", setting=behind("median", malicious=0.4)),
    Control(
        "it does more than ALIE by its formula",
        "min-max",
        "alie:z=none",
        setting=behind("multi-krum"),
    ),
    Control(
        "it does more than ALIE by its formula",
        "min-sum",
        "alie:z=none",
        setting=behind("multi-krum"),
    ),
    Control(
        "no outlier, and yet a median of unlike clients loses",
        "mimic",
        setting=behind("median", partition="shards"),
    ),
    Control("one noisy row is too much for a mean", "noise"),
    Control("flipped and four times as long it turns a mean", "sign-flip:scale=4"),
    Control("it turns Krum", "stat-opt", setting=behind("krum")),
    Control(
        "it does more to a trimmed mean than flipped labels",
        "stat-opt",
        "label-flip",
        setting=behind("trimmed-mean"),
    ),
    Control("with 40 % flipped labels a mean loses", "label-flip", setting={"malicious": 0.4}),
    Control(
        "behind a norm bound it does more than flipped labels",
        "pga",
        "label-flip",
        setting=behind("norm-bound", malicious=0.4),
    ),
    Control(
        "behind a norm bound it does more than a flipped update",
        "pga",
        "sign-flip",
        setting=behind("norm-bound", malicious=0.4),
    ),
    Control(
        "it is left out less often than noise",
        "free-rider:kind=replay",
        "noise",
        caught,
        behind("multi-krum"),
    ),
    Control("the server rejects it", "malformed", measure=rejected),
    Control(
        "without checks NaN ruins the model",
        "malformed:kind=nan",
        setting={"server_checks": "none"},
    ),
    Control(
        "one direction in all rounds does more to a trimmed mean than a new one in each",
        "poisonedfl",
        "noise",
        setting=behind("trimmed-mean", rounds=24),
    ),
    Control("opposite bits shift probabilities", "complement", setting=on("fedpm")),
    Control("so do all ones", "saturation", setting=on("fedpm")),
    Control("so do mirrored probabilities", "mask-ipm", setting=on("fedpm")),
    Control("so do probabilities a little off", "mask-alie", setting=on("fedpm")),
    Control("the same opposite bits in all rounds", "pinning", setting=on("fedpm")),
    Control("votes spent where they decide", "margin", setting=on("signsgd", "own", malicious=0.3)),
    Control("a random ranking", "shuffle", setting=on("fsl", "own", malicious=0.4)),
    Control(
        "the reversed vote does more than random rankings",
        "rank-reversal",
        "shuffle",
        setting=on("fsl", "own", malicious=0.4),
    ),
    Control("so do swapped halves", "swap", "shuffle", setting=on("fsl", "own", malicious=0.4)),
    Control(
        "vulnerable edges do more than the reversed vote",
        "vem",
        "rank-reversal",
        setting=on("fsl", "own", malicious=0.4),
    ),
    Control("the opposite of the mean as masked noise", "noise-mask", setting=on("fedmrn")),
    Control("a chosen seed helps", "seed-grinding", "complement", setting=on("fedmrn")),
    Control("a scale has no limit", "scale-field", "sign-flip", setting=on("eden:lr=0.05")),
    Control(
        "one long message does more than four honest ones repair",
        "residual-release",
        setting=on("ef-signsgd:lr=0.05", rounds=15, eval_every=15),
    ),
    Control(
        "indices that nobody contradicts",
        "index-concentration",
        setting=on("topk:lr=0.05", malicious=0.4),
    ),
    Control(
        "indices where the rule gives way do more",
        "support-margin",
        "index-concentration",
        setting=on("topk:lr=0.05", "median", malicious=0.4),
    ),
    Control("closed gates prune what others need", "gate-closing", setting=on("fedsparse")),
    Control(
        "exact slopes do more than flipped scalars",
        "span-ascent",
        "sign-flip",
        setting=on("fedkseed", malicious=0.3),
    ),
    Control("scalars of another round", "replay", setting=on("fedkseed", malicious=0.3)),
    Control("the trigger is learned", "pixel", TWIN, success, WINDOW),
    Control("one round replaces the model", "model-replacement", "pixel", success, LAST),
    Control("strips are learned, and nobody shows the whole", "dba", TWIN, success, WINDOW),
    Control(
        "a norm bound does not keep it out",
        "edge-case",
        TWIN,
        success,
        WINDOW | behind("norm-bound", malicious=0.4),
    ),
    Control(
        "coordinates that others leave alone keep it longer",
        "neurotoxin",
        "neurotoxin:ratio=0",
        kept,
        WINDOW,
    ),
    Control("the trigger is learned", "neurotoxin", TWIN, success, WINDOW),
    Control("the trigger is learned", "chameleon", TWIN, success, WINDOW),
    Control("adapted features keep it longer", "chameleon", "pixel", kept, WINDOW),
    Control("an adapted square is learned sooner", "a3fl", "pixel", success, WINDOW),
    Control("it is kept longer", "a3fl", "pixel", kept, WINDOW),
    Control("a trigger of at most a fifth of the range is learned", "iba", TWIN, success, WINDOW),
]


def play(controls: Sequence[Control], store: Path) -> dict[Scenario, list[Record]]:
    """Return the records of all scenarios, in the order of `SEEDS`."""
    pairs = [c.scenario(attack) for c in controls for attack in (c.attack, c.rival)]
    scenarios = list(dict.fromkeys(pairs))
    records = list(fedbench.sweep(scenarios, seeds=SEEDS, out=store, workers=1))
    return {
        scenario: records[i * len(SEEDS) : (i + 1) * len(SEEDS)]
        for i, scenario in enumerate(scenarios)
    }


def line(control: Control, records: dict[Scenario, list[Record]]) -> str:
    """Return a row of the table."""
    sign = -1 if control.measure in LOWER else 1
    values, others = (
        [control.measure(record) for record in records[control.scenario(attack)]]
        for attack in (control.attack, control.rival)
    )
    apart = [sign * (a - b) for a, b in zip(values, others, strict=True)]
    right = sum(d > 0 for d in apart)
    if right == len(apart) and statistics.mean(apart) >= LEAST:
        verdict = "holds"
    else:
        verdict = f"no ({right} of {len(apart)} seeds)"
    name = split(control.attack)[0]
    cells = [
        *(f"`{name}`", control.claim, control.measure.__name__, percent(values)),
        *(percent(others), verdict, f"`{control.options()}`"),
    ]
    return f"| {' | '.join(cells)} |"


def percent(values: Sequence[float]) -> str:
    """Return mean and sample standard deviation of shares in percent."""
    return f"{100 * statistics.mean(values):.0f} ± {100 * statistics.stdev(values):.0f}"


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("store", type=Path)
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    given = parser.parse_args()
    chosen = [c for c in CONTROLS if not given.only or split(c.attack)[0] in given.only]
    records = play(chosen, given.store)
    print("| attack | claim | measure | it | rival | verdict | options |")
    print("|:--|:--|:--|--:|--:|:--|:--|")
    for control in chosen:
        print(line(control, records))


if __name__ == "__main__":
    main()
