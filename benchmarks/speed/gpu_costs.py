"""Stages of an acceptance run that say where time and memory of a device go, beside `gpu_stages`.

They measure what the page on performance counts or predicts where there is no GPU: kernels of a
step, waits of a round, messages on all threads, coarser products, memory that runs out, and two
workers of a sweep on one GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from gpu_report import SECONDS
from gpu_roofline import seconds as median_seconds
from gpu_stages import CLASSES, QUICK, ROOT, STEPS, Job, Note, Training, Wrong, cohort, some
from torch.profiler import ProfilerActivity, profile

from fedbench.api import Shared
from fedbench.core import registry
from fedbench.core.choices import Precision
from fedbench.core.devices import finish, memory, multiplies_in_tf32, replays_graphs
from fedbench.core.rng import Key
from fedbench.executors.factory import executor, seconds
from fedbench.executors.training import Schedule
from fedbench.executors.vmap import Stacked
from fedbench.experiment.prepare import choose_device, prepare
from fedbench.experiment.scenario import Scenario
from fedbench.run import begin, play_round

LONGEST = 10  # kernels of a step that are named
LAYER = 1_605_632  # weights of lenet's largest layer
PROFILED = (
    Training("lenet", "fedavg", 8),
    Training("lenet", "fsl", 8),
    Training("lenet", "fedpm", 8),
    Training("conv4", "fedavg", 32),
)
COARSE = (Training("lenet", "fedavg", 32), Training("conv4", "fedavg", 32))
SENT = ("fsl", "signsgd", "drive", "qsgd", "fedpm", "fedmrn", "fedavg")
WAITED = ("fedavg", "fsl", "fedpm", "signsgd", "drive", "eden", "feddrop", "fedsparsify")
SWEEP = """title = "two workers"
seeds = [0, 1]
[scenario]
dataset = "digits"
model = "micro"
partition = "iid"
clients = 12
per_round = 6
rounds = 3
[[grid]]
protocol = ["fedavg", "fsl"]
defense = ["own"]
attack = ["none"]
"""


def kernels(job: Job, note: Note) -> None:
    """Name the kernels that take the time of a step, and time those that predictions hang on."""
    where = choose_device(job.device)
    kinds = {"cuda": ProfilerActivity.CUDA, "cpu": ProfilerActivity.CPU}
    for training in QUICK[:1] if job.quick else PROFILED:
        network = registry.load("model", training.model).build(training.image, CLASSES)
        protocol = registry.load("protocol", training.protocol)
        schedule = Schedule(1, training.batch)
        way = executor("padded", protocol, Shared(network, 1, where), schedule, training.clients)
        clients = cohort(training, way, STEPS * training.batch)
        way.train(clients)
        finish(where)
        with profile(activities=[kinds[where.type]]) as seen:
            way.train(clients)
            finish(where)
        events = [e for e in seen.events() if e.device_type.name.lower() == where.type]
        took: Counter[str] = Counter()
        for event in events:
            took[event.name[:100]] += event.time_range.elapsed_us()
        longest = {name: us / STEPS / 1e3 for name, us in took.most_common(LONGEST)}
        numbers = {"kernels a step": len(events) / STEPS, "ms a step": sum(took.values()) / 1e3}
        numbers["ms a step"] /= STEPS
        note(training.name, {**numbers, "longest, ms a step": longest})
    alone(where, job, note)


def alone(where: torch.device, job: Job, note: Note) -> None:
    """Time selections and draws in the shape of 25 clients of lenet's largest layer."""
    n, width = (2, 1000) if job.quick else (25, LAYER)
    x = Key(1).uniform(n, width, device=where)
    keep = width // 2
    order = x.argsort(dim=1)
    seeds = torch.arange(n, device=where)
    works: dict[str, Callable[[], object]] = {
        "topk, amin": lambda: x.topk(keep, dim=1, sorted=False).values.amin(dim=1),
        "kthvalue": lambda: x.kthvalue(width - keep + 1, dim=1).values,
        "sort": lambda: x.sort(dim=1),
        "stable argsort": lambda: x.argsort(dim=1, stable=True),
        "scatter": lambda: torch.empty_like(order).scatter_(1, order, order),
        "coins": lambda: torch.vmap(lambda seed, p: Key(seed).coins(p))(seeds, x),
        "bernoulli": lambda: torch.vmap(lambda seed, p: Key(seed).bernoulli(p))(seeds, x),
        "copy": lambda: x.clone(),
    }
    for name, work in works.items():
        note(f"{name}, ms", median_seconds(work) / SECONDS)


def waits(job: Job, note: Note) -> None:
    """Count where the second round of a run waits for CUDA, by line; other devices do not tell.

    The scenario is that in which the tests count on the second device. There two more are counted,
    for the clock of the attack, which torch does not report.
    """
    where = choose_device(job.device)
    for protocol in some(WAITED, job, 1):
        setup = prepare(Scenario(**counted_rounds(protocol)), job.device, "stacked")
        state = begin(setup)
        play_round(setup, state, 0)
        with lines_that_wait(where) as lines:
            play_round(setup, state, 1)
        note(protocol, {"waits": sum(lines.values()), "lines": dict(lines)})


def counted_rounds(protocol: str) -> dict[str, Any]:
    """Return the scenario of `second_device_runs.waits_of_a_round` with 12 clients a round."""
    sys.path.append(str(ROOT / "tests"))
    from second_device_runs import SCENARIO

    fields = {"protocol": protocol, "clients": 20, "per_round": 12, "batch_size": 32}
    return SCENARIO | fields | {"rounds": 9, "eval_every": 9, "malicious": 0.0, "cohorts": "random"}


