"""Trials of a module of one's own before it is trained: each refusal is one line."""

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import torch
from torch import Tensor, nn

from fedbench.core.blame import error_line
from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key
from fedbench.core.trees import Tree
from fedbench.models.draws import draws_globally
from fedbench.models.layers import Pass
from fedbench.models.network import Network, Step

TRIED = 2  # samples of a trial
WRAPPERS = {  # by name, since to import those of torch.compile takes a second
    "ScriptModule": "pass the module that it was made of",
    "OptimizedModule": "pass its _orig_mod",
    "DataParallel": "pass its module",
    "DistributedDataParallel": "pass its module",
}
TOLERANCE = 1e-3  # relative difference of two computations of a gradient


def copied(module: nn.Module) -> nn.Module:
    """Return a deep copy of a module; `ConfigError` if there cannot be one."""
    try:
        return copy.deepcopy(module)
    except Exception as error:  # foreign code raises anything
        raise ConfigError(
            f"{type(module).__name__} must be a module that copy.deepcopy can copy, got "
            f"{error_line(error)}; keep no results of autograd in it, and use "
            "torch.nn.utils.parametrizations"
        ) from error


def require_callable(module: nn.Module) -> None:
    """Raise `ConfigError` for modules that cannot be called with parameters from outside."""
    for name, layer in module.named_modules():
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.max_norm is not None:
            raise ConfigError(
                f"embedding {name!r} must have max_norm=None, got {layer.max_norm}, which writes "
                "into its weights whenever they are read"
            )
        for cls in type(layer).__mro__:
            if cls.__name__ in WRAPPERS and cls.__module__.startswith("torch."):
                raise ConfigError(
                    f"{type(module).__name__} must have modules that are called as they were "
                    f"written, got {cls.__name__}; {WRAPPERS[cls.__name__]}"
                )


def require_trainable(network: Network, module: nn.Module, now: Pass) -> None:
    """Raise `ConfigError` for what a run would trip over, or would get wrong without a word.

    ``module`` is the network's own copy, which has values of its own, and ``now`` its pass.
    """
    name = type(module).__name__
    x = network.examples(TRIED, Key(0))
    values = dict(module.named_parameters()) | dict(module.named_buffers())
    own = {leaf: values[leaf].detach().clone() for leaf in network.shapes}
    constants = {leaf: value.detach() for leaf, value in values.items() if leaf not in own}
    with torch.no_grad():
        if draws_globally(lambda: network.logits(own, x)):
            raise ConfigError(f"{name} must answer alike each time, got draws outside training")
        answers = network.logits(own, x)
    if network.classes > 1 and bool((answers >= 0).all() and _sums_to_one(answers)):
        raise ConfigError(
            f"{name} must return logits, got probabilities; leave its last softmax out"
        )
    before = {leaf: value.clone() for leaf, value in constants.items()}
    try:
        slopes = _slopes(network, own, x)
        changed = [n for n, old in before.items() if not torch.equal(old, constants[n])]
        changed += now.assigned
        with _spoilt([values[leaf] for leaf in own]):
            others = _slopes(network, own, x)
    except ConfigError:
        raise
    except Exception as error:  # foreign code raises anything
        raise ConfigError(f"{name} cannot be trained: {error_line(error)}") from error
    if not torch.equal(x, network.examples(TRIED, Key(0))):
        raise ConfigError(
            f"{name} must not write into its samples, got others after it was called; begin with "
            "x = x.clone(), or leave inplace=True out"
        )
    if changed:
        raise ConfigError(
            f"{name} must have no buffer that training changes but those of batch norm, got "
            f"{changed[0]}, which no protocol averages; leave out what writes it, such as "
            "spectral_norm, or set track_running_stats=False"
        )
    if not slopes:
        raise ConfigError(f"{name} must have logits that depend on its parameters, got none")
    if not _alike(slopes, others):
        raise ConfigError(
            f"{name} must read the parameters that it is called with, got others in its backward "
            "pass or beside its layers; leave torch.utils.checkpoint and lists of parameters out"
        )
    large = {leaf: 8 * value for leaf, value in own.items()}  # that a clamp or a norm would change
    with torch.no_grad():
        with suppress(Exception):  # of foreign code that cannot bear large weights
            network.logits(large, x, _step())
        for leaf, value in own.items():
            if not torch.equal(large[leaf].nan_to_num(), (8 * value).nan_to_num()):
                raise ConfigError(
                    f"{name} must not write into its parameters, got other values of {leaf} after "
                    "it was called; compute with a copy"
                )
        if not torch.allclose(network.logits(own, x), answers, equal_nan=True):
            raise ConfigError(
                f"{name} must answer by its parameters and buffers alone, got other answers after "
                "a pass in training; keep nothing else from pass to pass"
            )
    if mixes_samples(network, own, training=False):
        warnings.warn(
            f"{name}: outside training the logits of a sample depend on those beside it, so its "
            "accuracy depends on which samples are evaluated together",
            stacklevel=2,
        )
    idle = [n for n in own if n not in slopes and n not in network.statistics]
    if idle:
        warnings.warn(
            f"{name}: a trial trains {len(own) - len(idle)} of {len(own)} parameters, not "
            f"{idle[0]}; what no sample trains is decayed, sent and counted all the same, unless "
            "requires_grad_(False) freezes it",
            stacklevel=2,
        )


