"""Ids of runs with a module of one's own: they change with all that changes the numbers."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from enum import Enum
from functools import partial
from pathlib import Path

import pytest
import torch
from own_models import Dropping, Plain
from torch import Tensor, nn

from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.sources import SourceFile, each_once, source_at, source_of
from fedbench.experiment.scenario import Scenario
from fedbench.models.fingerprints import described, written
from fedbench.models.modules import ModuleModel


class Scaled(nn.Module):
    """A linear layer, what is applied to it, and by how much."""

    def __init__(self, act: Callable[[Tensor], Tensor] = torch.relu, scale: float = 1.0) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        self.act = act
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.layer(x.flatten(1))
        return self.act(hidden) * self.scale


class Private(nn.Module):
    """Linear layer of zeros, and a number that its weights do not show."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 10)
        nn.init.zeros_(self.layer.weight)
        nn.init.zeros_(self.layer.bias)
        self._by = by

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layer(self._by * x.flatten(1))
        return logits


class Unsaved(Private):
    """The same with the number in a buffer that no state dict has."""

    def __init__(self, by: float) -> None:
        super().__init__(1.0)
        self.register_buffer("number", torch.tensor(by), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        assert isinstance(self.number, Tensor)
        return super().forward(self.number * x)


class Factory:
    """Width of the networks that `build` makes."""

    def __init__(self, width: int) -> None:
        self.width = width

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(64, self.width), nn.Linear(self.width, 10))


class Kind(Enum):
    """Two names, which are values."""

    A = object()
    B = object()


