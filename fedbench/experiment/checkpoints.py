"""Checkpoints of a run: what it needs to go on after it was killed, in one file.

A run that goes on from its checkpoint ends with the record of one that was never stopped, but for
its times. The file is one of safetensors (`fedbench.experiment.tensor_store`); its metadata say in
JSON what was run, and on what machine. Reading it runs no code that the file chooses.
"""

import dataclasses
import re
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints

from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from fedbench.core.errors import ConfigError, FedbenchError, require
from fedbench.core.sources import package_of
from fedbench.executors.factory import NAMES, executor
from fedbench.experiment import tensor_store
from fedbench.experiment.measurements import Round
from fedbench.experiment.memories import Memories
from fedbench.experiment.record import Environment, Part
from fedbench.experiment.record_builder import environment
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState

KEY = "fedbench checkpoint"  # of the metadata
INTERVAL = re.compile(r"every=([1-9][0-9]{0,8})(min)?")
OWNERS = {  # plug-ins that the parts of a state belong to
    "server": "protocol",
    "defense": "defense",
    "mechanism": "mechanism",
    "adversary": "attack",
    "learned": "attack",
    "memories": "protocol",
}


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """Place of a run's checkpoint, and how often it is written.

    Args:
        path: File of the checkpoint. A run that finds one of its own there goes on from it; that of
            another run is refused.
        rounds: Rounds from one checkpoint to the next; by default time decides.
        minutes: Minutes from one checkpoint to the next, where ``rounds`` are left out. A run that
            takes less has none.
        automatic: Whether nobody asked for it: a run whose state cannot be written, or whose disk
            is full, then goes on without.
        ours: Whether the file lies in a store under the name of its run, where nobody has a file of
            another kind: one that cannot be read is not used, and begun anew. Elsewhere it is
            refused, as it may be somebody's.
    """

    path: Path
    rounds: int | None = None
    minutes: float = 10.0
    automatic: bool = False
    ours: bool = False

    def __post_init__(self) -> None:
        require("Checkpoint.rounds", self.rounds, self.rounds is None or self.rounds >= 1, ">= 1")
        require("Checkpoint.minutes", self.minutes, self.minutes >= 0, ">= 0")

    @classmethod
    def of(cls, text: str | None, path: Path) -> Self | None:
        """Parse ``--checkpoint`` for a file of a store; None for ``none``.

        No text stands for every ten minutes.

        >>> Checkpoint.of("every=5", Path("x"))
        Checkpoint(path=PosixPath('x'), rounds=5, minutes=10.0, automatic=False, ours=True)
        """
        if text is None:
            return cls(path, automatic=True, ours=True)
        if text == "none":
            return None
        fits = INTERVAL.fullmatch(text)
        require("--checkpoint", text, fits is not None, "every=N rounds, every=Nmin or none")
        assert fits is not None
        number = int(fits[1])
        if fits[2]:
            return cls(path, minutes=float(number), ours=True)
        return cls(path, rounds=number, ours=True)

    def remove(self) -> None:
        """Remove the file, and what a process left that was killed while it wrote one."""
        for path in (self.path, *self.path.parent.glob(f".{self.path.name}.*")):
            path.unlink(missing_ok=True)


class Head(Part):
    """Metadata of a checkpoint: what was run, and where.

    Args:
        format: Version of the file's form.
        id: Id of the run.
        scenario: The run's scenario, with every default written out.
        environment: Machine and versions.
        seconds: Duration of the rounds that are over.
    """

    format: Literal[1] = 1
    id: str
    scenario: Scenario
    environment: Environment
    seconds: float = Field(ge=0, allow_inf_nan=False)


