"""Runs on the second device and their like on the CPU, in a process of their own.

A line of JSON on stdin asks, a line on stdout answers; `Process` does so from a test. ``python
tests/second_device_runs.py --write`` counts waits and kernels anew, after a change that lowers
them, and writes ``second_device.json``.
"""

import functools
import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
GOLDEN = HERE / "second_device.json"
SCENARIO: dict[str, Any] = {
    **{"dataset": "digits", "model": "micro", "partition": "iid", "clients": 100, "per_round": 5},
    # With so few samples the loop has no batch channels last on a CPU, so it adds up as elsewhere.
    **{
        "malicious": 0.2,
        "cohorts": "stratified",
        "rounds": 1,
        "epochs": 1,
        "eval_every": 1,
        "batch_size": 6,
    },
}
# Protocols that by default take fewer steps than `kernels_of_a_step` has batches; here they do not.
LONGER = {"decomfl": "decomfl:steps=3"}


class Process:
    """This file as a process that answers; the first question waits for its imports."""

    def __init__(self, path: str | None = None) -> None:
        """Start it; ``path`` has other sources of the three packages than those of the tests."""
        environment = os.environ | {"FEDBENCH_PROBE": "off"}
        if path is not None:
            environment["PYTHONPATH"] = path
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, **question: Any) -> Any:
        """Return the answer to a question: the arguments of a function of `answer`, by name."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the process ended without an answer"
        return json.loads(line)

    def end(self) -> None:
        """End the process, which waits for a question; torch would take a second to leave."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._process.stdout.close()


def played(executor: str, **fields: Any) -> dict[str, Any]:
    """Play a scenario on both devices; return where the records differ, or the device's error."""
    import second_device

    import fedbench
    from fedbench.core import registry
    from fedbench.core.errors import Incompatible

    scenario = fedbench.Scenario(**SCENARIO | fields)
    try:
        here = fedbench.play(scenario, device="cpu", executor=executor)
    except Incompatible as error:
        return {"incompatible": str(error)}
    second_device.forget()
    try:
        there = fedbench.play(scenario, device=second_device.NAME, executor=executor)
    except Exception as error:
        return {"differences": [f"{type(error).__name__}: {error}"]}
    assert sum(second_device.launches.values()) > 100, "nothing was computed on the device"
    if scenario.attack != "none":
        assert sum(row.malicious for row in here.rounds) > 0, "nobody attacked"
    expected, found = (dict(leaves(record.measured())) for record in (here, there))
    names = sorted(expected.keys() | found.keys())
    # A slope along a direction is a difference of two losses over a step of 1e-3. SignGuard counts
    # signs of coordinates near 0, which a rounding turns on some processors, and then clusters.
    # PlanAhead goes thousands of distances along a push that it has turned five times.
    loose = registry.split(scenario.protocol)[0] in ("decomfl", "fedkseed")
    loose = loose or registry.split(scenario.attack)[0] == "plan-ahead"
    close = 1e-3 if loose or scenario.defense.startswith("signguard") else 1e-5
    differences = [
        f"{name}: {expected.get(name)} on the CPU, {found.get(name)} on the device"
        for name in names
        if not alike(name, expected.get(name), found.get(name), close)
    ]
    return {"differences": differences}


