"""Whole rounds on another device: nothing of two devices meets, and the record is the CPU's.

The device is that of `second_device.py`, which needs no GPU. Waits and kernels are held to those in
``second_device.json``, which may only fall.
"""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from alphabets import one_of_each_alphabet
from second_device_runs import GOLDEN, PRIVATE, SCENARIO, Process, rows
from torch.utils import backend_registration

from fedbench import Scenario
from fedbench.core import registry
from fedbench.core.errors import ConfigError
from fedbench.experiment.compatibility import resolve

pytestmark = pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
    reason=f"torch {torch.__version__} registers no backend that is written in Python",
)

PROTOCOLS = ["fedavg", *sorted({*registry.names("protocol")} - {"fedavg"})]
ATTACKS = [name for name in registry.names("attack") if name != "none"]
REWRITE = "python tests/second_device_runs.py --write"
SHORTER = {  # what trains triggers, or passes noise through the network
    "a3fl": "a3fl:steps=3,renew=2",
    "iba": "iba:epochs=2",
    "deepsight": "deepsight:samples=32,seeds=1",
    "plan-ahead": "plan-ahead:ahead=1",  # more rounds multiply a rounding, see below
}
QUICK = ("fedavg", "fsl", "fedpm", "fedavg geometric-median")
ROOT = Path(__file__).parents[1]
Case = dict[str, Any]


def takers(attack: str) -> list[str]:
    """Protocols whose alphabet an attack works on."""
    accepts = registry.plugin("attack", attack).accepts
    return [p for p in PROTOCOLS if issubclass(registry.plugin("protocol", p).sends, accepts)]


def home(**fields: Any) -> Case:
    """The first protocol with which a scenario is one, and what it took to be one."""
    for more in ({}, {"per_round": 15}, {"sampling": "poisson"}):
        for protocol in PROTOCOLS:
            case = {"protocol": protocol} | fields | more
            try:
                resolve(Scenario(**SCENARIO | case))
            except ConfigError:
                continue
            return case
    raise AssertionError(f"no protocol for {fields}")


def cases() -> Iterator[Case]:
    """Every protocol with its own rule in both executors, all else in the stacked one.

    Attacks for a few alphabets are dealt to protocols that send these, others to the rules. So is
    PlanAhead: by a mean, which bounds nothing, it sends so much that one rounding changes the run.
    """
    special = {name: fit for name in ATTACKS if (fit := takers(name)) != PROTOCOLS}
    del special["plan-ahead"]
    dealt: Counter[str] = Counter()
    for protocol in PROTOCOLS:
        fitting = [name for name, fit in special.items() if protocol in fit]
        for executor in ("stacked", "loop"):
            least = min(fitting, key=lambda name: (dealt[name], len(special[name])), default="ipm")
            dealt[least] += 1
            yield {"executor": executor, "protocol": protocol, "attack": least}
    general = iter(sorted({*ATTACKS} - {*special}))
    for rule in reversed(registry.names("defense")):  # so no search asks DeepSight, which is slow
        case = home(defense=SHORTER.get(rule, rule))
        attack = next(general, "ipm") if case["protocol"] == "fedavg" else "ipm"
        yield case | {"executor": "stacked", "attack": SHORTER.get(attack, attack)}
    for prefilter in registry.names("prefilter"):
        rule = "vote-margin" if prefilter.endswith("-filter") else "median"
        yield home(defense=f"{prefilter}+{rule}", attack="ipm") | {"executor": "stacked"}
    for mechanism in registry.names("mechanism"):
        for executor in ("stacked", "loop"):
            yield home(mechanism=mechanism) | {"executor": executor}


CASES = {" ".join(map(str, case.values())): case for case in cases()}


QUICK_CASES = [
    name
    for name, case in CASES.items()
    if case["executor"] == "stacked"
    or ("mechanism" not in case and case["protocol"] in one_of_each_alphabet())
]


@pytest.fixture(scope="module")
def process() -> Iterator[Process]:
    started = Process()
    yield started
    started.end()


