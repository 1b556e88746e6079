"""Fields of a scenario: name, type, default and meaning, declared once.

`fedbench.experiment.scenario.Scenario` adds what they mean together; the options of the command
line and the JSON Schemas are generated from them. Importing this module does not import torch.
"""

from pydantic import BaseModel, ConfigDict

from fedbench.core.choices import Adjacency, Checks, Precision, Sampling, Sees


class ScenarioFields(BaseModel):
    """Description of one run; plug-ins are written ``name:param=value,param=value``."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    protocol: str = "fedavg"
    """Federated protocol: what clients and server do in a round."""
    attack: str = "none"
    """Attack of the malicious clients; none is the clean run, with the same clients."""
    defense: str = "own"
    """Rule by which the server aggregates messages; own is the default of the protocol."""
    mechanism: str = "none"
    """Privacy mechanism, for example mask-gaussian:sigma=0.2."""
    dataset: str = "digits"
    """Data set: images and their labels."""
    model: str = "lenet"
    """Network that the clients train."""
    partition: str = "dirichlet:beta=1.0"
    """Split of the samples among the clients."""
    clients: int = 50
    """Number of all clients, N."""
    per_round: int = 10
    """Number of clients that a round samples, n."""
    malicious: float = 0.2
    """Share of all clients that the adversary owns."""
    declared: float | None = None
    """Share of malicious clients that the server is prepared for; by default the true share."""
    rounds: int = 40
    """Number of federated rounds."""
    epochs: int = 2
    """Passes of a client over its data in a round."""
    batch_size: int = 8
    """Samples of a local step."""
    eval_every: int = 5
    """Rounds between two evaluations on test data; the last round always ends with one."""
    local_models: bool = False
    """Evaluate also the model of every sampled client, as its last message says it."""
    sampling: Sampling = "fixed"
    """How a round samples clients: fixed, exactly n, all sets alike; poisson, each client with the
    same probability, n on average."""
    sees: Sees | None = None
    """Observation of privacy's adversary: messages, each with its sender; sum, what a secure
    aggregation reveals, and who took part; hidden-sum, the sum alone; model, what the server
    deploys. By default messages, or model where the noise is the server's."""
    adjacency: Adjacency | None = None
    """Difference between neighbouring data sets: replace-one, all data of a client or of a sample;
    zero-out, it learned nothing; add-remove, it is not there. By default the one for which the
    mechanism's accountant proves most."""
    delta: float = 1e-5
    """The δ of the (ε, δ) that a mechanism is charged."""
    knowledge: str | None = None
    """Most that an attack may be shown: own, colluders or all, the messages of which clients, then
    +defense and +state to query the server's rule and state. An attack that needs more does not
    fit. By default what the attack declares."""
    attack_from: int = 0
    """First round, counted from 0, in which the attack acts; its clients are honest before."""
    attack_until: int | None = None
    """First round in which the attack no longer acts; by default it never stops."""
    attack_every: int = 1
    """Rounds from one in which the attack acts to the next."""
    defense_draw: int = 0
    """Index of the server's random draw, for rules that have one; training does not depend on
    it."""
    precision: Precision = "fp32"
    """Precision of training: fp32, or bf16 for the products of the network, with weights and steps
    in float32; that differs by more than rounding."""
    server_checks: Checks = "finite"
    """Rows that the server rejects: finite, those with NaN or infinity; range, also those that no
    honest encoder sends, whatever its input; none, only those that do not decode."""
    seed: int = 0
    """Seed of everything but the data, in 0 .. 2**63 - 1."""
    data_seed: int | None = None
    """Seed of partition and splits; by default the same as seed."""
