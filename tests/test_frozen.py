"""Frozen texts of what fedbench measures and prints: who means to change nothing changes none.

The texts lie in ``tests/frozen``. Each file of commands is its own list of commands: a line that
starts with ``$`` is typed, the lines after it are what came back. After a change that is meant,
``python tests/frozen/write.py`` writes all of them anew, and the diff shows what changed.
"""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import re
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from test_red_team import a_board

from fedbench import Scenario, play
from fedbench.cli import main

HERE = Path(__file__).parent
FROZEN = HERE / "frozen"
BOARD = HERE.parent / "leaderboards"
PLAYS = FROZEN / "plays.json"
SMALL: dict[str, Any] = {
    **{"model": "micro", "clients": 8, "per_round": 4, "malicious": 0.25},
    **{"rounds": 2, "epochs": 1, "eval_every": 1},
}
TRIMMED = ("fedavg", "alie:side=minus,z=none", {"defense": "trimmed-mean", "local_models": True})
PRIVATE = {"mechanism": "dp-sgd", "sampling": "poisson"}
KRUM = {"defense": "multi-krum", "per_round": 7, "knowledge": "all+defense"}
# Executor, protocol, attack and other fields: every alphabet of messages, every executor of a CPU.
SCENARIOS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "floats-loop": ("loop", *TRIMMED),
    "floats-stacked": ("stacked", *TRIMMED),
    "floats-auto": ("auto", *TRIMMED),
    "floats-dp-sgd": ("stacked", "fedavg", "pixel", PRIVATE),
    "half": ("loop", "cast", "min-max:side=minus", {"defense": "nnm+median"}),
    "signs": ("stacked", "signsgd", "sign-flip", {"mechanism": "randomized-response"}),
    "scaled-signs": ("loop", "ef-signsgd", "residual-release", {"defense": "geometric-median"}),
    "levels": ("loop", "qsgd", "dyn-opt:side=minus", {"defense": "median"}),
    "rotated-levels": ("stacked", "drive", "ipm", {}),
    "sparse": ("loop", "topk", "index-concentration", KRUM),
    "seeded-sparse": ("loop", "randk", "seed-grinding", {}),
    "masks": ("loop", "fedpm", "mask-ipm", {"mechanism": "mask-gaussian:sigma=0.5"}),
    "noise-masks": ("loop", "fedmrn", "noise-mask", {}),
    "rankings": ("loop", "fsl", "rank-reversal", {"defense": "rank-margin"}),
    "top-rankings": ("stacked", "sfsl", "rank-reversal", {"attack_from": 1}),
    "gated": ("loop", "fedsparse", "gate-closing", {}),
    "pruned": ("stacked", "fedsparsify", "label-flip", {}),
    "mixture": ("stacked", "fedmog", "noise:scale=1", {}),
    "residues": ("loop", "skellam", "none", {"sees": "sum"}),
}
QUICK = ("floats-loop", "signs", "masks", "rankings")  # the others: make test-slow
# Alphabets whose messages have as many bits whatever the weights are.
FIXED_LENGTH = ("floats", "half", "signs", "scaled-signs", "rankings", "seeded-sparse", "residues")
BITS = ("uplink_bits", "benign_uplink_bits")
COUNTED = (
    *("step", "clients", "malicious", "accepted", "rejected_honest", "rejected_malicious"),
    *("skipped", "skipped_rounds", "parameters", "vote", "mechanism", "data_digest"),
    *("delta", "unit", "sees", "adjacency", "sampler", "executor", "device", "threads", "chunk"),
)
# They change with every change of the code, or with the machine that plays.
ELSEWHERE = ("id", "digest", "fedbench", "python", "torch", "numpy", "platform", "processor")

FILES = sorted(path.stem for path in FROZEN.glob("*.txt"))
SLOW = ("attack", "check-board", "render")  # files of commands that take a second and more
ID = re.compile(r"(?<![\w.])(?=[a-f]*[0-9])[0-9a-f]{12,64}\b")  # or a digest; no decimals


def processor() -> str:
    """Return everything that the rounding of a sum depends on."""
    lines = dict(re.findall(r"(\S[^\t\n]*)\t*: (.*)", Path("/proc/cpuinfo").read_text()))
    names = (lines.get(key, "") for key in ("vendor_id", "cpu family", "model", "model name"))
    kernels = torch.backends.cpu.get_cpu_capability()
    return f"{' '.join(names)}, {kernels}, torch {torch.__version__}, numpy {np.__version__}"


def measured(name: str) -> dict[str, Any]:
    """Everything that a run measured, with what differs between two versions masked."""
    executor, protocol, attack, others = SCENARIOS[name]
    scenario = Scenario(protocol=protocol, attack=attack, **SMALL | others)
    record = play(scenario, device="cpu", executor=executor)
    fields: dict[str, Any] = json.loads(json.dumps(record.measured()))
    for part in (fields, fields["environment"]):
        part.update(dict.fromkeys(part.keys() & set(ELSEWHERE), "*"))
    return fields


def without_rounding(value: Any, key: str, counted: tuple[str, ...]) -> Any:
    """Leave of a record what is the same on every processor; of the rest only names and types."""
    if key in ("scenario", *counted):
        return value
    if key == "epsilon" and value is not None:
        return pytest.approx(value, rel=1e-9)
    if isinstance(value, dict):
        return {name: without_rounding(part, name, counted) for name, part in value.items()}
    if key == "rounds":
        return [without_rounding(part, "", counted) for part in value]
    return type(value).__name__


