"""The contracts: Protocol, Attack, Defense, Prefilter, Mechanism, and what they are shown.

Letters: ``n`` clients of a round (rows), ``m`` of them malicious, ``d`` parameters, ``k`` the width
of a payload's `values`. A plug-in is a frozen dataclass: its fields are its hyperparameters, all
with defaults; its methods are pure. State goes in and comes out.
"""

from fedbench.api.attack import (
    TIERS,
    Attack,
    AttackView,
    Choices,
    Deployed,
    Knowledge,
    Local,
    Oracle,
    Rehearsal,
    Tier,
)
from fedbench.api.defense import Defense, Findings, ServerView, Traits
from fedbench.api.mechanism import Mechanism
from fedbench.api.prefilter import Chain, Prefilter
from fedbench.api.protocol import (
    Alphabets,
    Batches,
    DpEvent,
    Grad,
    Gradient,
    Keys,
    LocalStep,
    Memories,
    Memory,
    Messages,
    Protocol,
    Release,
    State,
    Variants,
)
from fedbench.core.choices import Adjacency, Sees
from fedbench.models.network import Shared

__all__ = ["TIERS", "Adjacency", "Alphabets", "Attack", "AttackView", "Batches", "Chain", "Choices"]
__all__ += ["Defense", "Deployed", "DpEvent", "Findings", "Grad", "Gradient", "Keys", "Knowledge"]
__all__ += ["Local", "LocalStep", "Mechanism", "Memories", "Memory", "Messages", "Oracle"]
__all__ += ["Prefilter", "Protocol", "Rehearsal", "Release", "Sees", "ServerView", "Shared"]
__all__ += ["State", "Tier", "Traits", "Variants"]