def over(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: f(x)


def times(by: float) -> Callable[[Tensor], Tensor]:
    return over(lambda x: by * x)


def again(by: float) -> Callable[[Tensor], Tensor]:
    functions: list[Callable[[Tensor], Tensor]] = []  # that hold themselves

    def act(x: Tensor) -> Tensor:
        return by * x if len(x) < 2 else functions[0](x[:1])

    functions.append(act)
    return act


def seeded(act: Callable[[Tensor], Tensor] = torch.relu, scale: float = 1.0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Scaled(act, scale)


def frozen() -> nn.Module:
    module = seeded()
    next(module.parameters()).requires_grad_(False)
    return module


def test_modules_that_compute_otherwise_have_other_names_though_their_weights_are_alike() -> None:
    times = [lambda x, by=by: x * by for by in (2.0, 3.0)]  # of one line
    makers = [
        *(seeded(), seeded(torch.tanh), seeded(scale=2.0), frozen()),
        *map(seeded, times),
        *(partial(seeded, scale=by) for by in (4.0, 5.0)),
        *(lambda by=by: seeded(scale=by) for by in (6.0, 7.0)),
        *(lambda: seeded(torch.sin), lambda: seeded(torch.cos)),
        *(Factory(width).build for width in (8, 16)),
    ]
    assert len({Scenario(model=maker).model for maker in makers}) == len(makers) == 14
    for again in (seeded, lambda: seeded(scale=2.0), Factory(8).build):
        assert Scenario(model=again).model == Scenario(model=again).model


class Listed(Private):
    """A module with another one, and with itself, in a list that torch does not look into."""

    def __init__(self, by: float) -> None:
        super().__init__(1.0)
        self.others = [Private(by), self, self.layer]


class Keyed(Private):
    """A module with a table of numbers whose keys may be numbers or texts."""

    def __init__(self, by: float) -> None:
        super().__init__(1.0)
        self.table = {by: 1} if by == 1.0 else {str(1.0): 1}


@pytest.mark.parametrize("made", [Private, Unsaved, Listed, Keyed])
def test_private_attributes_and_buffers_that_are_not_saved_tell_modules_apart(
    made: Callable[[float], nn.Module],
) -> None:
    models = [ModuleModel(module=made(by)).identity for by in (1.0, 2.0, 1.0)]
    assert models[0] == models[2] != models[1]


def test_what_is_torchs_own_business_is_in_no_name() -> None:
    module = Private(1.0)
    before = described(module)
    module.register_forward_hook(lambda *_: None)  # under a number of this process
    assert described(module) == before
    assert "_flat_weights" not in described(nn.GRU(1, 1))


def test_a_scenario_keeps_the_weights_that_its_module_had() -> None:
    module = seeded()
    model = ModuleModel(module=module)
    before = model.build((1, 8, 8), 10).init(Key(0))["layer.weight"].clone()
    with torch.no_grad():
        next(module.parameters()).mul_(2)
    assert torch.equal(model.build((1, 8, 8), 10).init(Key(0))["layer.weight"], before)


def test_a_module_that_a_function_returns_each_time_is_left_as_it_is() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.BatchNorm1d(10)).double()
    weights = module.state_dict()["1.weight"].clone()
    model = ModuleModel(module=lambda: module, init="fresh")
    model.build((1, 8, 8), 10).init(Key(0))
    after = module.state_dict()["1.weight"]
    assert after.dtype == torch.float64
    assert torch.equal(after, weights)
    assert "forward" not in vars(module[2])


def test_a_class_that_needs_arguments_is_refused_in_one_line() -> None:
    class Wide(Plain):
        def __init__(self, width: int) -> None:
            super().__init__(width)

    with pytest.raises(ConfigError, match=r"without arguments, got TypeError.*functools.partial"):
        Scenario(model=Wide)
    assert Scenario(model=partial(Wide, 64)).model != Scenario(model=Dropping).model


def test_what_is_written_has_no_address_and_tells_values_apart() -> None:
    values: list[object] = [
        None,
        1,
        1.0,
        "1",
        [1],
        {"1": 1},
        torch.ones(1),
        torch.ones(2),
        torch.relu,
        Plain,
    ]
    values += [{1}, {2}, frozenset({1}), b"1", b"2", range(1), range(2), slice(1), Kind.A, Kind.B]
    values += [over(lambda x: x + 1.5), over(lambda x: x + 2.5)]
    values += [lambda x, *, by=by: x * by for by in (1, 2)]  # of one line
    values += [lambda x: x, lambda x: -x]
    values += [times(1.5), times(2.5), again(1.5), again(2.5)]
    texts = [written(value) for value in values]
    assert len(set(texts)) == len(values)
    assert written({"b", "a", "c"}) == written({"c", "b", "a"})
    objects = [object(), torch.relu, Plain, partial(max, 1), lambda: 1, {object(): 1, max: 2}]
    assert "0x" not in written(objects)


TYPED = """
from dataclasses import dataclass
from fedbench.api import Attack
from fedbench.core.sources import source_of

BY = 2.0

@dataclass(frozen=True, kw_only=True)
class Typed(Attack):
    times = 1.0

    @property
    def share(self):
        return 0.5

    def craft(self, view, memory):
        return view.own.nearest(BY * self.times * self.share * view.own.values()), memory

print(source_of(Typed).sha256)
"""


@pytest.mark.slow
def test_a_class_that_was_typed_at_a_prompt_has_the_digest_of_its_own_code() -> None:
    edits = [
        ("", ""),
        ("BY = 2.0", "BY = 3.0"),
        ("s = 1.0", "s = 4.0"),
        ("0.5", "0.6"),
        ("* s", "/ s"),
    ]
    digests = []
    for old, new in (*edits, ("", "")):
        line = [sys.executable, "-c", TYPED.replace(old, new, 1)]
        digests.append(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
    assert digests[0] == digests[-1]
    assert len(set(digests)) == len(edits)


def test_the_digest_of_typed_code_does_not_depend_on_who_else_holds_a_constant() -> None:
    code = "class Typed:\n    def craft(self):\n        return 'a text', (1.5, 'and another')\n"
    names: dict[str, object] = {"__name__": "__main__"}
    exec(compile(code, "<typed>", "exec"), names)
    typed = names["Typed"]
    assert isinstance(typed, type)
    alone = source_of(typed)
    held = [*vars(typed)["craft"].__code__.co_consts, vars(typed)["craft"].__code__.co_consts]
    assert source_of(typed) == alone
    assert held


def test_a_private_number_of_a_typed_class_is_part_of_its_digest() -> None:
    digests = set()
    for text in ("_by = 1.0", "_by = 2.0"):
        names: dict[str, object] = {"__name__": "__main__"}
        code = f"class Typed:\n    {text}\n    def craft(self):\n        return self._by\n"
        exec(compile(code, "<typed>", "exec"), names)
        typed = names["Typed"]
        assert isinstance(typed, type)
        digests.add(source_of(typed).sha256)
    assert len(digests) == 2


def test_sources_of_a_run_are_in_their_order_and_each_is_there_once() -> None:
    first, second = (SourceFile(name, "0" * 64) for name in ("a.py", "b.py"))
    assert each_once([first, second, first]) == [first, second]


def test_a_file_that_was_edited_meanwhile_has_another_digest(tmp_path: Path) -> None:
    path = tmp_path / "attack.py"
    for number, text in enumerate(("eps = 1.0\n", "eps = 2.0\n")):
        path.write_text(text)
        os.utime(path, ns=(number, number))
        assert source_at(str(path)).sha256 == hashlib.sha256(text.encode()).hexdigest()
