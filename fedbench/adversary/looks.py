"""Looks of an attack at a round whose messages are not in memory."""

import dataclasses

import torch
from torch import Tensor

from fedbench.adversary.threat_model import (
    COLLUDERS,
    AdversaryMemory,
    AttackContext,
    attack_view,
    detached_copy,
)
from fedbench.api import Attack, hooks
from fedbench.api.hooks import Note


def look(
    attack: Attack, context: AttackContext, memory: AdversaryMemory
) -> tuple[Tensor | None, dict[str, Note]]:
    """Have an attack look once at a round; return its answer, and its notes for the record.

    The context has none of the adversary's rows. ``memory`` is updated. `PluginError` if it raised,
    or returned neither a tensor nor None.
    """
    streamed = context.streamed
    assert streamed is not None
    view = dataclasses.replace(attack_view(attack, context, []), kept=streamed.kept)
    if streamed.learned is not None:
        learned = streamed.learned[None].to(context.updates.dtype)
        view = dataclasses.replace(view, updates=learned, idle=torch.zeros_like(learned))
    looked, memory[COLLUDERS], notes = hooks.look(attack, view, memory.get(COLLUDERS))
    if view.rehearsal is not None:
        streamed.worked.update(view.rehearsal.counts())
    return detached_copy(looked), notes
