"""Canonical mode: what it costs, and whether records are equal whatever a process was started with.

    python benchmarks/canonical.py

Every run is a process of its own. First the same run is played in turns: as usual, canonically, and
with the kernels of canonical mode but without commitments; times are those of the processor, since
machines are shared. Then it is played under environments that make torch, oneDNN, MKL, NumPy and
the C library compute as on other processors of this family, and with more threads: canonical
records must be equal but for times, and some of the others must differ, or nothing was shown.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from hashlib import sha256
from typing import Any

from fedbench.core.canonical import VARIABLES, enter

SMALL: dict[str, Any] = {
    "clients": 20,
    "per_round": 10,
    "malicious": 0.1,
    "epochs": 1,
    "eval_every": 5,
}
RUNS: dict[str, dict[str, Any]] = {
    "digits, lenet, multi-krum": {
        **SMALL,
        **{"dataset": "digits", "model": "lenet", "rounds": 5},
        **{"defense": "multi-krum", "attack": "alie"},
    },
    "mnist-5k, micro, fedpm": {
        **SMALL,
        **{"dataset": "mnist-5k", "model": "micro", "rounds": 5},
        **{"protocol": "fedpm", "attack": "mask-ipm"},
    },
}
NO_AVX = "-FMA,-FMA4,-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW"
ELSEWHERE = {
    "as it is": {},
    "torch as with AVX2": {"ATEN_CPU_CAPABILITY": "avx2"},
    "oneDNN as with AVX": {"ONEDNN_MAX_CPU_ISA": "AVX"},
    "MKL as with AVX2": {"MKL_CBWR": "AVX2"},
    "two threads": {"OMP_NUM_THREADS": "2"},
    "NumPy of 2009": {"NPY_DISABLE_CPU_FEATURES": "X86_V3 X86_V4 AVX512_ICL AVX512_SPR"},
    "C library without AVX and FMA": {"GLIBC_TUNABLES": f"glibc.cpu.hwcaps={NO_AVX}"},
}
WAYS = ("as usual", "canonical", "without commitments")


def played(name: str, way: str, rounds: int | None = None) -> dict[str, object]:
    """Play a run in this process; return its seconds, and the digest of what it measured."""
    if way != "as usual":
        enter()
    import torch

    from fedbench import Scenario, play

    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    scenario = Scenario(**RUNS[name] | ({} if rounds is None else {"rounds": rounds}))
    if rounds is None:  # the first time loads data and libraries
        play(scenario.model_copy(update={"rounds": 1}), executor="loop", device="cpu")
    start = time.process_time()
    record = play(scenario, executor="loop", device="cpu", canonical=way == "canonical")
    seconds = time.process_time() - start
    measured = record.model_dump(mode="json", exclude={"timing", "digest"})
    measured["environment"].pop("threads")  # of the control only, which has two
    return {
        "seconds": seconds,
        "digest": sha256(json.dumps(measured).encode()).hexdigest()[:12],
        "kernels": torch.backends.cpu.get_cpu_capability(),
    }


def apart(name: str, way: str, rounds: int | None, ambient: dict[str, str]) -> dict[str, object]:
    """Play a run in a process of its own, started with these variables besides the others."""
    inherited = {key: text for key, text in os.environ.items() if key not in VARIABLES}
    arguments = ["--play", json.dumps([name, way, rounds])]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", __file__, *arguments],
        env=inherited | {"FEDBENCH_PROBE": "off"} | ambient,
        check=True,
        capture_output=True,
        text=True,
    )
    answer: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    """Print seconds and ratios, then who had the same record."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=3, help="repetitions of each way")
    parser.add_argument("--play", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        print(json.dumps(played(*json.loads(options.play))))
        return
    for name in RUNS:
        turns = [
            [apart(name, way, None, {})["seconds"] for way in WAYS] for _ in range(options.turns)
        ]
        usual, canonical, without = (statistics.median(times) for times in zip(*turns, strict=True))
        print(
            f"{name}: {usual:.2f} s as usual, {canonical:.2f} s canonical "
            f"({canonical / usual:.3f} times), commitments {100 * (canonical / without - 1):.1f} %"
        )
    for name in RUNS:
        print(name)
        records: dict[str, list[object]] = {}
        for where, ambient in ELSEWHERE.items():
            for way in WAYS[:2]:
                answer = apart(name, way, 2, ambient)
                records.setdefault(way, []).append(answer["digest"])
                print(f"  {where}, {way}: {answer['kernels']}, record {answer['digest']}")
        assert len(set(records["canonical"])) == 1, "canonical records must be equal"
        assert len(set(records["as usual"])) > 1, "some of the others must differ"


if __name__ == "__main__":
    main()
