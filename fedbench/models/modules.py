"""Your own `torch.nn.Module` as a network: its names are kept, nothing of it is rewritten."""

import hashlib
import math
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedbench.core.blame import error_line
from fedbench.core.errors import ConfigError, Incompatible, require
from fedbench.core.registry import UNWRITTEN
from fedbench.core.rng import Key
from fedbench.core.sources import source_of
from fedbench.core.trees import Tree
from fedbench.models.draws import draws_globally, own_draws
from fedbench.models.fingerprints import described
from fedbench.models.layers import Pass, take_over
from fedbench.models.models import Model
from fedbench.models.network import Image, Network, Step
from fedbench.models.trials import (
    TRIED,
    copied,
    mixes_samples,
    require_callable,
    require_trainable,
)

Start = Literal["given", "fresh"]
Make = Callable[[], nn.Module]

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.RNNBase, nn.MultiheadAttention)
MATRICES = ("weight*", "*_proj_weight")  # of these layers, which a mask covers by rule
INSTANCES = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
RESCALING = (nn.GroupNorm, nn.LayerNorm, *INSTANCES, nn.LocalResponseNorm)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleModel(Model):
    """A torch.nn.Module of your own: an instance, what makes one, or `make` of a subclass.

    Trained are the parameters with ``requires_grad``; the others, and buffers, stay as they are and
    never travel. Means and variances of batch norm are running statistics.

    Args:
        module: An instance, which is copied, or a function without arguments that returns one, such
            as its class.
        weights: Patterns (``fnmatch``) of the parameters that masks, rankings and pruning cover; by
            default the weights of linear, convolution, recurrent and attention layers.
        init: First weights: ``given``, those of the instance, alike for all seeds, or what the
            function draws under the run's seed; ``fresh``, what ``reset_parameters`` of every layer
            of an instance draws under it.
    """

    module: nn.Module | Make | None = field(default=None, repr=False, metadata=UNWRITTEN)
    weights: tuple[str, ...] = field(default=(), metadata=UNWRITTEN)
    init: Start = field(default="given", metadata=UNWRITTEN)

    def __post_init__(self) -> None:
        name = type(self).__name__
        makes = type(self).make is not ModuleModel.make
        fits = makes or isinstance(self.module, nn.Module) or callable(self.module)
        requirement = "a torch.nn.Module or a function that returns one"
        require(f"{name}.module", self.module, fits, requirement)
        require(f"{name}.init", self.init, self.init in ("given", "fresh"), "given or fresh")
        listed = not isinstance(self.weights, str)
        require(f"{name}.weights", self.weights, listed, "a tuple of names or patterns")
        if isinstance(self.module, nn.Module):  # later training of the caller's changes no scenario
            object.__setattr__(self, "module", copied(self.module))

    @property
    def name(self) -> str:
        """Name of the module's class or of the function that makes it."""
        if isinstance(self.module, nn.Module):
            return type(self.module).__name__
        maker = self.module.func if isinstance(self.module, partial) else self.module
        return str(getattr(maker, "__name__", type(self).__name__)).strip("<>_")

    @cached_property
    def identity(self) -> str:
        """SHA-256 of choices, source code, and the module itself (`described`), in hex.

        A function is called for it once, so that two functions of one file that make different
        modules differ. `ConfigError` if it cannot be called without arguments.
        """
        hashed = hashlib.sha256(repr(self).encode())
        if self.module is None:
            hashed.update(source_of(type(self)).sha256.encode())
        else:
            with own_draws(Key(0)):
                module = self._made(self._given)
            hashed.update(described(module).encode())
        return hashed.hexdigest()

    def _given(self) -> nn.Module:
        """Return the module as it was given; of a function what it makes."""
        if isinstance(self.module, nn.Module):
            return self.module
        assert self.module is not None
        try:
            return self.module()
        except TypeError as error:
            raise ConfigError(
                f"{type(self).__name__}.module must make a module when it is called without "
                f"arguments, got {error_line(error)}; use functools.partial"
            ) from error

    def _made(self, make: Make) -> nn.Module:
        made = make()
        if not isinstance(made, nn.Module):
            raise ConfigError(
                f"{type(self).__name__}.module must make a torch.nn.Module, got "
                f"{type(made).__name__}"
            )
        require_callable(made)
        return made

    def make(self, image: Image, classes: int) -> nn.Module:
        """Return the module for samples of this shape; it may draw from torch's generators."""
        return self._given()

    def build(self, image: Image, classes: int) -> Network:
        """Build the network; `ConfigError` if the module cannot be trained by these protocols."""

        def make() -> nn.Module:
            # A copy: a function may return one module of the caller's each time.
            return copied(self._made(lambda: self.make(image, classes)))

        require("classes", classes, classes >= 1, ">= 1")
        fixed = isinstance(self.module, nn.Module) and self.init == "given"
        return built(make, image, classes, tuple(self.weights), self.init == "fresh", fixed)


