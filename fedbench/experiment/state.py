"""State of a run: everything that changes from round to round."""

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedbench.adversary.threat_model import AdversaryMemory
from fedbench.api import Memory
from fedbench.core.trees import Tree
from fedbench.experiment.evaluation import Evaluation
from fedbench.experiment.memories import Memories
from fedbench.privacy.accountants import Ledger


@dataclass(eq=False)
class RunState:
    """State that one round hands to the next."""

    server: Any  # of the protocol at the server
    defense: Any = None  # None before its first message
    mechanism: Any = None
    adversary: AdversaryMemory = field(default_factory=dict)
    learned: Tensor | None = None  # by the adversary's clients before they train
    # Of who took part, of `setup.SERVERS_CLIENT`, and of what clients train for the adversary.
    memories: MutableMapping[int, Memory] = field(default_factory=Memories)
    ledger: Ledger = field(default_factory=Ledger)
    score: Evaluation | None = None  # of the model deployed when test data was last read
    local_accuracies: dict[int, float] = field(default_factory=dict)  # of benign clients' models
    last_broadcast: Tree | None = None  # what all clients received; None where each got its own
    attack_seconds: float = 0.0
    digests: dict[int, bytes] = field(default_factory=dict)  # of memories, in canonical runs
    arrived: bytes | None = None  # digest of the last round's packets; None without a commitment