class Keeper:
    """Reader and writer of the checkpoint of one run.

    Args:
        checkpoint: Place of the checkpoint, and how often it is written.
        setup: The run, as it was prepared.
        begun: Time when this process began with it.
    """

    def __init__(self, checkpoint: Checkpoint, setup: Setup, begun: float) -> None:
        self.checkpoint = checkpoint
        self.setup = setup
        self.seconds = 0.0  # that earlier processes took for rounds which need not be played again
        self._begun = begun
        self._written = begun
        self._off = False
        plugins = setup.plugins
        parts = (plugins.protocol, plugins.attack, plugins.mechanism, *plugins.links())
        roots = {package_of(type(part)) for part in parts}
        own = {"fedbench", "fedbench_attacks", "fedbench_defenses", *sys.stdlib_module_names}
        self._packages = roots - own

    def resume(self, state: RunState, chooses: bool) -> tuple[Setup, RunState, list[Round]]:
        """Return setup, state and rounds of the checkpoint; without one, those at the start.

        Where the choice of the executor was fedbench's (``chooses``), it is again that of the
        checkpoint. `ConfigError` if the file is no checkpoint, or one of another run. One of this
        run that is damaged, or from another machine, is not used, and a warning says so.
        """
        path = self.checkpoint.path
        if not path.exists():
            return self.setup, state, []
        try:
            head = read_head(path)
        except ConfigError as error:
            if self.checkpoint.ours:
                return self._anew(state, str(error))
            raise
        if head.id != self.setup.id:
            raise ConfigError(
                f"--checkpoint must be of the run {self.setup.id}, got one of {head.id} "
                f"({self._difference(head)}); remove {path}, or name another file"
            )
        if chooses:
            self._execute_as(head.environment)
        unlike = differing(head.environment, environment(self.setup))
        if unlike:
            return self._anew(state, f"it was written with {unlike}")
        memories = Memories()
        try:
            value, files = tensor_store.read(path, self.setup.shared.device, self._packages)
            restored, rounds = parsed(value, self.setup.scenario.rounds)
            memories.restore(restored["memories"], files)
        except ConfigError as error:
            return self._anew(state, str(error))
        self.seconds = head.seconds
        for name, part in restored.items():
            setattr(state, name, part)
        state.memories = memories
        return self.setup, state, rounds

    def after(self, state: RunState, rounds: list[Round]) -> None:
        """Write a checkpoint after a round, if one is due.

        `ConfigError` if the state has what cannot be written, which is tried after the first round,
        or if the file cannot be; an automatic checkpoint is left out then.
        """
        if self._off or len(rounds) == self.setup.scenario.rounds:
            return
        every = self.checkpoint.rounds
        if every is None:
            due = time.perf_counter() - self._written >= 60 * self.checkpoint.minutes
        else:
            due = len(rounds) % every == 0
        if not due and len(rounds) > 1:
            return
        parts, files = fields(state)
        why = self._obstacle(parts | {"rounds": rounds})
        if why is not None:
            self._off = self.checkpoint.automatic
            if not self._off:
                raise ConfigError(why)
        elif due:
            self._write({"state": parts, "rounds": rounds}, files)

    def _write(self, value: Mapping[str, Any], files: Sequence[Tensor]) -> None:
        head = Head(
            id=self.setup.id,
            scenario=self.setup.scenario,
            environment=environment(self.setup),
            seconds=self.seconds + time.perf_counter() - self._begun,
        )
        path = self.checkpoint.path
        try:
            tensor_store.write(path, value, {KEY: head.model_dump_json()}, self._packages, files)
        except ConfigError as error:
            if not self.checkpoint.automatic:
                raise
            self._end(str(error))
        self._written = time.perf_counter()

    def _end(self, why: str) -> None:
        """Write no more checkpoints, and say so."""
        self._off = True
        warnings.warn(f"the run goes on without checkpoints: {why}", stacklevel=4)

    def _obstacle(self, parts: Mapping[str, Any]) -> str | None:
        """Return a description of the part of a state that cannot be written, or None."""
        for name, part in parts.items():
            why = tensor_store.can_be_written(part, self._packages)
            if why is not None:
                owner = OWNERS.get(name, name)
                text = getattr(self.setup.scenario, owner, "the run")
                return (
                    "--checkpoint must have states of tensors, numbers, texts, lists, tuples, "
                    f"dicts and dataclasses, got another one of {owner} {text}: {why}; leave "
                    "--checkpoint out, or keep no such thing there"
                )
        return None

    def _difference(self, head: Head) -> str:
        """Return in what another run differs: fields of its scenario, or the code."""
        own = self.setup.scenario.model_dump()
        other = head.scenario.model_dump()
        unlike = [f"{name} {other.get(name)!r}" for name in own if other.get(name) != own[name]]
        return ", ".join(unlike[:3]) or "other code or data"

    def _execute_as(self, before: Environment) -> None:
        """Replace the executor by that of the checkpoint, if nothing else differs."""
        same = environment(self.setup).model_copy(
            update={"executor": before.executor, "chunk": before.chunk}
        )
        if before.executor not in NAMES or differing(before, same):
            return
        old = self.setup.executor
        made = executor(
            before.executor,
            old.protocol,
            old.shared,
            old.schedule,
            before.chunk or 1,
            old.precision,
            augment=old.augment,
        )
        self.setup = dataclasses.replace(self.setup, executor=made)

    def _anew(self, state: RunState, why: str) -> tuple[Setup, RunState, list[Round]]:
        text = f"the run begins anew, because {self.checkpoint.path} is of no use: {why}"
        warnings.warn(text, stacklevel=4)
        return self.setup, state, []


