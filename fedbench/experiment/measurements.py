"""What a run measures: the parts of its record."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from fedbench.api import Adjacency, Sees

Number = float | None  # None: not measured in this round, or not a finite number


class Part(BaseModel):
    """Frozen, and nothing that is not named."""

    # Older pydantic warns of a field whose name starts with "model_".
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Round(Part):
    """One round.

    Args:
        step: From 0.
        clients: Who was sampled, in the order of the rows.
        malicious: How many of them the adversary owns.
        accepted: Rows that decoded and passed the server's checks.
        rejected_honest: Benign rows that did not.
        rejected_malicious: Malicious rows that did not.
        skipped: Too few rows for the rule: the state stayed.
        uplink_bits: Bits of all packets that clients sent; of a secure sum (``--sees sum``), of
            what its participants must send, None where that is not known.
        benign_uplink_bits: Those of benign clients.
        downlink_bits: Bits of what the server sent, over all clients of the round.
        entropy_bits: Empirical entropy of the benign messages' symbols, an estimate beside what was
            measured; None where the alphabet has none.
        accuracy: On the pooled test parts of the benign clients, in [0, 1].
        loss: Mean cross-entropy there, in nats.
        sparsity: Share of the deployed weights that are exactly 0.
        local_accuracy: Mean over the benign clients that were ever sampled: what each last sent, as
            a model of its own, on its own test part.
        gain: L2 distance of the aggregate from the one of honest messages, relative to the latter.
        gain_mean: The same for the plain mean instead of the rule.
        headers: Of the accepted malicious messages' scales, how many times the honest ones the most
            forged one is; of seeds and indices, the share that is not theirs. Empty if skipped.
        epsilon: Spent so far, by the accountants that take no time, in the last round by all; None
            without a mechanism.
        success: Of a backdoor, the share of the images of `Attack.trigger` that are taken for it.
        queries: How often the attack asked a snapshot of the server's rule.
        trace: Trials of its search: strength, and what was sought there.
        notes: What the attack reported.
        true_positive_rate: Of the accepted malicious rows, the share that a rule which detects left
            out; None without such rows or with another rule.
        false_positive_rate: The same of the accepted benign rows.
        findings: What the rule reported; ``not_finite``: how many numbers of its answer are NaN or
            infinite.
    """

    step: int
    clients: list[int]
    malicious: int
    accepted: int
    rejected_honest: int
    rejected_malicious: int
    skipped: bool
    uplink_bits: int | None
    benign_uplink_bits: int | None
    downlink_bits: int
    entropy_bits: Number = None
    accuracy: Number = None
    loss: Number = None
    sparsity: Number = None
    local_accuracy: Number = None
    gain: Number = None
    gain_mean: Number = None
    headers: dict[str, Number] = {}
    epsilon: Number = None
    success: Number = None
    queries: int = 0
    trace: list[tuple[Number, Number]] = []
    notes: dict[str, float | int | str | bool] = {}
    true_positive_rate: Number = None
    false_positive_rate: Number = None
    findings: dict[str, float | int | str | bool] = {}


class Spread(Part):
    """Over the benign clients' own test parts; ``std`` divides by their number."""

    mean: float
    std: float
    min: float
    max: float


class Result(Part):
    """What is read at the last round.

    Args:
        accuracy: On the pooled test parts of the benign clients, in [0, 1].
        loss: Mean cross-entropy there, in nats.
        validation_accuracy: On their pooled validation parts, for whoever chooses between runs.
        success: See `Round`.
        per_client: Accuracies of the benign clients on their own test parts.
        uplink_bits_per_parameter: Per benign message, headers included; None as in `Round`.
        entropy_bits_per_parameter: Per benign message, an estimate; None where there is none.
        downlink_bits_per_parameter: Per client and round.
        model_bits: To store what is deployed.
        sparsity: Share of the deployed weights that are exactly 0.
        local_accuracy: See `Round`; None unless the scenario asks for it.
        skipped_rounds: Rounds without a step.
        epsilon: None without a mechanism.
        true_positive_rate: Mean over the rounds that have one, see `Round`.
        false_positive_rate: The same.
    """

    accuracy: float
    loss: Number
    per_client: Spread
    uplink_bits_per_parameter: Number
    entropy_bits_per_parameter: Number = None
    downlink_bits_per_parameter: float
    model_bits: int
    sparsity: Number = None
    local_accuracy: Number = None
    skipped_rounds: int
    epsilon: Number = None
    validation_accuracy: Number = None
    success: Number = None
    true_positive_rate: Number = None
    false_positive_rate: Number = None


class Environment(Part):
    """Where the run took place: numbers may differ by rounding between two of these.

    Args:
        fedbench: Version, and a hash of the code that can change a number.
        python: Version.
        torch: Version.
        numpy: Version.
        platform: Operating system and processor.
        device: ``cpu``, or the name of the accelerator.
        executor: ``loop``, ``stacked``, ``forked``, or ``together`` with other runs.
        threads: Of the process.
        chunk: Clients that were trained at once; None in a loop.
    """

    fedbench: str
    python: str
    torch: str
    numpy: str
    platform: str
    device: str
    executor: str
    threads: int
    chunk: int | None = None


class Timing(Part):
    """The only part of a record that differs between two runs of one scenario.

    Args:
        seconds: Of the whole run.
        peak_memory_mib: Of the process until its end.
        attack_seconds: Of them the adversary's: its own training, and what it crafted.
    """

    seconds: float
    peak_memory_mib: float
    attack_seconds: float = 0.0


class Privacy(Part):
    """What the clients' data has given away, and to whom that was proved.

    Args:
        epsilon: Natural logarithms; of the client that took part most often.
        delta: Of the same guarantee.
        unit: Whose data it covers: a whole ``client``, or one ``example`` of one.
        sees: What the adversary sees: messages, their sum, that without who took part, or models.
        adjacency: What may differ between two data sets that cannot be told apart.
        sampler: Who took part, how often, and who can see it.
        winner: The bound that is the least.
        bounds: Every bound that applies.
        paper: What the mechanism's own paper would claim, where that is something else.
        note: What malicious clients mean for it.
    """

    epsilon: Number
    delta: float
    unit: Literal["client", "example"]
    sees: Sees
    adjacency: Adjacency
    sampler: str
    winner: str
    bounds: dict[str, Number] = {}
    paper: Number = None
    note: str = ""