@contextmanager
def lines_that_wait(device: torch.device) -> Iterator[Counter[str]]:
    """Collect the lines at which torch says that the processor waits for a CUDA device."""
    lines: Counter[str] = Counter()
    if not replays_graphs(device):
        yield lines
        return
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield lines
        finally:
            torch.cuda.set_sync_debug_mode(before)
    for warning in caught:
        if "called a synchronizing" in str(warning.message):
            lines[f"{Path(warning.filename).name}:{warning.lineno}"] += 1


def wire(job: Job, note: Note) -> None:
    """Time messages of 25 clients of lenet to bytes and back, as a round does on this machine."""
    from wire import sent

    where = choose_device(job.device)
    model, n = ("micro", 2) if job.quick else ("lenet", 25)
    for protocol in some(SENT, job, 1):
        message = sent(protocol, model, n, job.device)
        packets = message.encode()

        def back(message: Any = message, packets: Any = packets) -> None:
            type(message).decode(packets, message.spec, where)
            finish(where)

        took = {"encode": median_seconds(message.encode), "decode": median_seconds(back)}
        numbers = {"seconds": sum(took.values()), "threads": torch.get_num_threads()}
        note(f"{model} {protocol}", numbers | took)


def precision(job: Job, note: Note) -> None:
    """Time a step whose products are in TF32 and in bfloat16 beside float32."""
    where = choose_device(job.device)
    names: list[Precision] = ["fp32", "bf16"]
    if multiplies_in_tf32(where):
        names.append("tf32")
    engine = "recorded" if replays_graphs(where) else "padded"
    for training in QUICK[:1] if job.quick else COARSE:
        network = registry.load("model", training.model).build(training.image, CLASSES)
        parts = (registry.load("protocol", training.protocol), Shared(network, 1, where))
        schedule = Schedule(1, training.batch)
        numbers = {}
        for name in names:
            way = executor(engine, *parts, schedule, training.clients, precision=name)
            clients = cohort(training, way, STEPS * training.batch)
            took = [seconds(way, clients) for _ in range(5)]
            numbers[f"{name}, seconds a step"] = min(took) / STEPS
        note(training.name, numbers)


def out_of_memory(job: Job, note: Note) -> None:
    """Leave too little memory for a launch of all clients: half as many train, with a warning."""
    where = choose_device(job.device)
    if where.type != "cuda":
        note("not measured", "a limit on memory is CUDA's")
        return
    for engine in ("padded", "recorded"):
        halved(engine, where, note)


def halved(engine: str, where: torch.device, note: Note) -> None:
    """Train by an executor in enough memory, and in less and less until it runs out."""
    training = Training("lenet", "fedavg", 8)
    network = registry.load("model", training.model).build(training.image, CLASSES)
    parts = (registry.load("protocol", training.protocol), Shared(network, 1, where))

    def fresh() -> Stacked:
        made = executor(engine, *parts, Schedule(1, 8), training.clients)
        assert isinstance(made, Stacked)
        # What fits is asked for before memory is short, as in a run that others join.
        assert made.width >= training.clients
        return made

    way = fresh()
    clients = cohort(training, way, STEPS * training.batch)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(where)
    before = torch.cuda.memory_reserved(where)
    enough = way.train(clients)[0]
    most = torch.cuda.max_memory_reserved(where) - before
    del way
    for twentieths in range(19, 9, -1):
        short = fresh()
        torch.cuda.empty_cache()
        limit = torch.cuda.memory_reserved(where) + twentieths * most / 20
        torch.cuda.set_per_process_memory_fraction(limit / memory(where))
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                updates = short.train(clients)[0]
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        if short.halved:
            break
    texts = [str(w.message) for w in caught if "memory ran out" in str(w.message)]
    apart = float((updates - enough).abs().max() / enough.abs().max())
    entry = {"warnings": texts, "apart": apart, "MiB of a launch": most / 2**20}
    note(engine, entry | {"share of it": twentieths / 20})
    if len(texts) != 1 or apart > 1e-4:
        raise Wrong(f"memory ran out, and then: {texts}, updates {apart:.1e} apart")


def sweep(job: Job, note: Note) -> None:
    """Play a small sweep with one worker and with two on the device: the same accuracies."""
    reached = {}
    for workers in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "sweep.toml")
            file.write_text(SWEEP)
            store = Path(folder, "store")
            words = ["sweep", file, "--out", store, "--device", job.device, "--workers", workers]
            command = [sys.executable, "-m", "fedbench", *map(str, words)]
            start = time.perf_counter()
            done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
            took = time.perf_counter() - start
            lines = (done.stdout + done.stderr).strip().splitlines()
            outcome: dict[str, Any] = {"code": done.returncode, "seconds": took, "tail": lines[-6:]}
            reached[workers] = accuracies(store)
            note(f"{workers} workers", outcome | {"accuracies": reached[workers]})
            if done.returncode:
                raise Wrong(f"a sweep with {workers} workers ended with {done.returncode}")
    if reached[1] != reached[2]:
        raise Wrong("one worker and two found different accuracies")


def accuracies(store: Path) -> Sequence[float]:
    """Return the accuracies of the records in a store, in order of size."""
    records = [json.loads(path.read_text()) for path in store.rglob("*.json")]
    return sorted(record["result"]["accuracy"] for record in records if "result" in record)
