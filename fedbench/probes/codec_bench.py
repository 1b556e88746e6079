"""Benchmark of the protocols that compress dense updates: variants, inputs, and the measurement."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Protocol, Shared
from fedbench.core import registry
from fedbench.core.errors import ConfigError, FedbenchError, require
from fedbench.core.rng import Key
from fedbench.data.datasets import CACHE, data_folder
from fedbench.experiment.prepare import prepare
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.probes.codecs import CodecPlan, CodecResult, MeasuredCodec, measure, scale_of
from fedbench.protocols.fedavg import DenseWeights
from fedbench.run import play_round

INPUTS = {
    "gaussian": "independent N(0, 1)",
    "lognormal": "independent, a random sign times exp(N(0, 1))",
    "real": "updates of clients of fedavg after three rounds",
}
ROUNDS = 3  # before the updates are taken
PREFERRED = "fashion-mnist"
EMBEDDED = "mnist-5k"
# In this order; other installed protocols follow with their defaults.
VARIANTS = (
    "fedavg",
    *("cast:form=fp16", "cast:form=bf16"),
    *("topk:k=0.5", "topk:k=0.1", "topk:k=0.03,index=entropy"),
    *("randk:k=0.1", "randk:k=0.01"),
    *("qsgd", "qsgd:levels=1", "qsgd:norm=l2,bucket=0"),
    "fedpaq",
    *("terngrad", "terngrad:clip=2.5"),
    *("eden:bits=4", "eden:bits=3", "eden:bits=2", "eden:bits=1", "eden:bits=0.5"),
    *("drive", "drive:scale=min-mse"),
    "ef-signsgd",
    *("fedmrn", "fedmrns"),
    *("signsgd", "stochastic-sign"),
)


@dataclass(frozen=True)
class Bench:
    """Results of a benchmark of codecs, and its conditions."""

    model: str  # the network whose updates are compressed
    dataset: str  # of the ``real`` updates, which also determines the network's shape
    parameters: int  # of the network
    device: str
    threads: int  # of torch
    plan: CodecPlan
    rows: list[CodecResult]  # of every codec on the first kind of input, then on the next
    others: dict[str, str]  # installed protocols that were not measured, and why
    notes: list[str]  # on the data and on the times


def chosen(
    texts: Sequence[str] | None, shared: Shared
) -> tuple[list[MeasuredCodec], dict[str, str]]:
    """Return the codecs to measure, and by name the reasons why others are not.

    ``texts`` are protocols as typed, `ConfigError` if one does not exist or fit; None for all that
    are installed and fit.
    """
    if texts is not None:
        codecs = [MeasuredCodec(t, registry.load("protocol", t)) for t in dict.fromkeys(texts)]
        for codec in codecs:
            if reason := misfit(codec.protocol, shared):
                raise ConfigError(
                    f"--protocol {codec.name} must compress dense updates of the weights, but its "
                    f"{reason}; without --protocol all that do are measured"
                )
        return codecs, {}
    fitting: list[MeasuredCodec] = []
    others: dict[str, str] = {}
    for text in default_texts(registry.names("protocol")):
        try:
            codec = MeasuredCodec(text, registry.load("protocol", text))
            reason = misfit(codec.protocol, shared)
        except ConfigError as error:  # another package's plug-in of that name
            reason = str(error)
        except Exception as error:  # another package's broken plug-in must not hide the others
            reason = f"messages fail, {type(error).__name__}: {error}".splitlines()[0]
        # fedavg stands for all protocols whose message is the update itself
        plain = reason is None and type(codec.protocol).message is DenseWeights.message
        if plain and text not in VARIANTS:
            reason = "messages are those of fedavg"
        if reason is None:
            fitting.append(codec)
        else:
            others[text] = reason
    return fitting, others


def default_texts(installed: Iterable[str]) -> list[str]:
    """Return the `VARIANTS` of installed protocols, then the other installed protocols.

    >>> default_texts(["drive", "mine"])
    ['drive', 'drive:scale=min-mse', 'mine']
    """
    names = list(installed)
    variants = {text: registry.split(text)[0] for text in VARIANTS}
    rest = [name for name in names if name not in variants.values()]
    return [text for text, name in variants.items() if name in names] + rest


def misfit(protocol: Protocol[Any], shared: Shared) -> str | None:
    """Return why the codec cannot be measured on dense updates, or None; tried on a vector."""
    d = shared.layout.d
    if protocol.space != "weights":
        return f"updates are {protocol.space}"
    if protocol.trained(shared).d != d:
        return "updates hold more than the parameters of the network"
    if shared.statistics.d and not protocol.statistics:
        return "messages cannot carry the statistics of batch norm"
    x = drawn("gaussian", Key(0).fold("misfit"), d)[None].to(shared.device)
    try:
        payload, _ = protocol.message(shared, x, [Key(0)], [protocol.memory(shared)])
    except KeyError:
        return "messages need what a client remembers of its training"
    except FedbenchError as error:
        return f"messages fail: {error}"
    if payload.values().shape != (1, d) or not payload.aligned:
        return "values are no update of the parameters"
    return None


def default_dataset() -> tuple[str, str | None]:
    """Return Fashion-MNIST if it is stored here, else a data set without download and a note."""
    folder = data_folder() or Path(CACHE)
    if os.path.exists(os.path.expanduser(folder / f"{PREFERRED}.npz")):
        return PREFERRED, None
    return EMBEDDED, (
        f"{PREFERRED} is not in {folder}, so the data is {EMBEDDED}; "
        f"--dataset {PREFERRED} fetches it"
    )


def scenario(dataset: str, model: str) -> Scenario:
    """Return the scenario of the real updates: 50 clients of fedavg, 5 of them a round."""
    small = {"clients": 50, "per_round": 5, "malicious": 0.0, "epochs": 1, "batch_size": 32}
    rounds = {"rounds": ROUNDS + 1, "eval_every": ROUNDS + 1}  # the accuracy is not used
    return Scenario.of(dataset=dataset, model=model, **rounds, **small)


def drawn(kind: str, key: Key, d: int) -> Tensor:
    """Draw ``(d,)`` float32, ``gaussian`` or ``lognormal``; normals end at 4.4, see `Key.normal`.

    >>> drawn("lognormal", Key(0), 3).log().isnan().tolist()  # signs are random
    [False, True, True]
    """
    normal = key.fold("normal").normal(d)
    if kind == "gaussian":
        return normal
    assert kind == "lognormal", kind
    return normal.exp_().mul_(key.fold("signs").signs(d))


def real(setup: Setup) -> Tensor:
    """Return the updates ``(n, d)`` of round `ROUNDS`; `ConfigError` if one is 0 or not finite."""
    protocol = setup.plugins.protocol
    shared = setup.shared
    state = RunState(protocol.init(shared))
    for step in range(ROUNDS):
        play_round(setup, state, step)
    ids = setup.sample(ROUNDS)
    key = setup.secret.key("broadcast", ROUNDS)
    tree = protocol.receive(shared, protocol.broadcast(shared, state.server, ids, key))
    clients = [setup.client(i, tree, state.memories.get(i), ROUNDS) for i in ids]
    updates, _ = setup.executor.train(clients)
    if not bool(torch.isfinite(updates).all()) or not bool(updates.any(dim=1).all()):
        raise ConfigError(
            f"real updates must be finite and not 0, got others from --model "
            f"{setup.scenario.model} on {setup.scenario.dataset}; use lenet, or --input gaussian"
        )
    return updates


def source(kind: str, setup: Setup) -> Callable[[int], Tensor]:
    """Return a function from seeds to inputs ``(d,)``; the real updates are few, and repeat."""
    if kind == "real":
        updates = real(setup)
        return lambda s: updates[s % len(updates)]
    d = setup.shared.layout.d
    return lru_cache(maxsize=16)(lambda s: drawn(kind, Key(0).fold("bench", kind, s), d))


def play(
    texts: Sequence[str] | None,
    kinds: Sequence[str] | None,
    dataset: str | None,
    model: str,
    device: str,
    plan: CodecPlan,
    say: Callable[[str], None] = lambda text: None,
) -> Bench:
    """Measure every codec on every kind of input.

    ``texts`` are protocols as typed and ``kinds`` keys of `INPUTS`, all that fit if None;
    ``dataset`` None is `default_dataset`. ``say`` is called with the current step.
    """
    kinds = list(dict.fromkeys(kinds or INPUTS))
    for kind in kinds:
        require("--input", kind, kind in INPUTS, f"one of {', '.join(INPUTS)}")
    say("loading the data")
    name, data_note = (dataset, None) if dataset else default_dataset()
    setup = prepare(scenario(name, model), device)
    shared = setup.shared
    say("looking for codecs")
    codecs, others = chosen(texts, shared)
    x = source("gaussian", setup)(0).to(shared.device)
    scales = {codec: scale_of(codec.protocol, shared, x) for codec in codecs}
    rows: list[CodecResult] = []
    for kind in kinds:
        say(f"{kind}: {INPUTS[kind]}")
        inputs = source(kind, setup)
        for codec in codecs:
            say(f"{kind}: {codec.name} ({len(rows)} of {len(kinds) * len(codecs)} done)")
            rows.append(measure(codec, kind, inputs, shared, plan, scales[codec]))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # Windows has none
    return Bench(
        model=model,
        dataset=name,
        parameters=shared.layout.d,
        device=shared.device.type,
        threads=torch.get_num_threads(),
        plan=plan,
        rows=rows,
        others=others,
        notes=[note for note in (data_note, busy(load, os.cpu_count() or 1)) if note],
    )


def busy(load: float, cores: int) -> str | None:
    """Return a warning about the times if more processes wanted to run than there are cores.

    >>> busy(5.8, 2)
    'the machine was busy (load 5.8 on 2 cores): times are longer than they need be'
    """
    if load <= cores + 0.5:
        return None
    where = f"load {load:.1f} on {cores} core{'s' * (cores > 1)}"
    return f"the machine was busy ({where}): times are longer than they need be"