def fields(state: RunState) -> tuple[dict[str, Any], list[Tensor]]:
    """Return the parts of a state by name, and the bytes of files in which it keeps memories."""
    names = [field.name for field in dataclasses.fields(state)]
    assert isinstance(state.memories, Memories)  # a dict has the state of a spot check alone
    memories, files = state.memories.parts()
    return {name: getattr(state, name) for name in names} | {"memories": memories}, files


def read_head(path: Path) -> Head:
    """Return the metadata of a checkpoint; `ConfigError` if the file is none."""
    text = tensor_store.read_about(path).get(KEY)
    if text is None:
        raise ConfigError(f"{path} must be a checkpoint of fedbench, got a file without its mark")
    try:
        return Head.model_validate_json(text)
    except (ValidationError, FedbenchError) as error:
        raise ConfigError(
            f"{path} must be a checkpoint of this version, got other metadata; remove it"
        ) from error


def differing(before: Environment, after: Environment) -> str:
    """Return in words where two environments differ in what numbers depend on; "" if nowhere."""
    names = [name for name in Environment.model_fields if name != "platform"]
    pairs = [(name, getattr(before, name), getattr(after, name)) for name in names]
    return ", ".join(f"{name} {a}, not {b}" for name, a, b in pairs if a != b)


def parsed(value: Any, total: int) -> tuple[Mapping[str, Any], list[Round]]:
    """Return the parts of the state and the rounds of a checkpoint's value; `ConfigError` if none.

    ``total`` is the number of rounds of the whole run.
    """
    hints = get_type_hints(RunState) | {"memories": dict[str, Any]}  # see `fields`
    parts = value if isinstance(value, dict) and value.keys() == {"state", "rounds"} else {}
    state = parts.get("state")
    if not isinstance(state, dict) or state.keys() != hints.keys():
        raise ConfigError("it has other parts than a state")
    for name, hint in hints.items():
        if not fits(state[name], hint):
            raise ConfigError(f"{name} of its state is a {type(state[name]).__name__}")
    rounds: list[Round] = parts["rounds"]
    try:
        TypeAdapter(list[Round]).validate_python(rounds)
    except ValidationError as error:
        raise ConfigError("its rounds are none") from error
    if [each.step for each in rounds] != list(range(len(rounds))) or not 0 < len(rounds) < total:
        raise ConfigError("its rounds are not the first ones of the run")
    return state, rounds


def fits(value: object, hint: Any) -> bool:
    """Tell whether a value is of a type, as far as its container goes.

    >>> fits({1: "a"}, dict[int, str]), fits(None, int | None), fits([], dict[int, str])
    (True, True, False)
    """
    if hint is Any:
        return True
    kinds = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return isinstance(value, tuple(get_origin(kind) or kind for kind in kinds))