@pytest.mark.parametrize("name", QUICK_CASES)
def test_a_round_on_another_device_is_the_round_on_the_cpu(name: str, process: Process) -> None:
    assert process.ask(kind="play", **CASES[name]) == {"differences": []}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_a_run_on_another_device_is_the_run_on_the_cpu(name: str, process: Process) -> None:
    assert process.ask(kind="play", rounds=3, **CASES[name]) == {"differences": []}


def test_every_plug_in_has_its_case() -> None:
    words = {word for name in CASES for word in re.split("[ +:]", name)}
    for kind in ("protocol", "attack", "defense", "prefilter", "mechanism"):
        assert set(registry.names(kind)) - words <= {"none"}


@pytest.mark.edges(*QUICK)
@pytest.mark.parametrize("name", json.loads(GOLDEN.read_text()))
def test_waits_of_a_round_and_kernels_of_a_step_only_fall(name: str, process: Process) -> None:
    golden = json.loads(GOLDEN.read_text())[name]
    now = process.ask(kind="count", row=name)
    assert now == golden, f"what rose must fall again; if all fell: {REWRITE}"


def test_messages_that_are_made_client_by_client_are_looked_at_together(process: Process) -> None:
    few, many = (
        process.ask(kind="attack", malicious=share, protocol="fsl") for share in (0.1, 0.4)
    )
    assert few == many


def test_every_plug_in_is_counted() -> None:
    assert list(json.loads(GOLDEN.read_text())) == rows(), f"then: {REWRITE}"
    assert PRIVATE.keys() == set(registry.names("mechanism")) - {"none"}


MIXED = "RuntimeError: Expected all tensors to be on the same device, but found at least two"


@pytest.mark.parametrize(
    ("code", "answer"),
    {
        "there + torch.ones(2, 3)": MIXED,
        "torch.cat([there, torch.ones(1, 3)])": MIXED,
        "there @ torch.ones(3)": MIXED,
        "there[0] = torch.ones(2, 3)[0][torch.tensor([0, 1, 2])]": "none, 1 waits",
        "there.index_put_((there[0, :1].long(),), torch.ones(1, 3))": MIXED,
        "torch.ones(3)[there[0].long()]": "RuntimeError: indices should be either on cpu or on",
        "there.numpy()": "TypeError: can't convert second:0 device type tensor to numpy",
        "__import__('numpy').asarray(there)": "TypeError: can't convert second:0 device type",
        "there + torch.ones(())": "none, 0 waits",  # a number of the CPU is handed to the kernel
        "there.mul_(2).sum().sqrt()": "none, 0 waits",
        "torch.zeros(3, device=there.device)": "none, 0 waits",
        "there[torch.tensor([0])]": "none, 1 waits",  # the index is copied
        "torch.tensor([1.0], device=there.device)": "none, 1 waits",
        "there.cpu()": "none, 1 waits",
        "there.sum().item()": "none, 1 waits",
        "bool((there > 0).all())": "none, 1 waits",
        "there.tolist()": "none, 1 waits",
        "there.nonzero()": "none, 1 waits",
        "there[there > 1]": "none, 1 waits",
        "there[there > 1] = 0.0": "none, 0 waits",  # filled where they are
        "there.to('cpu', non_blocking=True)": "none, 0 waits",
    }.items(),
)
def test_the_device_refuses_and_waits_as_cuda_does(
    code: str, answer: str, process: Process
) -> None:
    assert process.ask(kind="refused", code=code).startswith(answer)


def test_a_registered_backend_goes_by_its_name(process: Process) -> None:
    choose = "from fedbench.experiment.prepare import choose_device as choose\n"
    matching = "assert choose('second') == there.device, choose('second')"
    assert process.ask(kind="refused", code=choose + matching).startswith("none")
    other = process.ask(kind="refused", code=choose + "choose('tpu')")
    assert other == "ConfigError: --device must be auto, cpu, cuda, mps or second, got 'tpu'"
    plain = "assert choose('auto').type == choose('cpu').type == 'cpu'"
    assert process.ask(kind="refused", code=choose + plain).startswith("none")


@dataclass(frozen=True)
class Wrong:
    """A line that is right on a CPU only, and the question whose answer shows it."""

    mistake: str
    file: str
    line: str
    changed: str
    finding: str  # a part of the answer
    case: Case = field(default_factory=dict)  # a round of it; none: what FedAvg is counted at


