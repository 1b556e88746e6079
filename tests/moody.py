"""Packages of other people, as installed: an attack that fails, and sweeps with it."""

import os
from pathlib import Path

from fedbench.experiment.record import Record, read
from fedbench.results.store import Failure

HUNDRED = """
seeds = [0, 1]
[scenario]
model = "micro"
clients = 8
per_round = 4
malicious = 0.25
rounds = [1, 2]
epochs = 1
[[grid]]
protocol = ["fedavg", "signsgd", "topk", "qsgd", "fedpm"]
attack = ["sign-flip", "dyn-opt", "dyn-opt:direction=sign", "dyn-opt:direction=unit"]
"""

MOODY = '''
import os
import signal
from dataclasses import dataclass
from pathlib import Path

import torch

from fedbench.api import Attack


@dataclass(frozen=True, kw_only=True)
class Moody(Attack):
    """Fail `times` times, then be honest.

    Args:
        times: How often.
        how: What happens.
    """

    times: int = 99
    how: str = "raise"

    def craft(self, view, memory):
        diary = Path(os.environ["DIARY"])
        with diary.open("a") as file:
            file.write(self.how + " ")
        if len(diary.read_text().split()) <= self.times:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            while self.how == "wait":
                pass
            if self.how == "memory":
                raise torch.OutOfMemoryError("CUDA out of memory")
            if self.how == "allocator":
                raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried 10**12")
            raise ZeroDivisionError("moody today")
        return view.own, memory
'''


def package(site: Path, name: str, points: dict[str, list[str]], **modules: str) -> Path:
    """The folder, with a package in it: its entry points by kind, and the code of its modules."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = [f"[fedbench.{kind}]\n" + "\n".join(lines) for kind, lines in points.items()]
    (info / "entry_points.txt").write_text("\n".join(groups) + "\n")
    for module, code in modules.items():
        (site / f"{module}.py").write_text(code)
    return site


def installed(folder: Path, code: str = MOODY) -> Path:
    """The folder, with a package in it that has the attack `moody`."""
    points = {"attacks": ["moody = moody_package:Moody"]}
    return package(folder, "moody", points, moody_package=code)


def first(folder: Path) -> str:
    """A ``PYTHONPATH`` that begins with the folder."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))


def records(folder: Path) -> dict[str, Record]:
    """Records of the store by file name."""
    return {path.name: read(path) for path in (folder / "store").glob("*.json")}


def failures(folder: Path) -> list[Failure]:
    paths = sorted((folder / "store" / "failed").glob("*.json"))
    return [Failure.model_validate_json(path.read_bytes()) for path in paths]