def typed(line: str, places: dict[str, str]) -> str:
    """Exit code, stdout and stderr of a command in this process, with paths of a machine masked."""
    arguments = [argument.format_map(places) for argument in shlex.split(line)]
    raw = (io.BytesIO(), io.BytesIO())
    out, err = (io.TextIOWrapper(buffer, "utf-8", write_through=True) for buffer in raw)
    to_out = contextlib.redirect_stdout(out)
    to_err = contextlib.redirect_stderr(err)
    with pytest.raises(SystemExit) as end, to_out, to_err:
        main(arguments)
    texts = []
    for buffer in raw:
        text = buffer.getvalue().decode().replace("\r\n", "\n")
        for name, place in sorted(places.items(), key=lambda item: -len(item[1])):
            text = text.replace(place, f"{{{name}}}")
        texts.append(ID.sub("(id)", text))
    if arguments[:2] == ["leaderboard", "check"]:  # entries stand in the order of their ids
        blocks = re.split(r"^(?=good |refused |\d+ checked)", texts[0], flags=re.MULTILINE)
        texts[0] = "".join(sorted(blocks))
    return f"$ {line}\nexit {end.value.code}\n{texts[0]}" + (
        f"stderr: {texts[1]}" if texts[1] else ""
    )


@contextlib.contextmanager
def elsewhere() -> Iterator[dict[str, str]]:
    """Be in an empty folder, in a terminal that is the same everywhere; yield what is around."""
    terminal = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb", "FEDBENCH_PROBE": "off"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name, mock.patch.dict(os.environ, terminal):
        places = {
            key: Path(name).resolve() / key for key in ("empty", "binary", "good", "out", "played")
        }
        places["empty"].mkdir()
        places["binary"].write_bytes(bytes(range(256)))
        places["good"].write_text("seeds = [0]\n[scenario]\nclients = 4\nper_round = 2\n")
        places |= {"store": FROZEN / "store", "board": BOARD}
        os.chdir(name)
        try:
            yield {key: str(path) for key, path in places.items()}
        finally:
            os.chdir(before)


def replayed(path: Path) -> str:
    """Run the commands of a frozen file; return what they print and write."""
    lines = [line[2:] for line in path.read_text().splitlines() if line.startswith("$ ")]
    with elsewhere() as places:
        if any("{played}" in line for line in lines):
            a_board(Path(places["played"]))
        text = "".join(typed(line, places) for line in lines)
        written = Path(places["out"])
        pages = sorted(f"\n{page(path)}" for path in written.rglob("*.html"))
        tables = [path.read_text() for path in sorted(written.glob("*.md"))]
    text = re.sub(r"^(\S*\{out\}.*\.html\n)+", f"{len(pages)} pages\n", text, flags=re.MULTILINE)
    return re.sub(r"\d+\.\d s$", "(seconds)", text, flags=re.MULTILINE) + "".join(pages + tables)


def page(path: Path) -> str:
    """Text that a page shows, but for that in pictures: how they are drawn is not frozen."""
    text = re.sub(r"(?s)<(svg|script|style)\b.*?</\1>", "", path.read_text())
    text = html.unescape(re.sub(r"(?s)<[^>]+>", "\n", text))
    text = ID.sub("(id)", text)
    return re.sub(r"\s*\n\s*", "\n", text)


def without_numbers(text: str) -> str:
    """Leave the shape of a table whose numbers depend on the processor."""
    return re.sub(r"[ ─|-]+", " ", re.sub(r"-?\d+(\.\d+)?", "#", text))


def write() -> None:
    """Write all frozen texts anew."""
    torch.set_num_threads(1)
    with mock.patch.dict(os.environ, {"FEDBENCH_PROBE": "off"}):
        fields = {"processor": processor()} | {name: measured(name) for name in SCENARIOS}
    rows = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in fields.items())
    PLAYS.write_text("{\n" + ",\n".join(rows) + "\n}\n")
    for path in sorted(FROZEN.glob("*.txt")):
        path.write_text(replayed(path))


@pytest.mark.edges(*QUICK)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_run_measures_what_it_measured(name: str) -> None:
    frozen = json.loads(PLAYS.read_text())
    now = measured(name)
    # Kernels of another processor, or of another torch, add numbers up in another order; training
    # carries a difference in the last bit into every measured number.
    if frozen["processor"] == processor():
        assert json.dumps(now) == json.dumps(frozen[name])
    counted = COUNTED + (BITS if name.startswith(FIXED_LENGTH) else ())
    assert without_rounding(now, "", counted) == without_rounding(frozen[name], "", counted)


@pytest.mark.edges(*(name for name in FILES if name not in SLOW))
@pytest.mark.parametrize("name", FILES)
def test_commands_print_what_they_printed(name: str) -> None:
    path = FROZEN / f"{name}.txt"
    frozen = path.read_text()
    now = replayed(path)
    if name == "attack" and json.loads(PLAYS.read_text())["processor"] != processor():
        frozen, now = without_numbers(frozen), without_numbers(now)
    assert now == frozen