def built(
    make: Make, image: Image, classes: int, patterns: Sequence[str], fresh: bool, fixed: bool
) -> "ModuleNet":
    """Make a module, try it on two samples in use and in training, and return its network."""
    with own_draws(Key(0)):
        module = make()
    name = type(module).__name__
    if any(isinstance(p, nn.UninitializedParameter) for p in module.parameters()):
        raise ConfigError(f"{name} has lazy layers without shapes; call it once on a sample first")
    if any(p.is_complex() for p in module.parameters()):
        raise ConfigError(f"{name} must have real parameters, got complex ones")
    other = {str(p.dtype) for p in module.parameters()} - {"torch.float32"}
    module = module.float().cpu().train()
    now = Pass()
    statistics = take_over(module, now)
    trained = {n: tuple(p.shape) for n, p in module.named_parameters() if p.requires_grad}
    if not trained:
        raise ConfigError(f"{name} must have parameters to train, got none with requires_grad")
    weights = covered(module, trained, patterns)
    buffers = dict(module.named_buffers())
    order = [*weights, *(n for n in trained if n not in weights)]
    shapes = {n: trained[n] for n in order} | {n: tuple(buffers[n].shape) for n in statistics}
    network = ModuleNet(
        image=tuple(image),
        classes=classes,
        module=module,
        make=None if fixed else make,
        fresh=fresh,
        now=now,
        table=shapes,
        weights=tuple(weights),
        statistics=tuple(statistics),
    )
    try:
        network.tokens  # noqa: B018  tries it
    except ConfigError as error:
        if not other:
            raise
        raise ConfigError(
            f"{error}; parameters and samples are float32 here, so cast none to {other.pop()}"
        ) from error
    require_trainable(network, module, now)
    return network