def test_nothing_waits_more_often_with_more_clients_nor_more_than_twenty_times_a_round() -> None:
    waits = {name: row["waits"] for name, row in json.loads(GOLDEN.read_text()).items()}
    assert {name: w for name, w in waits.items() if w[0] != w[1] or w[0] > 20} == {}


STACKED = {"kind": "play", "executor": "stacked", "protocol": "fedavg"}
WRONG = (
    Wrong(
        "NumPy of a tensor of the device",
        "fedbench/payload/floats.py",
        "fetched(self.x).contiguous().numpy()",
        "self.x.contiguous().numpy()",
        "device type tensor to numpy",
        STACKED,
    ),
    Wrong(
        "what was received stays on the CPU",
        "fedbench/payload/floats.py",
        "cls(copied_to(x, device)), right",
        "cls(x), right",
        "same device",
        STACKED,
    ),
    Wrong(
        "a tensor made without a device in the loss",
        "fedbench/executors/training.py",
        "torch.arange(logits.shape[1], device=y.device)",
        "torch.arange(logits.shape[1])",
        "same device",
        STACKED,
    ),
    Wrong(
        "a cache that does not know the device",
        "fedbench/core/blocks.py",
        "_matrix(factor, x.dtype, str(x.device))",
        '_matrix(factor, x.dtype, "cpu")',
        "same device",
        STACKED | {"protocol": "eden"},
    ),
    Wrong(
        "a draw on the CPU that is not moved",
        "attacks/fedbench_attacks/noise.py",
        "normal(*x.shape, device=x.device)",
        "normal(*x.shape)",
        "same device",
        STACKED | {"attack": "noise"},
    ),
    Wrong(
        "a tensor of the CPU in a rule",
        "defenses/fedbench_defenses/foolsgold.py",
        "products = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)",
        "products = torch.zeros(len(x), len(x), dtype=torch.float64)",
        "same device",
        STACKED | {"defense": "foolsgold", "attack": "ipm"},
    ),
    Wrong(
        "the way of the CPU taken on the device",
        "fedbench/protocols/fsl.py",
        "    if accelerated(scores.device):\n",
        "    if scores.is_meta:\n",
        "device type tensor to numpy",
        STACKED | {"protocol": "fsl"},
    ),
    Wrong(
        "another number in a way that only a device takes",
        "fedbench/protocols/fsl.py",
        "values.amin(dim=1, keepdim=True)",
        "values.amax(dim=1, keepdim=True)",
        "on the device",
        STACKED | {"protocol": "fsl"},
    ),
    Wrong(
        "an index of the CPU into a tensor of the device",
        "fedbench/executors/vmap.py",
        "labels[copied_to(order, x.device)]",
        "labels[order]",
        '"waits": [7, 7]',
    ),
    Wrong(
        "a copy for each client",
        "fedbench/payload/floats.py",
        "fetched(self.x).contiguous().numpy()",
        "np.stack([row.cpu().numpy() for row in self.x])",
        '"waits": [12, 17]',
    ),
    Wrong(
        "more to launch in each step",
        "fedbench/executors/training.py",
        "return -chosen.sum() /",
        "return -chosen.clone().sum() /",
        '"kernels": 51',
    ),
)


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG, ids=[wrong.mistake for wrong in WRONG])
def test_a_wrong_line_is_found(wrong: Wrong, tmp_path: Path) -> None:
    paths = [tmp_path / folder for folder in ("", "attacks", "defenses")]
    for package in ("fedbench", "attacks/fedbench_attacks", "defenses/fedbench_defenses"):
        shutil.copytree(ROOT / package, tmp_path / package)
    source = tmp_path / wrong.file
    right = source.read_text()
    assert right.count(wrong.line) == 1
    source.write_text(right.replace(wrong.line, wrong.changed))
    process = Process(os.pathsep.join(map(str, paths)))
    answer = process.ask(**wrong.case or {"kind": "count", "row": "fedavg"})
    process.end()
    assert wrong.finding in json.dumps(answer)