def leaves(fields: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield what a record measured by its path, without the machine and the digest.

    Without what Auto chose, too: in a first round several of its attacks send the same, and the
    rounding of their scores decides which one is named.
    """
    if isinstance(fields, dict):
        for name, part in fields.items():
            if name not in ("environment", "digest", "played"):
                yield from leaves(part, f"{path}.{name}")
    elif isinstance(fields, list | tuple):
        for number, part in enumerate(fields):
            yield from leaves(part, f"{path}[{number}]")
    else:
        yield path, fields


def alike(name: str, a: Any, b: Any, close: float) -> bool:
    """Whether two measured values are equal up to the rounding that the devices' ways differ in.

    A test batch lies channels last on a CPU alone, and NumPy adds up in another order than torch. A
    logit's last bit may tip the answer on one of the 270 test samples, or two.
    """
    if not isinstance(a, float) or not isinstance(b, float):
        return bool(a == b)
    if "accuracy" in name:
        return abs(a - b) <= 2 / 270
    return abs(a - b) <= close * max(abs(a), abs(b)) or (a != a and b != b)


def counted(row: str) -> dict[str, Any]:
    """Count the kernels of a local step, and the waits of a round with 7 and with 12 clients.

    The step is that of the stacked executor, in a network with the layers of ``lenet``; the round
    is a run's second, without evaluation. A ``row`` of `rows` that names a mechanism or a rule is
    counted without the step, and a rule under attack, where it has more to do.
    """
    from fedbench.core import registry

    protocol, _, part = row.partition(" ")
    kind = "mechanism" if part in registry.names("mechanism") else "defense"
    others = {kind: part} if part else {}
    waits = [sum(waits_of_a_round(n, protocol, **others).values()) for n in (7, 12)]
    steps = {} if part else {"kernels": kernels_of_a_step(protocol)}
    return steps | {"waits": waits}


def kernels_of_a_step(protocol: str) -> int:
    """Difference in kernels between training for two and for three steps.

    A protocol that by default stops before the third step is asked for more, see `LONGER`.
    """
    import second_device

    from fedbench.api import Shared
    from fedbench.core import registry
    from fedbench.executors.factory import untrained_clients
    from fedbench.executors.training import Schedule
    from fedbench.executors.vmap import Stacked
    from fedbench.models.network import ConvNet

    lenet = ConvNet((1, 8, 8), ((4, 8),), (16,), 10)  # narrow
    device = second_device.DEVICE
    plugin = registry.load("protocol", LONGER.get(protocol, protocol))
    engine = Stacked(plugin, Shared(lenet, 3, device), Schedule(1, 2))
    counts = []
    for samples in (4, 4, 6):  # the first time fills caches
        clients = untrained_clients(engine.protocol, engine.shared, 2, samples)
        second_device.forget()
        engine.train(clients)
        counts.append(sum(second_device.launches.values()))
    assert counts[2] > counts[1], f"{protocol} takes no third step: add it to LONGER"
    return counts[2] - counts[1]


def under_attack(malicious: float, protocol: str) -> int:
    """Count the waits of a round of which so large a share flips its own messages."""
    return sum(waits_of_a_round(12, protocol, attack="sign-flip", malicious=malicious).values())


def waits_of_a_round(n: int, protocol: str, defense: str = "own", **others: Any) -> dict[str, int]:
    """Waits of a round of ``n`` clients, by operation and line; ``others`` are of the scenario."""
    import second_device

    from fedbench import Scenario
    from fedbench.experiment.prepare import prepare
    from fedbench.run import begin, play_round

    fields: dict[str, Any] = {"protocol": protocol, "defense": defense, "per_round": n}
    more: dict[str, Any] = {"clients": 20, "batch_size": 32, "rounds": 9, "eval_every": 9}
    more |= {"malicious": 0.0, "cohorts": "random"} if defense == "own" else {"attack": "sign-flip"}
    for known in gc.get_objects():  # what another count has left would be found, or not
        if isinstance(known, functools._lru_cache_wrapper) and "fedbench" in known.__module__:
            known.cache_clear()
    setup = prepare(Scenario(**SCENARIO | fields | more | others), second_device.NAME, "stacked")
    state = begin(setup)
    play_round(setup, state, 0)
    second_device.forget()
    play_round(setup, state, 1)
    return dict(second_device.waits)


PACKED = ("signs", "scaled signs", "masks", "noise masks", "rankings", "best edges")


def packed_messages() -> dict[str, Any]:
    """Return five messages of each alphabet of `PACKED`, on the CPU."""
    from fedbench import payload as alphabets
    from fedbench.core.rng import Key
    from fedbench.payload.rankings import ranking

    sizes = (61, 142)  # layers whose bit strings do not end on bytes
    kept = (10, 20)
    x = Key(0).normal(5, 203)
    bits = x > 0
    rest = x[:, :3]
    seeds = Key(1).bits(5)[:, None]
    messages = (
        alphabets.SignBits(bits),
        alphabets.ScaledSigns(bits, x[:, 3:5].abs(), rest, sizes),
        alphabets.BinaryMasks(x > 1.5, rest),
        alphabets.NoiseMasks(bits, seeds, rest, "uniform", 0.5),
        alphabets.Rankings(ranking(x, sizes), sizes),
        alphabets.TopRankings(ranking(x, sizes, kept), sizes, kept),
    )
    return dict(zip(PACKED, messages, strict=True))


def packed() -> dict[str, dict[str, Any]]:
    """Encode `packed_messages` on the device and decode them to it; return what was copied."""
    import dataclasses

    import second_device

    from fedbench.core.copies import on_device
    from fedbench.payload.base import identical

    answers = {}
    for name, here in packed_messages().items():
        tensors = on_device(here.travelling(), second_device.DEVICE)
        there = dataclasses.replace(here, **tensors)
        packets = here.encode()
        second_device.forget()
        alike = there.encode() == packets
        back, _ = here.decode(packets, here.spec, second_device.DEVICE)
        counts = {"waits": sum(second_device.waits.values())} | dict(second_device.copied)
        assert all(x.device == second_device.DEVICE for x in back.travelling().values())
        second_device.forget()
        alike = alike and identical(back, there)
        compared = {"waits to compare": sum(second_device.waits.values())}
        answers[name] = {"alike": alike} | counts | compared
    return answers


def refused(code: str) -> str:
    """Run lines with ``there``, a tensor of the device; return the error, or ``none``."""
    import second_device
    import torch

    there = torch.arange(6.0, device=second_device.NAME).reshape(2, 3)
    second_device.forget()
    try:
        exec(code, {"torch": torch, "there": there})
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"none, {sum(second_device.waits.values())} waits"


# Of each mechanism, a protocol whose messages it takes.
PRIVATE = {
    **dict.fromkeys(("dp-fedavg", "dp-sgd"), "fedavg"),
    **dict.fromkeys(("noisy-sign", "randomized-response"), "signsgd"),
    **dict.fromkeys(("mask-gaussian", "mask-sampling"), "fedpm"),
}


def rows() -> list[str]:
    """Return what is counted: protocols, rules of FedAvg's messages, prefilters, mechanisms."""
    from fedbench.core import registry
    from fedbench.payload import FloatVectors

    def takes_floats(kind: str, name: str) -> bool:
        return issubclass(FloatVectors, registry.plugin(kind, name).accepts)

    rules = [name for name in registry.names("defense") if takes_floats("defense", name)]
    rules = ["bulyan:f=1" if name == "bulyan" else name for name in rules]  # of 7 rows at least
    filters = registry.names("prefilter")
    senders = ["fedavg" if takes_floats("prefilter", name) else "signsgd" for name in filters]
    return [
        *registry.names("protocol"),
        *(f"fedavg {rule}" for rule in rules),
        *(f"{sender} {name}+mean" for sender, name in zip(senders, filters, strict=True)),
        *(f"{sender} {name}" for name, sender in PRIVATE.items()),
    ]


def write() -> None:
    """Write the golden file anew, a row a line."""
    lines = (f" {json.dumps(row)}: {json.dumps(counted(row))}" for row in rows())
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def answer() -> None:
    """Answer questions until there are no more."""
    kinds: dict[str, Callable[..., Any]] = {
        **{"play": played, "count": counted, "packed": packed, "refused": refused},
        "attack": under_attack,
    }
    out = sys.stdout
    sys.stdout = sys.stderr  # of which no other line may come
    for line in sys.stdin:
        question = json.loads(line)
        print(json.dumps(kinds[question.pop("kind")](**question)), file=out, flush=True)


if __name__ == "__main__":
    os.environ["FEDBENCH_PROBE"] = "off"
    import second_device
    import torch

    second_device.register()  # and nowhere else: it holds for the whole process
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if sys.argv[1:] == ["--write"]:
        write()
    else:
        answer()
