"""How much faster a worker plays runs whose clients train in the same launches (``--together``).

``python benchmarks/together.py``: for each model and protocol 15 runs (three seeds, four attacks
and none) on `digits` is played by one worker with one thread, one run after the other and all at
once, in turns; what counts are the seconds that the records say, without the start of processes.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from fedbench.experiment.record import read

SWEEP = """
seeds = [0, 1, 2]
[scenario]
dataset = "digits"
model = "{model}"
partition = "dirichlet:beta=1.0"
clients = 50
per_round = 10
malicious = 0.1
rounds = {rounds}
epochs = 2
batch_size = 8
eval_every = {rounds}
protocol = "{protocol}"
[[grid]]
attack = ["sign-flip", "label-flip", "ipm", "alie:z=1.5"]  # and none, as in every sweep
"""


def played(text: str, together: int) -> tuple[float, list[float]]:
    """Seconds of all runs, and their accuracies in order."""
    with TemporaryDirectory() as folder:
        file, store = Path(folder) / "sweep.toml", Path(folder) / "store"
        file.write_text(text)
        command = [sys.executable, "-m", "fedbench", "sweep", str(file), "--out", str(store)]
        command += ["--workers", "1", "--threads", "1", "--together", str(together)]
        command += ["--executor", "stacked"] if together > 1 else ["--executor", "loop"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        records = [read(path) for path in sorted(store.glob("*.json"))]
    return sum(r.timing.seconds for r in records), [r.result.accuracy for r in records]


def main() -> None:
    raw = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--model", action="append", default=[])
    parser.add_argument("--protocol", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--runs", type=int, default=15, help="of a worker at once")
    given = parser.parse_args()
    print("| model, protocol | faster | range | one by one, s | points apart |")
    print("| :-- | --: | --: | --: | --: |")
    for model in given.model or ["micro", "lenet"]:
        for protocol in given.protocol or ["fedavg", "signsgd", "fedpm", "fsl"]:
            text = SWEEP.format(model=model, protocol=protocol, rounds=given.rounds)
            turns = [(played(text, 1), played(text, given.runs)) for _ in range(given.turns)]
            ratios = [alone / together for (alone, _), (together, _) in turns]
            (seconds, ours), (_, theirs) = turns[0]
            apart = statistics.fmean(abs(a - b) for a, b in zip(ours, theirs, strict=True))
            print(
                f"| {model}, {protocol} | {statistics.median(ratios):.1f} | "
                f"{min(ratios):.1f}-{max(ratios):.1f} | {seconds:.1f} | {100 * apart:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