def covered(
    module: nn.Module, trained: dict[str, tuple[int, ...]], patterns: Sequence[str]
) -> list[str]:
    """Return the names of the weights that masks cover, in the module's order."""
    if patterns:
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in trained):
                few = ", ".join(list(trained)[:3])
                raise ConfigError(
                    f"weights {pattern!r} must match a parameter of {type(module).__name__}, "
                    f"got none; it has {few} ..."
                )
        return [name for name in trained if any(fnmatchcase(name, p) for p in patterns)]
    matrices = {
        id(x)  # whichever of its names a shared one has here
        for layer in module.modules()
        if isinstance(layer, LAYERS)
        for part, x in layer.named_parameters(recurse=False)
        if any(fnmatchcase(part, pattern) for pattern in MATRICES)
    }
    shared = [n for n, x in module.named_parameters() if n in trained and id(x) in matrices]
    if not shared:
        raise ConfigError(
            f"{type(module).__name__} must have a linear or convolution layer with a weight that "
            "is trained, or ModuleModel(weights=...) that names what a mask covers, got none"
        )
    return shared


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleNet(Network):
    """A module called as a function of its parameters and running statistics."""

    image: Image
    classes: int
    module: nn.Module = field(repr=False)  # an own copy, on the CPU, whose values are not used
    make: Make | None = field(repr=False)  # what draws first weights; None: the module has them
    fresh: bool
    now: Pass = field(repr=False)
    table: dict[str, tuple[int, ...]] = field(repr=False)
    weights: tuple[str, ...] = field(repr=False)
    statistics: tuple[str, ...] = field(repr=False)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter: `weights`, the rest, `statistics`, by the module's names."""
        return self.table

    def state_dict(self, params: Tree) -> Tree:
        """Return the parameters with the frozen ones and the buffers, as they were given.

        A parameter that has several names, as tied weights have, is there under each of them.
        """
        own = self.module.state_dict(keep_vars=True)
        names = {id(x): name for name, x in own.items() if name in params}
        given = {name: x.detach() for name, x in own.items() if id(x) not in names}
        shared = {name: params[names[id(x)]] for name, x in own.items() if id(x) in names}
        return given | shared | params

    @property
    def title(self) -> str:
        """Name of the module's class, with a digest of its layers."""
        digest = hashlib.sha256(repr(self.module).encode()).hexdigest()[:12]
        return f"{type(self.module).__name__} {digest}"

    @property
    def rescales(self) -> bool:
        """Whether some layer normalises, but for batch norm."""
        return any(isinstance(layer, RESCALING) for layer in self.module.modules())

    @cached_property
    def tokens(self) -> bool:
        """Whether samples are whole numbers, as an embedding takes them; found by trying."""
        errors = []
        for tokens in (False, True):
            x = self._drawn(tokens, TRIED, Key(0))
            try:
                with torch.no_grad(), own_draws(Key(0)):
                    self._call(self._own, x, None)
            except Exception as error:  # foreign code raises anything
                errors.append(error)
            else:
                return tokens
        if isinstance(first := errors[0], ConfigError):
            raise first
        channel = "; if they are images, give them as x[:, None]" * (len(self.image) == 2)
        raise ConfigError(
            f"{type(self.module).__name__} must take samples of shape (n, "
            f"{', '.join(map(str, self.image))}), got {error_line(first)}{channel}"
        ) from first

    def require(self, x: Tensor) -> None:
        """Raise `Incompatible` unless the module answers to these samples, the extreme ones."""
        try:
            with torch.no_grad(), own_draws(Key(0)):
                self._call(self._own, x, None)
        except Exception as error:  # foreign code raises anything
            whole = x.dtype == torch.int64
            given = f"token ids from {x.min()} to {x.max()}" if whole else "numbers"
            other = "numbers: x.astype(float)" if whole else "token ids: x.astype(int)"
            beyond = isinstance(error, IndexError) or "not in the valid range" in str(error)
            short = whole and beyond  # the second is what EmbeddingBag says
            remedy = f"give its embedding {x.max() + 1} rows" if short else f"pass {other}"
            remedy = "number them from 0" if short and x.min() < 0 else remedy
            raise Incompatible(
                f"{type(self.module).__name__} must take the samples of the data, {given}, "
                f"got {error_line(error)}; {remedy}"
            ) from error

    def examples(self, count: int, key: Key, device: torch.device | str = "cpu") -> Tensor:
        """Draw normal values, or the token ids 0 and 1, ``(count, *image)``."""
        return self._drawn(self.tokens, count, key, device)

    def _drawn(
        self, tokens: bool, count: int, key: Key, device: torch.device | str = "cpu"
    ) -> Tensor:
        if not tokens:
            return key.normal(count, *self.image, device=device)
        drawn = key.integers(2, count * math.prod(self.image), device=device)
        return drawn.reshape(count, *self.image)

    @property
    def _own(self) -> Tree:
        """Return the copy's own values, for trials."""
        values = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
        return {name: values[name].detach() for name in self.table}

    @cached_property
    def _constants(self) -> dict[torch.device, Tree]:
        return {}

    def constants(self, device: torch.device) -> Tree:
        """Return parameters that are not trained, and buffers, on a device."""
        if device not in self._constants:
            values = dict(self.module.named_parameters()) | dict(self.module.named_buffers())
            frozen = {name: x.detach() for name, x in values.items() if name not in self.table}
            self._constants[device] = {name: x.to(device) for name, x in frozen.items()}
        return self._constants[device]

    def _call(self, params: Tree, x: Tensor, step: Step | None) -> Tensor:
        """Call the module, and require logits of the right shape."""
        now = self.now
        now.step = step
        now.features = None
        now.calls.clear()
        training = step is not None
        if self.module.training != training:
            self.module.train(training)
        dtype = params[next(iter(self.table))].dtype
        constants = self.constants(x.device).items()
        frozen = {n: c.to(dtype) if c.is_floating_point() else c for n, c in constants}
        values = {name: params[name] for name in self.table} | frozen  # clients may be sent more
        # `Tensor.view`, common in modules, needs the usual memory layout, which `contiguous` leaves
        # out where there is one channel.
        x = x.reshape(-1).reshape(x.shape)
        try:
            out = functional_call(self.module, values, (x,))
        finally:
            now.step = None
        now.assigned = [name for name, constant in frozen.items() if values[name] is not constant]
        out = getattr(out, "logits", out)
        name = type(self.module).__name__
        if not isinstance(out, Tensor):
            got = f"{type(out).__name__}; return the tensor alone"
            got = "None; end its forward with return" if out is None else got
            raise ConfigError(
                f"{name} must return a tensor of logits (n, {self.classes}), got {got}"
            )
        if out.shape != (len(x), self.classes):
            raise ConfigError(
                f"{name} must return logits ({len(x)}, {self.classes}), got {tuple(out.shape)}; "
                f"give its last layer {self.classes} outputs"
            )
        return out

    def logits(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        """Call the module on ``x (B, *image)``, in training mode with a ``step``."""
        logits = self._played(params, x, step)
        self.now.features = None
        return logits

    def _played(self, params: Tree, x: Tensor, step: Step | None) -> Tensor:
        """Call the module; if it draws by itself, what it draws follows from the step's key."""
        draws = step is not None and self.draws
        with own_draws(step.key, x.device) if step is not None and draws else nullcontext():
            return self._call(params, x, step)

    def features(self, params: Tree, x: Tensor, step: Step | None = None) -> Tensor:
        """Call the module, and return what its last linear layer got."""
        self.head  # noqa: B018  `ConfigError` if there is none
        self._played(params, x, step)
        features = self.now.features
        assert features is not None
        self.now.features = None
        return features

    @cached_property
    def _last(self) -> str | None:
        """Name of the linear layer that returns the logits; None if there is none."""
        calls: list[tuple[str, Tensor, Tensor]] = []
        hooks = [
            layer.register_forward_hook(
                lambda _, given, out, name=name: calls.append((name, given[0], out))
            )
            for name, layer in self.module.named_modules()
            if isinstance(layer, nn.Linear)
        ]
        with torch.no_grad():
            out = self._call(self._own, self.examples(TRIED, Key(0)), None)
        for hook in hooks:
            hook.remove()
        if not calls:
            return None
        name, given, last = calls[-1]
        alone = sum(called == name for called, _, _ in calls) == 1
        fits = last is out and given.dim() == 2 and alone and inside(name, "weight") in self.table
        if not fits:
            return None

        def note(_: nn.Module, given: tuple[Tensor, ...]) -> None:
            self.now.features = given[0]

        self.module.get_submodule(name).register_forward_pre_hook(note)
        return name

    @property
    def head(self) -> str:
        """Name of the weights of the last layer; `ConfigError` if it is not linear."""
        if self._last is None:
            raise ConfigError(
                f"{type(self.module).__name__} must end in a torch.nn.Linear that is trained, for "
                "those that look at its last layer or its features, got another end"
            )
        return inside(self._last, "weight")

    @property
    def head_bias(self) -> str | None:
        """Name of the last layer's bias; None if it has none."""
        name = None if self._last is None else inside(self._last, "bias")
        return name if name in self.table else None

    @property
    def head_names(self) -> tuple[str, ...]:
        """Names of all parameters of the last layer; none if it is not linear."""
        return () if self._last is None else super().head_names

    def fan_in(self, name: str) -> int:
        """Return the number of inputs that one output of a weight sums."""
        shape = self.table[name]
        return math.prod(shape[1:]) if len(shape) > 1 else 1

    def fan_out(self, name: str) -> int:
        """Return the number of outputs of a weight that one input goes into."""
        shape = self.table[name]
        return math.prod(shape) // shape[1] if len(shape) > 1 else 1

    def init(self, key: Key, device: torch.device | str = "cpu") -> Tree:
        """Return the module's own values, or those that are drawn anew under the key."""
        if self.make is None:
            return {name: x.clone().to(device) for name, x in self._own.items()}
        with own_draws(key.fold("module")):
            module = self.make()
            if self.fresh:
                for layer in module.modules():
                    reset = getattr(layer, "reset_parameters", None)
                    if callable(reset):
                        reset()
        values = dict(module.named_parameters()) | dict(module.named_buffers())
        return {name: values[name].detach().float().to(device) for name in self.table}

    @cached_property
    def draws(self) -> bool:
        """Whether a training pass draws from a global generator, dropout layers aside."""
        step = Step(Key(0), torch.ones(TRIED, dtype=torch.bool))
        x = self.examples(TRIED, Key(0))
        with torch.no_grad():
            return draws_globally(lambda: self._call(self._own, x, step))

    @cached_property
    def alone(self) -> str:
        """Why clients cannot train in lock step, found by trying; "" if they can."""
        if self.draws:
            return "draws from a global generator in training"
        x = self.examples(TRIED, Key(0))
        own = self._own
        tree = {name: torch.stack([leaf, leaf]) for name, leaf in own.items()}
        differ = {name: name in (*self.weights, *self.statistics) for name in own}
        parts = {name: (tree if differs else own)[name] for name, differs in differ.items()}
        along = {name: 0 if differs else None for name, differs in differ.items()}

        def loss(tree: Tree, x: Tensor) -> Tensor:
            step = Step(Key(torch.tensor(0)), torch.ones(TRIED, dtype=torch.bool))
            return self.logits(tree, x, step).square().sum()

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it would be slow
            try:
                torch.vmap(torch.func.grad(loss))(tree, torch.stack([x, x]))
                # clients who share all but their masks, and losses at several points
                torch.vmap(torch.func.grad(loss), (along, 0))(parts, torch.stack([x, x]))
                with torch.no_grad():
                    torch.vmap(loss, (0, None))(tree, x)
            except Exception as error:  # foreign code raises anything
                return f"cannot be mapped over clients by torch.vmap ({error_line(error)})"
        return (
            "mixes the samples of a batch in training"
            if mixes_samples(self, own, training=True)
            else ""
        )


def inside(layer: str, part: str) -> str:
    """Return the name of a layer's part; the layer "" is the module itself."""
    return f"{layer}.{part}" if layer else part
