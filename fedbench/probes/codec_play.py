"""Benchmark of every codec on every kind of input."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from fedbench.core.errors import require
from fedbench.core.rng import Key
from fedbench.experiment.prepare import prepare
from fedbench.experiment.setup import Setup
from fedbench.probes import codec_inputs
from fedbench.probes.codec_choice import chosen
from fedbench.probes.codecs import CodecPlan, CodecResult, measure, scale_of


@dataclass(frozen=True)
class Bench:
    """Results of a benchmark of codecs, and its conditions.

    Args:
        model: The network whose updates are compressed.
        dataset: Data set of the ``real`` updates, which also determines the network's shape.
        parameters: Parameters of the network.
        device: Device of the measurement.
        threads: Threads of torch.
        plan: Number of inputs and messages.
        rows: Results of every codec on the first kind of input, then on the next.
        others: Installed protocols that were not measured, and why.
        notes: Notes on the data and on the times.
    """

    model: str
    dataset: str
    parameters: int
    device: str
    threads: int
    plan: CodecPlan
    rows: list[CodecResult]
    others: dict[str, str]
    notes: list[str]


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

    Args:
        texts: Protocols as typed; None for all that fit.
        kinds: Kinds of input; None for all.
        dataset: Data set; None for Fashion-MNIST or, where it is not stored, a part of MNIST.
        model: The network.
        device: ``auto``, ``cpu`` or ``cuda``.
        plan: Number of inputs and messages.
        say: Called with the current step.

    Raises:
        ConfigError: an option is wrong, or a protocol does not fit.
    """
    kinds = list(dict.fromkeys(kinds or codec_inputs.INPUTS))
    for kind in kinds:
        legal = kind in codec_inputs.INPUTS
        require("--input", kind, legal, f"one of {', '.join(codec_inputs.INPUTS)}")
    say("loading the data")
    name, data_note = (dataset, None) if dataset else codec_inputs.default_dataset()
    setup = prepare(codec_inputs.scenario(name, model), device)
    say("looking for codecs")
    codecs, others = chosen(texts, setup.shared)
    x = source("gaussian", setup)(0).to(setup.shared.device)
    scales = {codec: scale_of(codec.protocol, setup.shared, x) for codec in codecs}
    rows: list[CodecResult] = []
    for kind in kinds:
        say(f"{kind}: {codec_inputs.INPUTS[kind]}")
        inputs = source(kind, setup)
        for codec in codecs:
            say(f"{kind}: {codec.name} ({len(rows)} of {len(kinds) * len(codecs)} done)")
            rows.append(measure(codec, kind, inputs, setup.shared, plan, scales[codec]))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0  # Windows has none
    return Bench(
        model=model,
        dataset=name,
        parameters=setup.shared.layout.d,
        device=setup.shared.device.type,
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


def source(kind: str, setup: Setup) -> Callable[[int], Tensor]:
    """Return a function from seeds to inputs ``(d,)``; the real updates are few, and repeat."""
    if kind == "real":
        updates = codec_inputs.real(setup)
        return lambda s: updates[s % len(updates)]
    d = setup.shared.layout.d
    return lru_cache(maxsize=16)(
        lambda s: codec_inputs.drawn(kind, Key(0).fold("bench", kind, s), d)
    )
