"""The whole bench: every codec on every kind of input."""

from __future__ import annotations

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
    """What was measured, and on what.

    Args:
        model: The network whose updates are compressed.
        dataset: What it was trained on, for ``real``; and what it is built for.
        parameters: Of the network.
        device: Where.
        threads: Of torch.
        plan: How often.
        rows: Every codec on the first kind of input, then on the next.
        others: Installed protocols that were not measured, and why.
        notes: What the user should know of the data and of the times.
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
    """Measure.

    Args:
        texts: Protocols; None is all that fit.
        kinds: Of input; None is all.
        dataset: None is Fashion-MNIST or, where it is not to be had, MNIST in small.
        model: The network.
        device: ``auto``, ``cpu`` or ``cuda``.
        plan: How often.
        say: Told what is done now.

    Raises:
        ConfigError: something that is named cannot be had or does not fit.
    """
    known = ", ".join(codec_inputs.INPUTS)
    for kind in kinds or ():
        require("--input", kind, kind in codec_inputs.INPUTS, f"one of {known}")
    say("loading the data")
    name, of_data = (dataset, None) if dataset else codec_inputs.default_dataset()
    setup = prepare(codec_inputs.scenario(name, model), device)
    say("looking for codecs")
    codecs, others = chosen(texts, setup.shared)
    wanted = list(dict.fromkeys(kinds or codec_inputs.INPUTS))
    x = source("gaussian", setup)(0).to(setup.shared.device)
    scales = {codec: scale_of(codec.protocol, setup.shared, x) for codec in codecs}
    rows: list[CodecResult] = []
    for kind in wanted:
        say(f"{kind}: {codec_inputs.INPUTS[kind]}")
        inputs = source(kind, setup)
        for codec in codecs:
            say(f"{kind}: {codec.name} ({len(rows)} of {len(wanted) * len(codecs)} done)")
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
        notes=[note for note in (of_data, busy(load, os.cpu_count() or 1)) if note],
    )


def busy(load: float, cores: int) -> str | None:
    """A doubt about times, where more wanted to run than could.

    >>> busy(5.8, 2)
    'the machine was busy (load 5.8 on 2 cores): times are longer than they need be'
    """
    if load <= cores + 0.5:
        return None
    said = f"load {load:.1f} on {cores} core{'s' * (cores > 1)}"
    return f"the machine was busy ({said}): times are longer than they need be"


def source(kind: str, setup: Setup) -> Callable[[int], Tensor]:
    """The input of each seed; real updates are few, and come again."""
    if kind == "real":
        updates = codec_inputs.real(setup)
        return lambda s: updates[s % len(updates)]
    d = setup.shared.layout.d
    return lru_cache(maxsize=16)(
        lambda s: codec_inputs.drawn(kind, Key(0).fold("bench", kind, s), d)
    )