def mixes_samples(network: Network, own: Tree, training: bool) -> bool:
    """Return whether the logits of samples change with another one that is beside them.

    In training it is padding, which fills short batches in lock step. Batch norm leaves that out;
    what else a module computes of a batch does not.
    """
    x = network.examples(TRIED + 1, Key(0))
    padded = Step(Key(0), torch.arange(TRIED + 1) < TRIED)
    with torch.no_grad():
        plain = network.logits(own, x[:TRIED], _step() if training else None)
        beside = network.logits(own, x, padded if training else None)[:TRIED]
    return bool((beside - plain).norm() > TOLERANCE * plain.norm())


def _step() -> Step:
    return Step(Key(0), torch.ones(TRIED, dtype=torch.bool))


def _slopes(network: Network, own: Tree, x: Tensor) -> Tree:
    """Return gradients of a step in training, without those of parameters that it does not use."""
    still = network.statistics
    leaves = {n: leaf.clone().requires_grad_(n not in still) for n, leaf in own.items()}
    trained = {n: leaf for n, leaf in leaves.items() if leaf.requires_grad}
    loss = network.logits(leaves, x, _step()).square().sum()
    if loss.grad_fn is None:
        return {}
    slopes = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    used = {n: slope for n, slope in zip(trained, slopes, strict=True) if slope is not None}
    sparse = [n for n, slope in used.items() if slope.layout is not torch.strided]
    if sparse:
        raise ConfigError(
            f"parameter {sparse[0]} must have a dense gradient, got a sparse one; use sparse=False"
        )
    return used


@contextmanager
def _spoilt(tensors: list[Tensor]) -> Iterator[None]:
    """Fill tensors with NaN inside the block, so that it shows who reads them."""
    before = [x.detach().clone() for x in tensors]
    try:
        for x in tensors:
            x.detach().fill_(torch.nan)
        yield
    finally:
        for x, value in zip(tensors, before, strict=True):
            x.detach().copy_(value)


def _alike(slopes: Tree, others: Tree) -> bool:
    """Return whether gradients agree to rounding; those that are not finite agree with all."""
    a = torch.cat([slope.flatten() for slope in slopes.values()])
    b = torch.cat([slope.flatten() for slope in others.values()])
    if not torch.isfinite(a).all():
        return True
    return len(a) == len(b) and bool((a - b).norm() <= TOLERANCE * a.norm())


def _sums_to_one(answers: Tensor) -> bool:
    return torch.allclose(answers.sum(dim=1), torch.ones(len(answers)), atol=1e-4)
