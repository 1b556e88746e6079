"""State of a run: everything that changes from round to round."""

from dataclasses import dataclass, field
from typing import Any

from fedbench.adversary.threat_model import AdversaryMemory
from fedbench.api import Memory
from fedbench.core.trees import Tree
from fedbench.experiment.evaluation import Evaluation
from fedbench.privacy.ledger import Ledger


@dataclass(eq=False)
class RunState:
    """State that one round hands to the next.

    Args:
        server: State of the protocol at the server.
        defense: State of the defense; None before its first message.
        mechanism: State of the privacy mechanism.
        adversary: Memory of the attack.
        memories: Memory of each client that took part.
        ledger: Privacy that the clients' data has lost so far.
        score: Evaluation of the model that was deployed when test data was last read.
        local_accuracies: Accuracy of each benign client's own model, as it last sent it.
        last_broadcast: Tree that all clients received in the last round; None where each got its
            own.
        attack_seconds: Time that the adversary took.
    """

    server: Any
    defense: Any = None
    mechanism: Any = None
    adversary: AdversaryMemory = field(default_factory=dict)
    memories: dict[int, Memory] = field(default_factory=dict)
    ledger: Ledger = field(default_factory=Ledger)
    score: Evaluation | None = None
    local_accuracies: dict[int, float] = field(default_factory=dict)
    last_broadcast: Tree | None = None
    attack_seconds: float = 0.0
