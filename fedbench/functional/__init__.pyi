"""Rules, attacks, codecs and epsilon as plain functions on tensors.

Written by ``python -m fedbench.functional``; other packages' plug-ins are here at run time.
"""

from collections.abc import MutableMapping, Sequence
from typing import Any, Literal

from torch import Tensor

from fedbench.api import Defense
from fedbench.api import Findings as Findings
from fedbench.core.rng import Key
from fedbench.functional.attacks import attack as attack
from fedbench.functional.budgets import epsilon as epsilon
from fedbench.functional.budgets import privacy_cost as privacy_cost
from fedbench.functional.budgets import with_epsilon as with_epsilon
from fedbench.functional.codecs import Codec as Codec
from fedbench.functional.codecs import codec as codec
from fedbench.functional.forms import Rows as Rows
from fedbench.functional.forms import Vector as Vector
from fedbench.functional.rules import prefilter as prefilter
from fedbench.functional.rules import rule as rule
from fedbench.models.network import Network

def __getattr__(name: str) -> Any: ...
def alie(
    honest: Rows,
    *,
    m: int,
    knows: Literal["colluders", "all"] = "all",
    via: Literal["codec", "wire"] = "codec",
    side: Literal["worse", "minus"] = "worse",
    z: float | None = 1.5,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """All colluders send ``mean - z * std`` or ``mean + z * std`` (ddof 1).

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest
            legal message with the honest headers, also where its values are not what is
            compressed.
        side: ``worse``: the side on which the attack does more, ``minus`` if neither does;
            ``minus``: below the mean, as published.
        z: Number of deviations, by default that of the authors' code; None: the formula of
            the paper, see `largest_z`. It is about 0 in small rounds with few colluders (0
            for 2 of 10), where what is sent is the mean and helps the server.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def alignins(
    x: Rows,
    *,
    model: Vector | None,
    share: float = 0.3,
    tda: float = 1.0,
    mpsa: float = 1.0,
    findings: Findings | None = None,
) -> Any:
    """Average the rows whose direction is typical in two ways, clipped to their median norm.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        model: Weights that the server sent, in the form of a row.
        share: Share of a row's values, the largest, whose signs are looked at.
        tda: Standard deviations that a cosine may be off the median; ``lambda_c``.
        mpsa: Standard deviations that a share of signs may be off the median; ``lambda_s``.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def arc(x: Rows, *, f: int, findings: Findings | None = None) -> Any:
    """Clip the ``k = floor(2 (f / n) (n - f))`` rows of largest norm to the norm of the next one.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.
        findings: Object that the rule's findings are written to.

    Returns:
        The rows that are handed on, in the form in which they came.
    """

def bucketing(
    x: Rows, *, s: int = 2, key: int | Key | None = None, findings: Findings | None = None
) -> Any:
    """Shuffle the rows and replace every ``s`` of them in turn by their mean.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        s: Number of rows in a bucket.
        key: Randomness of the rule: an integer, another one in every round.
        findings: Object that the rule's findings are written to.

    Returns:
        The rows that are handed on, in the form in which they came.
    """

def bulyan(x: Rows, *, f: int, findings: Findings | None = None) -> Any:
    """Pick ``theta = n - 2 f`` rows by Krum, average the ``theta - 2 f`` values next to the median.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for; ``n >= 4 f + 3``.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def caf(x: Rows, *, f: int, findings: Findings | None = None) -> Any:
    """Weigh rows by ``c``, filter while ``sum_i c_i > n - 2 f``, answer the least spread mean.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

class _cast(Codec):
    def encode(
        self, x: Vector, *, form: Literal["fp16", "bf16"] = "fp16", key: int | Key | None = None
    ) -> bytes:
        """FedAvg whose clients cast their update to 16 bits: half the bits without a codec.

        Biased; relative squared error at most 2**-22 within the range of fp16; 16 bits a
        coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            form: ``fp16`` (IEEE 754 binary16) or ``bf16`` (the upper half of a float32).
            key: Randomness of this message; None: the operating system's.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(self, data: bytes, like: Vector, *, form: Literal["fp16", "bf16"] = "fp16") -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            form: ``fp16`` (IEEE 754 binary16) or ``bf16`` (the upper half of a float32).

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self, x: Vector, *, form: Literal["fp16", "bf16"] = "fp16", key: int | Key | None = None
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            form: ``fp16`` (IEEE 754 binary16) or ``bf16`` (the upper half of a float32).
            key: Randomness of this message; None: the operating system's.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

cast: _cast
"""FedAvg whose clients cast their update to 16 bits: half the bits without a codec."""

def centered_clipping(
    x: Rows,
    *,
    tau: float | None = None,
    steps: int = 1,
    state: Any = None,
    model: Vector | None = None,
    step: int = 0,
    findings: Findings | None = None,
) -> tuple[Any, Any]:
    """Iterate ``v <- v + 1/n sum_i (x_i - v) min(1, tau / |x_i - v|)`` from the last round's ``v``.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        tau: How far one row may pull. None is ours: in each step the rows' median distance
            from ``v``.
        steps: Steps a round, the paper's ``L``.
        state: State that the last round returned; None before the first.
        model: Weights that the server sent, in the form of a row.
        step: Round, from 0.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row, and the state for the next round.
    """

def cge(x: Rows, *, f: int, findings: Findings | None = None) -> Any:
    """Average the ``n - f`` rows of smallest norm.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for; ``n >= f + 1``.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def chameleon(
    honest: Rows,
    *,
    m: int,
    trained: Rows,
    size: int = 3,
    rho: float = 0.5,
    target: int = 0,
    share: float = 0.77,
    temperature: float = 0.07,
    weight: float = 6.0,
    clip: float = 3.0,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Poison data as `Pixel`; learn first the features, by contrast, and then the last layer.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        trained: The ``m`` rows after the attack's own training, such as on its labels.
        size: Height and width of the square, in pixels.
        rho: Share of the local images.
        target: Label that a stamped image is to be taken for.
        share: Share of the local steps that adapt the features.
        temperature: Divisor of the similarities.
        weight: Weight of the images labelled ``target``, as they are found.
        clip: Largest norm of the update, relative to the honest one. The default was chosen
            among 1, 3 and none on ``digits``.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def clip(x: Rows, *, c: float | None = None, findings: Findings | None = None) -> Any:
    """Replace ``x_i`` by ``x_i min(1, c / |x_i|)``, with norms about the alphabet's middle.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        c: Largest norm of a row. None: the median norm of the round's rows.
        findings: Object that the rule's findings are written to.

    Returns:
        The rows that are handed on, in the form in which they came.
    """

def clipped_clustering(
    x: Rows,
    *,
    state: Any = None,
    model: Vector | None = None,
    step: int = 0,
    findings: Findings | None = None,
) -> tuple[Any, Any]:
    """Average the larger of two clusters by angle, clipped to the median norm of all rounds.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        state: State that the last round returned; None before the first.
        model: Weights that the server sent, in the form of a row.
        step: Round, from 0.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row, and the state for the next round.
    """

def complement(
    honest: Rows,
    *,
    m: int,
    of: Literal["own", "majority"] = "majority",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Every colluder sends ``1 - b`` with the bits b of its own message, or of their majority.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        of: ``own``: each complements its own bits; ``majority``: all send the same bits.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def crfl(
    x: Rows,
    *,
    key: int | Key | None,
    model: Vector | None,
    c: float = 15.0,
    growth: float = 0.0,
    noise: float = 0.01,
    weights: Sequence[float] | Tensor | None = None,
    step: int = 0,
    findings: Findings | None = None,
) -> Any:
    """Answer what makes the model ``w / max(1, |w| / rho_t) + N(0, noise^2 I)``.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        key: Randomness of the rule: an integer, another one in every round.
        model: Weights that the server sent, in the form of a row.
        c: Norm of the model that is admitted from the start. The default is the largest one
            of the authors' code for MNIST, whose schedule is ``c=2,growth=0.1`` up to that.
        growth: What is added to it in each round.
        noise: Standard deviation of a parameter's noise.
        weights: Sizes of the clients, by default 1.
        step: Round, from 0.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def dba(
    honest: Rows,
    *,
    m: int,
    trained: Rows,
    size: int = 4,
    rho: float = 0.5,
    target: int = 0,
    pieces: int = 4,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Each colluder stamps one of ``pieces`` strips of `Pixel`'s square, which is the trigger.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        trained: The ``m`` rows after the attack's own training, such as on its labels.
        size: Height and width of the whole square, in pixels.
        rho: Share of the local images.
        target: Label that a stamped image is to be taken for.
        pieces: Number of strips, at most; no more than the square has rows.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def deepsight(
    x: Rows,
    *,
    key: int | Key | None,
    model: Vector | None,
    network: Network,
    samples: int = 1000,
    seeds: int = 3,
    tau: float = 0.3333333333333333,
    smallest: int = 2,
    step: int = 0,
    findings: Findings | None = None,
) -> Any:
    """Average the clusters in which few models learned few labels, clipped to the median norm.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        key: Randomness of the rule: an integer, another one in every round.
        model: Weights that the server sent, in the form of a row.
        network: Function from a row's layers to logits.
        samples: Noise images in each set; the paper has 20,000.
        seeds: Sets of noise images.
        tau: Share of suspicious models from which on a cluster is left out.
        smallest: Rows of the smallest cluster that HDBSCAN may find.
        step: Round, from 0.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def density_filter(x: Rows, *, width: float = 4.0, findings: Findings | None = None) -> Any:
    """Leave out rows whose share of ones is ``> width`` median deviations off the median share.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        width: Limit in median absolute deviations; 1.5 are a normal's standard deviation.
        findings: Object that the rule's findings are written to.

    Returns:
        The rows that are handed on, in the form in which they came.
    """

def dnc(
    x: Rows,
    *,
    f: int,
    key: int | Key | None,
    c: float = 1.0,
    iterations: int = 1,
    sketch: int = 10000,
    findings: Findings | None = None,
) -> Any:
    """Leave out the ``c f`` rows with the largest ``<x_i - mean, v>^2``, average the others.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for.
        key: Randomness of the rule: an integer, another one in every round.
        c: Rows to leave out, per malicious one; ``c f`` is rounded up.
        iterations: Number of sketches.
        sketch: Coordinates of each; all, if there are no more.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

class _drive(Codec):
    def encode(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        scale: Literal["unbiased", "min-mse"] = "unbiased",
        block: int = 4096,
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> bytes:
        """Send ``sign(R x)`` and a scale: ``x_hat = S R^-1 sign(R x)``, R a random Hadamard rotation.

        Unbiased; relative squared error pi / 2 - 1 = 0.571 of a Gaussian vector; 1 bit, and 32
        for each block of 4096 and 64 for the seed, a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            scale: ``unbiased``, or ``min-mse`` for the least error.
            block: Length of the longest block that is rotated by itself, a power of two.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(
        self,
        data: bytes,
        like: Vector,
        *,
        error_feedback: bool = False,
        scale: Literal["unbiased", "min-mse"] = "unbiased",
        block: int = 4096,
    ) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            error_feedback: Whether a client adds to its update what it has not sent before.
            scale: ``unbiased``, or ``min-mse`` for the least error.
            block: Length of the longest block that is rotated by itself, a power of two.

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        scale: Literal["unbiased", "min-mse"] = "unbiased",
        block: int = 4096,
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            scale: ``unbiased``, or ``min-mse`` for the least error.
            block: Length of the longest block that is rotated by itself, a power of two.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

drive: _drive
"""Send ``sign(R x)`` and a scale: ``x_hat = S R^-1 sign(R x)``, R a random Hadamard rotation."""

def dyn_opt(
    honest: Rows,
    *,
    m: int,
    defense: Defense[Any] | str,
    knows: Literal["colluders", "all"] = "all",
    via: Literal["codec", "wire"] = "codec",
    side: Literal["worse", "minus"] = "worse",
    bound: float = 100000.0,
    eot: int = 1,
    direction: Literal["std", "sign", "unit"] = "std",
    search: Literal["exact", "published"] = "exact",
    selected: Literal["most", "all"] = "most",
    start: float = 10.0,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """All colluders send ``mean + gamma * direction`` with the gamma that hurts this rule most.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        defense: The server's rule that it queries, such as median.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest
            legal message with the honest headers, also where its values are not what is
            compressed.
        side: ``worse``: the side on which the attack does more, ``minus`` if neither does;
            ``minus``: below the mean, as published.
        bound: Longest ``gamma * push``, in root mean square lengths of the messages it
            reads.
        eot: Draws of the server's randomness over which damage is averaged, for rules that
            have some (expectation over transformation).
        direction: ``std``, ``sign`` (leaves rankings alone: positions are positive) or
            ``unit``.
        search: ``exact`` (above) or ``published``.
        selected: Against a rule that picks rows: ``most`` or ``all`` (above).
        start: First gamma of the published search. Its notebooks use 3 for Multi-Krum and
            Bulyan and 10 for trimmed mean and median on CIFAR-10, 20 and 5 on FEMNIST;
            FSL's code has 5.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

class _eden(Codec):
    def encode(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        bits: float = 1.0,
        block: int = 4096,
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> bytes:
        """Rotate, quantize with the Lloyd-Max centroids of a Gaussian, and scale without bias.

        Unbiased; relative squared error 0.571, 0.133, 0.0358 and 0.0096 at 1, 2, 3 and 4 bits
        of a Gaussian vector; as many bits as asked for, and 32 for each block of 4096 and 64
        for the seed, a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            bits: Bits a parameter, on average, without scales.
            block: Length of the longest block that is rotated by itself, a power of two.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(
        self,
        data: bytes,
        like: Vector,
        *,
        error_feedback: bool = False,
        bits: float = 1.0,
        block: int = 4096,
    ) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            error_feedback: Whether a client adds to its update what it has not sent before.
            bits: Bits a parameter, on average, without scales.
            block: Length of the longest block that is rotated by itself, a power of two.

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        bits: float = 1.0,
        block: int = 4096,
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            bits: Bits a parameter, on average, without scales.
            block: Length of the longest block that is rotated by itself, a power of two.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

eden: _eden
"""Rotate, quantize with the Lloyd-Max centroids of a Gaussian, and scale without bias."""

def edge_case(
    honest: Rows,
    *,
    m: int,
    trained: Rows,
    source: int = 7,
    target: int = 1,
    tail: float = 0.2,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Train honestly, but with the oddest images of the class ``source`` labelled ``target``.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        trained: The ``m`` rows after the attack's own training, such as on its labels.
        source: Class whose tail is relabelled.
        target: Class that the tail is to be taken for.
        tail: Share of the source images.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

class _ef_signsgd(Codec):
    def encode(
        self,
        x: Vector,
        *,
        error_feedback: bool = True,
        zero: Literal["plus", "random"] = "plus",
        per: Literal["layer", "vector"] = "layer",
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> bytes:
        """Clients send ``(|x|_1 / d) sign(x)`` of ``x = u + e``, their update plus the residual.

        Biased; relative squared error 1 - |x|_1**2 / (d |x|**2) over each layer, 1 - 2 / pi of
        a Gaussian vector; 1 bit, and 32 for each layer, a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: On by default; without it this is scaled SignSGD.
            zero: The sign of 0: +1 (``plus``) or a coin (``random``).
            per: One scale for each ``layer``, as in the paper's experiments, or for the
                ``vector``.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(
        self,
        data: bytes,
        like: Vector,
        *,
        error_feedback: bool = True,
        zero: Literal["plus", "random"] = "plus",
        per: Literal["layer", "vector"] = "layer",
    ) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            error_feedback: On by default; without it this is scaled SignSGD.
            zero: The sign of 0: +1 (``plus``) or a coin (``random``).
            per: One scale for each ``layer``, as in the paper's experiments, or for the
                ``vector``.

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self,
        x: Vector,
        *,
        error_feedback: bool = True,
        zero: Literal["plus", "random"] = "plus",
        per: Literal["layer", "vector"] = "layer",
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: On by default; without it this is scaled SignSGD.
            zero: The sign of 0: +1 (``plus``) or a coin (``random``).
            per: One scale for each ``layer``, as in the paper's experiments, or for the
                ``vector``.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

ef_signsgd: _ef_signsgd
"""Clients send ``(|x|_1 / d) sign(x)`` of ``x = u + e``, their update plus the residual."""

def entropy_filter(x: Rows, *, width: float = 4.0, findings: Findings | None = None) -> Any:
    """Leave out rows whose surprise is ``> width`` median deviations above the median surprise.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        width: Limit in median absolute deviations; 1.5 are a normal's standard deviation.
        findings: Object that the rule's findings are written to.

    Returns:
        The rows that are handed on, in the form in which they came.
    """

class _fedavg(Codec):
    def encode(self, x: Vector, *, key: int | Key | None = None) -> bytes:
        """Clients train the weights locally, the server adds the mean of their updates.

        Unbiased; relative squared error 0; 32 bits a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            key: Randomness of this message; None: the operating system's.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(self, data: bytes, like: Vector) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(self, x: Vector, *, key: int | Key | None = None) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            key: Randomness of this message; None: the operating system's.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

fedavg: _fedavg
"""Clients train the weights locally, the server adds the mean of their updates."""

class _fedmrn(Codec):
    def encode(
        self,
        x: Vector,
        *,
        noise: Literal["uniform", "gaussian", "bernoulli"] = "uniform",
        magnitude: float = 0.01,
        sm: bool = True,
        pm: bool = True,
        when: Literal["training", "after"] = "training",
        key: int | Key | None = None,
    ) -> bytes:
        """Clients look for their update within random noise, and send one bit a weight and a seed.

        Biased; relative squared error depends on the noise: its magnitude must be that of the
        update; about 1 bit, entropy-coded, and 64 for the seed, a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            noise: Distribution of the noise: ``uniform``, ``gaussian`` or ``bernoulli``.
            magnitude: End of its interval, its standard deviation (``N(0, alpha)`` in the
                paper, whose code takes alpha for it), or its absolute value.
            sm: Stochastic masking; else deterministic, for the final mask too: 1 iff ``u`` and
                the noise have the same sign.
            pm: Progressive masking; else all coordinates are masked in every step.
            when: ``training``, or ``after`` it: FedAvg's update, masked (section 5.4).
            key: Randomness of this message; None: the operating system's.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(
        self,
        data: bytes,
        like: Vector,
        *,
        noise: Literal["uniform", "gaussian", "bernoulli"] = "uniform",
        magnitude: float = 0.01,
        sm: bool = True,
        pm: bool = True,
        when: Literal["training", "after"] = "training",
    ) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            noise: Distribution of the noise: ``uniform``, ``gaussian`` or ``bernoulli``.
            magnitude: End of its interval, its standard deviation (``N(0, alpha)`` in the
                paper, whose code takes alpha for it), or its absolute value.
            sm: Stochastic masking; else deterministic, for the final mask too: 1 iff ``u`` and
                the noise have the same sign.
            pm: Progressive masking; else all coordinates are masked in every step.
            when: ``training``, or ``after`` it: FedAvg's update, masked (section 5.4).

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self,
        x: Vector,
        *,
        noise: Literal["uniform", "gaussian", "bernoulli"] = "uniform",
        magnitude: float = 0.01,
        sm: bool = True,
        pm: bool = True,
        when: Literal["training", "after"] = "training",
        key: int | Key | None = None,
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            noise: Distribution of the noise: ``uniform``, ``gaussian`` or ``bernoulli``.
            magnitude: End of its interval, its standard deviation (``N(0, alpha)`` in the
                paper, whose code takes alpha for it), or its absolute value.
            sm: Stochastic masking; else deterministic, for the final mask too: 1 iff ``u`` and
                the noise have the same sign.
            pm: Progressive masking; else all coordinates are masked in every step.
            when: ``training``, or ``after`` it: FedAvg's update, masked (section 5.4).
            key: Randomness of this message; None: the operating system's.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

fedmrn: _fedmrn
"""Clients look for their update within random noise, and send one bit a weight and a seed."""

class _fedmrns(Codec):
    def encode(
        self,
        x: Vector,
        *,
        noise: Literal["uniform", "gaussian", "bernoulli"] = "uniform",
        magnitude: float = 0.005,
        sm: bool = True,
        pm: bool = True,
        when: Literal["training", "after"] = "training",
        key: int | Key | None = None,
    ) -> bytes:
        """FedMRN whose masks are signs: the update is noise, kept or negated.

        Biased; relative squared error depends on the noise: its magnitude must be that of the
        update; about 1 bit, entropy-coded, and 64 for the seed, a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            noise: Distribution of the noise: ``uniform``, ``gaussian`` or ``bernoulli``.
            magnitude: End of its interval, its standard deviation (``N(0, alpha)`` in the
                paper, whose code takes alpha for it), or its absolute value.
            sm: Stochastic masking; else deterministic, for the final mask too: 1 iff ``u`` and
                the noise have the same sign.
            pm: Progressive masking; else all coordinates are masked in every step.
            when: ``training``, or ``after`` it: FedAvg's update, masked (section 5.4).
            key: Randomness of this message; None: the operating system's.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(
        self,
        data: bytes,
        like: Vector,
        *,
        noise: Literal["uniform", "gaussian", "bernoulli"] = "uniform",
        magnitude: float = 0.005,
        sm: bool = True,
        pm: bool = True,
        when: Literal["training", "after"] = "training",
    ) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            noise: Distribution of the noise: ``uniform``, ``gaussian`` or ``bernoulli``.
            magnitude: End of its interval, its standard deviation (``N(0, alpha)`` in the
                paper, whose code takes alpha for it), or its absolute value.
            sm: Stochastic masking; else deterministic, for the final mask too: 1 iff ``u`` and
                the noise have the same sign.
            pm: Progressive masking; else all coordinates are masked in every step.
            when: ``training``, or ``after`` it: FedAvg's update, masked (section 5.4).

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self,
        x: Vector,
        *,
        noise: Literal["uniform", "gaussian", "bernoulli"] = "uniform",
        magnitude: float = 0.005,
        sm: bool = True,
        pm: bool = True,
        when: Literal["training", "after"] = "training",
        key: int | Key | None = None,
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            noise: Distribution of the noise: ``uniform``, ``gaussian`` or ``bernoulli``.
            magnitude: End of its interval, its standard deviation (``N(0, alpha)`` in the
                paper, whose code takes alpha for it), or its absolute value.
            sm: Stochastic masking; else deterministic, for the final mask too: 1 iff ``u`` and
                the noise have the same sign.
            pm: Progressive masking; else all coordinates are masked in every step.
            when: ``training``, or ``after`` it: FedAvg's update, masked (section 5.4).
            key: Randomness of this message; None: the operating system's.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

fedmrns: _fedmrns
"""FedMRN whose masks are signs: the update is noise, kept or negated."""

class _fedpaq(Codec):
    def encode(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        levels: int = 10,
        bucket: int = 0,
        norm: Literal["l2", "max"] = "l2",
        code: Literal["elias", "entropy"] = "entropy",
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> bytes:
        """Clients train locally and send their update in QSGD's levels; the server adds the mean.

        Unbiased; relative squared error at most min(d / levels**2, sqrt(d) / levels) in the
        mean; at most log2(2 levels + 1) bits, and 32 for the norm, entropy-coded, a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            levels: ``s``, up to 32767, counts those above 0: there are ``2 s + 1`` (A7).
            bucket: Coordinates that share a scale; 0 for all of them.
            norm: Their scale: the ``l2`` norm, or ``max``, the largest magnitude.
            code: ``elias``, that of the paper, or ``entropy``, a range coder with shorter
                messages.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(
        self,
        data: bytes,
        like: Vector,
        *,
        error_feedback: bool = False,
        levels: int = 10,
        bucket: int = 0,
        norm: Literal["l2", "max"] = "l2",
        code: Literal["elias", "entropy"] = "entropy",
    ) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            error_feedback: Whether a client adds to its update what it has not sent before.
            levels: ``s``, up to 32767, counts those above 0: there are ``2 s + 1`` (A7).
            bucket: Coordinates that share a scale; 0 for all of them.
            norm: Their scale: the ``l2`` norm, or ``max``, the largest magnitude.
            code: ``elias``, that of the paper, or ``entropy``, a range coder with shorter
                messages.

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        levels: int = 10,
        bucket: int = 0,
        norm: Literal["l2", "max"] = "l2",
        code: Literal["elias", "entropy"] = "entropy",
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            levels: ``s``, up to 32767, counts those above 0: there are ``2 s + 1`` (A7).
            bucket: Coordinates that share a scale; 0 for all of them.
            norm: Their scale: the ``l2`` norm, or ``max``, the largest magnitude.
            code: ``elias``, that of the paper, or ``entropy``, a range coder with shorter
                messages.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

fedpaq: _fedpaq
"""Clients train locally and send their update in QSGD's levels; the server adds the mean."""

def flame(
    x: Rows, *, noise: float = 0.001, key: int | Key | None = None, findings: Findings | None = None
) -> Any:
    """Average the largest cluster by angle, clipped to the median norm ``S``, and add noise.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        noise: Standard deviation of a coordinate's noise, in median norms. The norm of all
            of it is ``sqrt(d)`` times larger.
        key: Randomness of the rule: an integer, another one in every round.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def fldetector(
    x: Rows,
    *,
    key: int | Key | None,
    ids: Sequence[int] | Tensor,
    window: int = 10,
    weights: Sequence[float] | Tensor | None = None,
    state: Any = None,
    model: Vector | None = None,
    step: int = 0,
    findings: Findings | None = None,
) -> tuple[Any, Any]:
    """Average the clients whose updates are not farther from what their last ones predict.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        key: Randomness of the rule: an integer, another one in every round.
        ids: Number of each row's client, the same in every round.
        window: Number of models that approximate the Hessian, and of distances in a score;
            ``N``.
        weights: Sizes of the clients, by default 1.
        state: State that the last round returned; None before the first.
        model: Weights that the server sent, in the form of a row.
        step: Round, from 0.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row, and the state for the next round.
    """

def fltrust(x: Rows, *, root: Vector, findings: Findings | None = None) -> Any:
    """Average rows weighted by trust ``TS_i = max(cos(g_i, g_0), 0)``, each as long as ``g_0``.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        root: The server's own vector, from its clean root data.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def foolsgold(
    x: Rows,
    *,
    ids: Sequence[int] | Tensor,
    kappa: float = 1.0,
    state: Any = None,
    model: Vector | None = None,
    step: int = 0,
    findings: Findings | None = None,
) -> tuple[Any, Any]:
    """Compute ``sum_i a_i x_i / sum_i a_i``, ``a_i`` small if another client's history is parallel.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        ids: Number of each row's client, the same in every round.
        kappa: Confidence: how steeply weights fall.
        state: State that the last round returned; None before the first.
        model: Weights that the server sent, in the form of a row.
        step: Round, from 0.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row, and the state for the next round.
    """

def free_rider(
    honest: Rows,
    *,
    m: int,
    kind: Literal["zero", "replay"] = "zero",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Every malicious client sends the update of an untrained model, or replays the global update.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        kind: ``zero`` or ``replay``.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def geometric_median(
    x: Rows,
    *,
    iterations: int = 100,
    tolerance: float = 1e-06,
    smooth: float = 0.0,
    findings: Findings | None = None,
) -> Any:
    """Compute ``argmin_z F(z) = sum_i |x_i - z|``, to a relative error of ``tolerance`` in ``F``.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        iterations: Largest number of steps.
        tolerance: Relative error of ``F`` at which it stops. The findings say which one was
            reached (``gap``), and if that is more than this (``stopped``).
        smooth: Distance below which a row does not weigh more; 0: the exact median.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def ipm(
    honest: Rows,
    *,
    m: int,
    knows: Literal["colluders", "all"] = "all",
    via: Literal["codec", "wire"] = "codec",
    eps: float = 0.5,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """All colluders send ``-eps * mean``, so that the aggregate points away from the honest mean.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest
            legal message with the honest headers, also where its values are not what is
            compressed.
        eps: Distance on the other side of zero, in means.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def krum(
    x: Rows,
    *,
    f: int,
    variant: Literal["canonical", "public"] = "canonical",
    findings: Findings | None = None,
) -> Any:
    """Select the row with the least sum of squared distances to its ``n - f - 2`` nearest others.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for; ``n >= 2 f + 3``.
        variant: ``canonical``, the paper's Krum, or ``public``, that of the attacks' public
            code.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def label_flip(
    honest: Rows,
    *,
    m: int,
    trained: Rows,
    convention: Literal["mirror", "next", "pair"] = "mirror",
    source: int = 3,
    target: int = 7,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Train honestly on local data whose labels are flipped, and send the resulting update.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        trained: The ``m`` rows after the attack's own training, such as on its labels.
        convention: ``mirror``, ``next`` or ``pair``.
        source: Label that ``pair`` turns.
        target: Label that ``pair`` turns it into.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def lasa(
    x: Rows,
    *,
    sparsity: float = 0.3,
    norm: float = 1.0,
    sign: float = 1.0,
    findings: Findings | None = None,
) -> Any:
    """Average in each layer the sparsified rows whose norm and share of signs are those of most.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        sparsity: Share of a row's coordinates that are brought to the middle.
        norm: Radius for MZ-scores of norms, the paper's ``lambda_m``.
        sign: Radius for MZ-scores of purities, the paper's ``lambda_d``.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def log_odds_cap(x: Rows, *, c: float = 0.5, findings: Findings | None = None) -> Any:
    """Compute ``theta = (s + a) / (n + 2 a)`` for ``s`` ones of ``n``: a bit moves ``logit`` by c.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        c: Largest distance by which one client may move the log-odds of a coordinate, in
            nats.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def margin(
    honest: Rows,
    *,
    m: int,
    tie: Literal["alphabet", "stays", "up", "down"] = "alphabet",
    rest: Literal["honest", "against"] = "honest",
    knows: Literal["colluders", "all"] = "all",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """All colluders vote against the benign majority wherever that changes its decision.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        tie: Decision of as many ones as zeros: the coordinate ``stays`` (signs by default),
            is 1 (``up``) or 0 (``down``, masks by default, which keep what is strictly
            above 1/2). A server that throws a coin is best met by ``stays``.
        rest: Where no choice changes anything: ``honest``, or ``against`` all the same.
        knows: Whose messages stand for the benign ones: those of ``all`` benign clients,
            which the optimum needs, or those of the ``colluders`` as if honest, taken for a
            sample of them.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def mask_alie(
    honest: Rows,
    *,
    m: int,
    z: float | None = 1.5,
    how: Literal["sample", "threshold"] = "sample",
    density: Literal["benign", "free"] = "benign",
    knows: Literal["colluders", "all"] = "all",
    side: Literal["worse", "minus"] = "worse",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Colluders send bits of ``clip(theta - z sigma, 0, 1)`` or ``clip(theta + z sigma, 0, 1)``.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        z: Deviations; None: the paper's formula, see `alie.largest_z`, without its sign, or
            with ``side=minus`` 0 where that is negative: 0 for 2 of 10.
        how: ``sample``: each colluder draws its own bits; ``threshold``: all the most
            probable.
        density: ``benign``: as many ones as the messages read, their mean rounded, over the
            whole message (a mask does not say where a layer ends); ``free``: what the
            probabilities give.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        side: ``worse``: the side against what the adversary's own clients learned, see
            `alie.against`, in the first round in which the messages differ, kept from then
            on; ``minus``: below ``theta``.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def mask_ipm(
    honest: Rows,
    *,
    m: int,
    eps: float = 1.0,
    how: Literal["sample", "threshold"] = "sample",
    density: Literal["benign", "free"] = "benign",
    knows: Literal["colluders", "all"] = "all",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Colluders send bits of ``theta_m = clip(1/2 - eps (theta - 1/2), 0, 1)``.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        eps: Distance from 1/2, on the other side, in distances of the messages read.
        how: ``sample``: each colluder draws its own bits; ``threshold``: all the most
            probable.
        density: ``benign``: as many ones as the messages read, their mean rounded, over the
            whole message (a mask does not say where a layer ends); ``free``: what the
            probabilities give.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def mda(x: Rows, *, f: int, findings: Findings | None = None) -> Any:
    """Average the ``n - f`` rows whose largest distance ``max_ij |x_i - x_j|`` is smallest.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def meamed(x: Rows, *, f: int, findings: Findings | None = None) -> Any:
    """Average the ``n - f`` values of every coordinate that are nearest to its median.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def mean(
    x: Rows, *, weights: Sequence[float] | Tensor | None = None, findings: Findings | None = None
) -> Any:
    """Average the rows, weighted by the clients' sizes where the protocol weights them.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        weights: Sizes of the clients, by default 1.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def median(
    x: Rows, *, even: Literal["mean", "lower"] = "mean", findings: Findings | None = None
) -> Any:
    """Compute the middle value of every coordinate. Ignores the clients' sizes.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        even: With an even number of rows the mean of the two middle ones (``mean``, the
            usual definition), or the lower one (``lower``, what ``torch.median`` returns).
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def mimic(
    honest: Rows,
    *,
    m: int,
    knows: Literal["colluders", "all"] = "all",
    via: Literal["codec", "wire"] = "codec",
    warmup: int = 10,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """All colluders copy the row with the largest ``<z, x_i>``, where ``z`` is how clients differ.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest
            legal message with the honest headers, also where its values are not what is
            compressed.
        warmup: Rounds in which ``z`` and ``mu`` are learned.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def min_max(
    honest: Rows,
    *,
    m: int,
    knows: Literal["colluders", "all"] = "all",
    via: Literal["codec", "wire"] = "codec",
    side: Literal["worse", "minus"] = "worse",
    direction: Literal["std", "sign", "unit"] = "std",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """All colluders send ``mean + gamma * p``, within the largest distance of two honest rows.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest
            legal message with the honest headers, also where its values are not what is
            compressed.
        side: ``worse``: the side on which the attack does more, ``minus`` if neither does;
            ``minus``: below the mean, as published.
        direction: ``p``: ``std`` (minus the deviation, ddof 1), ``sign`` (minus the sign of
            the mean) or ``unit`` (minus the mean over its norm).
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def min_sum(
    honest: Rows,
    *,
    m: int,
    knows: Literal["colluders", "all"] = "all",
    via: Literal["codec", "wire"] = "codec",
    direction: Literal["std", "sign", "unit"] = "std",
    bound: Literal["max", "min"] = "max",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """All colluders send ``mean + gamma * p``, within an honest row's sum of squared distances.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest
            legal message with the honest headers, also where its values are not what is
            compressed.
        direction: ``p``: ``std`` (minus the deviation, ddof 1), ``sign`` (minus the sign of
            the mean) or ``unit`` (minus the mean over its norm).
        bound: Over ``i``: ``max``, as the paper defines it, or ``min``, as its public code
            does (A5), which is stricter.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def model_replacement(
    honest: Rows,
    *,
    m: int,
    trained: Rows,
    size: int = 3,
    rho: float = 0.5,
    target: int = 0,
    alpha: float = 0.5,
    scale: float | None = None,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Train as `Pixel` on ``alpha CE + (1 - alpha) |w - w0|^2``, send ``scale`` times the update.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        trained: The ``m`` rows after the attack's own training, such as on its labels.
        size: Height and width of the square, in pixels.
        rho: Share of the local images.
        target: Label that a stamped image is to be taken for.
        alpha: Weight of the cross-entropy; 1 is without the anomaly term.
        scale: Factor; None: rows of the round over colluders in it.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def multi_krum(
    x: Rows,
    *,
    f: int,
    m: int | None = None,
    variant: Literal["canonical", "recursive", "public"] = "canonical",
    findings: Findings | None = None,
) -> Any:
    """Average the ``m`` rows with the lowest Krum scores.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for; ``n >= 2 f + 3``.
        m: Number of rows to average. Default ``n - f``; for the other variants ``n - 2 f -
            2``, where the public code stops, the last pick for which ``n > 2 f + 2`` still
            holds.
        variant: ``canonical``, ``recursive`` or ``public`` (above).
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def neurotoxin(
    honest: Rows,
    *,
    m: int,
    trained: Rows,
    size: int = 3,
    rho: float = 0.5,
    target: int = 0,
    ratio: float = 0.05,
    clip: float = 1.0,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Train as `Pixel`, without gradient where the model's last move was among the largest.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        trained: The ``m`` rows after the attack's own training, such as on its labels.
        size: Height and width of the square, in pixels.
        rho: Share of the local images.
        target: Label that a stamped image is to be taken for.
        ratio: Share of the coordinates that are left to the others.
        clip: Largest norm of the update, relative to the honest one.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def nna(x: Rows, *, f: int, root: Vector, findings: Findings | None = None) -> Any:
    """Average the server's own message and the ``n - f`` rows nearest to it.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for; ``n + 1 >= 2 f + 1``.
        root: The server's own vector, from its clean root data.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def nnm(x: Rows, *, f: int, findings: Findings | None = None) -> Any:
    """Replace every row by the mean of the ``n - f`` rows nearest to it, itself included.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.
        findings: Object that the rule's findings are written to.

    Returns:
        The rows that are handed on, in the form in which they came.
    """

def noise(
    honest: Rows,
    *,
    m: int,
    scale: float = 100.0,
    add: bool = False,
    via: Literal["codec", "wire"] = "codec",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Every malicious client sends ``scale * |u| / sqrt(d) * N(0, I)``, or its own ``u`` plus that.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        scale: Length of the noise, relative to ``u``. At 1 it hardly disturbs even a mean.
        add: Send ``u`` plus the noise, and not the noise alone.
        via: ``codec``: compress the noise as the client would; ``wire``: the closest legal
            message.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def none(
    honest: Rows,
    *,
    m: int,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Malicious clients behave like the others: the run that every attack is compared with.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def norm_bound(
    x: Rows,
    *,
    c: float | None = None,
    noise: float = 0.0,
    key: int | Key | None = None,
    findings: Findings | None = None,
) -> Any:
    """Compute ``1/n sum_i x_i min(1, c / |x_i|) + noise N(0, I)``.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        c: Largest norm of a row. None is ours: the median norm of the round's rows.
        noise: Standard deviation of a coordinate of the noise that is added to the mean.
        key: Randomness of the rule: an integer, another one in every round.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def opt_alie(
    honest: Rows,
    *,
    m: int,
    defense: Defense[Any] | str,
    knows: Literal["colluders", "all"] = "all",
    via: Literal["codec", "wire"] = "codec",
    side: Literal["worse", "minus"] = "worse",
    bound: float = 100000.0,
    eot: int = 1,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """All colluders send ``mean - gamma * std`` (ddof 1), with the gamma of most damage.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        defense: The server's rule that it queries, such as median.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest
            legal message with the honest headers, also where its values are not what is
            compressed.
        side: ``worse``: the side on which the attack does more, ``minus`` if neither does;
            ``minus``: below the mean, as published.
        bound: Longest ``gamma * push``, in root mean square lengths of the messages it
            reads.
        eot: Draws of the server's randomness over which damage is averaged, for rules that
            have some (expectation over transformation).
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def opt_ipm(
    honest: Rows,
    *,
    m: int,
    defense: Defense[Any] | str,
    knows: Literal["colluders", "all"] = "all",
    via: Literal["codec", "wire"] = "codec",
    bound: float = 100000.0,
    eot: int = 1,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """All colluders send ``(1 - gamma) * mean``, with the gamma of most damage ``|agg - mean|``.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        defense: The server's rule that it queries, such as median.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest
            legal message with the honest headers, also where its values are not what is
            compressed.
        bound: Longest ``gamma * push``, in root mean square lengths of the messages it
            reads.
        eot: Draws of the server's randomness over which damage is averaged, for rules that
            have some (expectation over transformation).
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def pga(
    honest: Rows,
    *,
    m: int,
    trained: Rows,
    scale: float = 1.0,
    via: Literal["codec", "wire"] = "codec",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Each colluder ascends the loss of its own data, and is as long as honest updates are.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        trained: The ``m`` rows after the attack's own training, such as on its labels.
        scale: Length, relative to honest updates.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest
            legal message with the honest headers, where messages are as wide as updates.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def pinning(
    honest: Rows,
    *,
    m: int,
    period: int = 1,
    knows: Literal["colluders", "all"] = "all",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Colluders send the complement of the majority that they saw first in this reset period.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        period: Number of rounds between resets.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def pixel(
    honest: Rows,
    *,
    m: int,
    trained: Rows,
    size: int = 3,
    rho: float = 0.5,
    target: int = 0,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Train with a share ``rho`` of the images stamped with a bright square, labelled ``target``.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        trained: The ``m`` rows after the attack's own training, such as on its labels.
        size: Height and width of the square, in pixels.
        rho: Share of the local images.
        target: Label that a stamped image is to be taken for.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def poisonedfl(
    honest: Rows,
    *,
    m: int,
    c: float = 8.0,
    beta: float = 0.7,
    window: int = 50,
    p: float = 0.01,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """All colluders send ``c |g| v * s`` with signs ``s`` that are drawn once for the whole run.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        c: Initial factor of the move's norm.
        beta: Factor of ``c`` where the model did not follow.
        window: Rounds between two tests, the paper's e.
        p: Level of the test.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

class _qsgd(Codec):
    def encode(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        levels: int = 7,
        bucket: int = 512,
        norm: Literal["l2", "max"] = "max",
        code: Literal["elias", "entropy"] = "entropy",
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> bytes:
        """Clients round each ``|v_i| s / ||v||`` to an integer, up or down so that the mean is right.

        Unbiased; relative squared error at most bucket / (2 levels)**2 = 2.61, and 0.036 of a
        Gaussian vector; at most log2(2 levels + 1) bits, and 32 for each bucket, entropy-coded:
        3.33 of a Gaussian vector, a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            levels: ``s``, up to 32767, counts those above 0: there are ``2 s + 1`` (A7).
            bucket: Coordinates that share a scale; 0 for all of them.
            norm: Their scale: the ``l2`` norm, or ``max``, the largest magnitude.
            code: ``elias``, that of the paper, or ``entropy``, a range coder with shorter
                messages.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(
        self,
        data: bytes,
        like: Vector,
        *,
        error_feedback: bool = False,
        levels: int = 7,
        bucket: int = 512,
        norm: Literal["l2", "max"] = "max",
        code: Literal["elias", "entropy"] = "entropy",
    ) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            error_feedback: Whether a client adds to its update what it has not sent before.
            levels: ``s``, up to 32767, counts those above 0: there are ``2 s + 1`` (A7).
            bucket: Coordinates that share a scale; 0 for all of them.
            norm: Their scale: the ``l2`` norm, or ``max``, the largest magnitude.
            code: ``elias``, that of the paper, or ``entropy``, a range coder with shorter
                messages.

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        levels: int = 7,
        bucket: int = 512,
        norm: Literal["l2", "max"] = "max",
        code: Literal["elias", "entropy"] = "entropy",
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            levels: ``s``, up to 32767, counts those above 0: there are ``2 s + 1`` (A7).
            bucket: Coordinates that share a scale; 0 for all of them.
            norm: Their scale: the ``l2`` norm, or ``max``, the largest magnitude.
            code: ``elias``, that of the paper, or ``entropy``, a range coder with shorter
                messages.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

qsgd: _qsgd
"""Clients round each ``|v_i| s / ||v||`` to an integer, up or down so that the mean is right."""

class _randk(Codec):
    def encode(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        k: float = 0.03,
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> bytes:
        """Clients send ``K = max(1, floor(k d))`` coordinates chosen by a seed, times ``d / K``.

        Unbiased; relative squared error 1 / k - 1 in the mean; 32 k bits, and 64 for the seed,
        a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            k: Share of the coordinates that travels.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(
        self, data: bytes, like: Vector, *, error_feedback: bool = False, k: float = 0.03
    ) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            error_feedback: Whether a client adds to its update what it has not sent before.
            k: Share of the coordinates that travels.

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        k: float = 0.03,
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            k: Share of the coordinates that travels.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

randk: _randk
"""Clients send ``K = max(1, floor(k d))`` coordinates chosen by a seed, times ``d / K``."""

def rank_margin(x: Rows, *, f: int, k: float = 0.5, findings: Findings | None = None) -> Any:
    """Compute FSL's VOTE, and the share of edges whose place in the mask no ``f`` rows can change.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for.
        k: Share of each layer's edges that the mask keeps; it must be the protocol's.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def rank_reversal(
    honest: Rows,
    *,
    m: int,
    voters: Literal["round", "all"] | int = "round",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Colluders vote on their honest rankings, layer by layer, and all send the reverse of it.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        voters: Malicious clients that vote: those of the ``round``, ``all``, or a number of
            all.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def reputation_clipping(x: Rows, *, width: float = 0.2, findings: Findings | None = None) -> Any:
    """Clip every position to within ``width n_l`` of the edge's median position, then average.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        width: Largest distance, as a share of the layer's edges.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def residual_release(
    honest: Rows,
    *,
    m: int,
    wait: int = 4,
    scale: float = 1.0,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Send ``wait`` honest messages, then ``-scale`` times the sum of those updates and this one.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        wait: Number of honest messages before each release.
        scale: Factor of what is released.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def rlr(
    x: Rows,
    *,
    f: int,
    theta: int | None = None,
    weights: Sequence[float] | Tensor | None = None,
    findings: Findings | None = None,
) -> Any:
    """Compute the mean, turned around in coordinates where ``|sum_i sign(x_i)| < theta``.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for.
        theta: Clients that must go one way more than the other. Default ``f + sqrt(n -
            f)``, rounded up: the signs of benign clients that toss coins add up to ``sqrt(n
            - f)``, one standard deviation, and ``f`` malicious ones beside them decide
            nothing then. The paper has a number for each experiment; the authors' code 4 of
            10 with 1, 8 of 40 with 4 and 8 of 33 with 3.3 malicious, where the default is
            4, 10 and 10.
        weights: Sizes of the clients, by default 1.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def safesparse(
    x: Rows, *, support: float = 4.5, sign: float = 3.0, findings: Findings | None = None
) -> Any:
    """Average the rows with the support of most that also have the signs of most.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        support: Median absolute deviations that a row's similarity may lie below the
            median.
        sign: Median absolute deviations that DBSCAN's radius lies above the median distance
            at which a row has more than half of the rows, itself among them.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def saturation(
    honest: Rows,
    *,
    m: int,
    kind: Literal["ones", "zeros", "disjoint"] = "ones",
    density: float | None = None,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Every malicious client sends all ones, all zeros, or ones where its own message has none.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        kind: ``ones``, ``zeros`` or ``disjoint``.
        density: Share of ones of ``disjoint``; None: as many as the own message.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def shuffle(
    honest: Rows,
    *,
    m: int,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Every malicious client sends a uniform random permutation of each layer.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def sign_flip(
    honest: Rows,
    *,
    m: int,
    scale: float = 1.0,
    of: Literal["own", "mean"] = "own",
    knows: Literal["colluders", "all"] = "all",
    via: Literal["codec", "wire"] = "codec",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Every malicious client sends ``-scale`` times its own honest update, or times the mean.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        scale: Length of what is sent, in own updates or means.
        of: ``own``: each flips its own; ``mean``: all send minus the mean of the messages
            read.
        knows: Messages that ``of=mean`` reads: those of the benign clients (``all``), or
            those of its own clients as if honest (``colluders``).
        via: ``codec``: flip the dense update, then compress it honestly; ``wire``: flip the
            values of the honest message and send the closest legal one with its headers.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def signguard(
    x: Rows,
    *,
    low: float = 0.1,
    high: float = 3.0,
    share: float = 0.1,
    quantile: float = 0.5,
    similarity: Literal["off", "cosine", "distance"] = "off",
    key: int | Key | None = None,
    findings: Findings | None = None,
) -> Any:
    """Average rows whose norm and shares of signs are those of most, clipped to the median norm.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        low: The smallest norm, in medians.
        high: The largest norm, in medians.
        share: Coordinates whose signs are counted, as a share of all.
        quantile: MeanShift's bandwidth, which the paper leaves open: the mean distance to
            so many of the other rows, as a share.
        similarity: off, cosine or distance.
        key: Randomness of the rule: an integer, another one in every round.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

class _signsgd(Codec):
    def encode(
        self, x: Vector, *, zero: Literal["plus", "random"] = "plus", key: int | Key | None = None
    ) -> bytes:
        """Clients send the sign of their update, the server moves by the sign of the sum of signs.

        Biased; relative squared error unbounded, since the length is lost; 1 bit a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            zero: A zero is sent as +1 (``plus``, as in public code), which moves weights
                without a gradient up in every round, or by a coin (``random``).
            key: Randomness of this message; None: the operating system's.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(self, data: bytes, like: Vector, *, zero: Literal["plus", "random"] = "plus") -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            zero: A zero is sent as +1 (``plus``, as in public code), which moves weights
                without a gradient up in every round, or by a coin (``random``).

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self, x: Vector, *, zero: Literal["plus", "random"] = "plus", key: int | Key | None = None
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            zero: A zero is sent as +1 (``plus``, as in public code), which moves weights
                without a gradient up in every round, or by a coin (``random``).
            key: Randomness of this message; None: the operating system's.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

signsgd: _signsgd
"""Clients send the sign of their update, the server moves by the sign of the sum of signs."""

def smea(x: Rows, *, f: int, findings: Findings | None = None) -> Any:
    """Average the ``n - f`` rows whose covariance ``C`` has the smallest largest eigenvalue.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for; ``n >= 2 f + 1``.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def stat_opt(
    honest: Rows,
    *,
    m: int,
    defense: Defense[Any] | str,
    knows: Literal["colluders", "all"] = "all",
    via: Literal["codec", "wire"] = "codec",
    search: Literal["exact", "published"] = "exact",
    bound: float = 100000.0,
    b: float = 2.0,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """All colluders send ``-lambda * s`` against the sign ``s`` of the mean, or go beyond all rows.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        defense: The server's rule that it queries, such as median.
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest
            legal message with the honest headers, also where its values are not what is
            compressed.
        search: Of lambda: ``exact``, the supremum within a relative 1e-3; on alphabets
            other than floats the most damage on a grid. ``published``: from the upper bound
            of the paper's theorem halved until all are selected or it is below 1e-5,
            whatever the updates' size.
        bound: Longest ``lambda * s`` of ``exact``, in root mean square lengths of messages
            read.
        b: Factor by which it goes beyond the known values.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

class _stochastic_sign(Codec):
    def encode(
        self,
        x: Vector,
        *,
        norm: Literal["l2", "max"] = "max",
        beta: float = 0.0,
        key: int | Key | None = None,
    ) -> bytes:
        """Signs that are right on average: ``+1`` with probability ``1/2 + x_i / (2 ||x||)``.

        Biased; relative squared error unbounded, since the length is lost; 1 bit a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            norm: Norm of the update, ``l2`` or ``max``.
            beta: Weight of the past in a client's average over rounds.
            key: Randomness of this message; None: the operating system's.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(
        self, data: bytes, like: Vector, *, norm: Literal["l2", "max"] = "max", beta: float = 0.0
    ) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            norm: Norm of the update, ``l2`` or ``max``.
            beta: Weight of the past in a client's average over rounds.

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self,
        x: Vector,
        *,
        norm: Literal["l2", "max"] = "max",
        beta: float = 0.0,
        key: int | Key | None = None,
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            norm: Norm of the update, ``l2`` or ``max``.
            beta: Weight of the past in a client's average over rounds.
            key: Randomness of this message; None: the operating system's.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

stochastic_sign: _stochastic_sign
"""Signs that are right on average: ``+1`` with probability ``1/2 + x_i / (2 ||x||)``."""

def swap(
    honest: Rows,
    *,
    m: int,
    kept: float | None = None,
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Every malicious client sends position ``(p + k_l) mod n_l`` for its edge at position p.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        kept: Share of each layer's edges that the server keeps. Default: the protocol's
            ``k``, which is public, or 0.5 of a protocol without that parameter.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

class _terngrad(Codec):
    def encode(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        clip: float = 0.0,
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> bytes:
        """Clients send ``s sign(g) b``, where ``b`` is 1 with probability ``|g| / s`` and else 0.

        Unbiased; relative squared error |x|_1 max|x| / |x|**2 - 1 in the mean, over each layer;
        at most log2(3) bits, and 32 for each layer, entropy-coded, a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            clip: A layer is first clipped to so many of its standard deviations, 2.5 in the
                paper, which is biased; 0 to clip nothing.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(
        self, data: bytes, like: Vector, *, error_feedback: bool = False, clip: float = 0.0
    ) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            error_feedback: Whether a client adds to its update what it has not sent before.
            clip: A layer is first clipped to so many of its standard deviations, 2.5 in the
                paper, which is biased; 0 to clip nothing.

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        clip: float = 0.0,
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            clip: A layer is first clipped to so many of its standard deviations, 2.5 in the
                paper, which is biased; 0 to clip nothing.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

terngrad: _terngrad
"""Clients send ``s sign(g) b``, where ``b`` is 1 with probability ``|g| / s`` and else 0."""

class _topk(Codec):
    def encode(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        k: float = 0.5,
        index: Literal["bitmap", "entropy"] = "bitmap",
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> bytes:
        """Clients send the ``k`` share of their update that is largest in magnitude, 0 elsewhere.

        Biased; relative squared error at most 1 - k; 1 + 32 k bits, the positions coded if
        index=entropy, a coordinate.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            k: Share of the coordinates that travels.
            index: How positions are encoded: ``bitmap``, a bit a coordinate as in the FSL
                paper's count, or ``entropy``, that bitmap entropy-coded: a fifth of it at 3 %.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            The message, whole bytes; `bits` counts what is information.
        """

    def decode(
        self,
        data: bytes,
        like: Vector,
        *,
        error_feedback: bool = False,
        k: float = 0.5,
        index: Literal["bitmap", "entropy"] = "bitmap",
    ) -> Any:
        """Return the vector that a server reads in the bytes of `encode`.

        Args:
            data: What `encode` returned.
            like: A vector of the shape, dtype and device that is to come back.
            error_feedback: Whether a client adds to its update what it has not sent before.
            k: Share of the coordinates that travels.
            index: How positions are encoded: ``bitmap``, a bit a coordinate as in the FSL
                paper's count, or ``entropy``, that bitmap entropy-coded: a fifth of it at 3 %.

        Returns:
            The vector, in the form of ``like``.
        """

    def bits(
        self,
        x: Vector,
        *,
        error_feedback: bool = False,
        k: float = 0.5,
        index: Literal["bitmap", "entropy"] = "bitmap",
        key: int | Key | None = None,
        memory: MutableMapping[str, Tensor] | None = None,
    ) -> int:
        """Count the bits of the message, encoded as by `encode`; a memory stays as it is.

        Args:
            x: A tensor or an array of any shape, or a state dict of floats.
            error_feedback: Whether a client adds to its update what it has not sent before.
            k: Share of the coordinates that travels.
            index: How positions are encoded: ``bitmap``, a bit a coordinate as in the FSL
                paper's count, or ``entropy``, that bitmap entropy-coded: a fifth of it at 3 %.
            key: Randomness of this message; None: the operating system's.
            memory: Dict of this sender, the same one in every round, for what it has not sent.

        Returns:
            Bits, without the zeros that fill the last byte.
        """

topk: _topk
"""Clients send the ``k`` share of their update that is largest in magnitude, 0 elsewhere."""

def trimmed_mean(x: Rows, *, f: int, findings: Findings | None = None) -> Any:
    """Drop the ``f`` largest and ``f`` smallest values of every coordinate, average the rest.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Clients the server is prepared to lose on each side.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """

def vem(
    honest: Rows,
    *,
    m: int,
    kept: float | None = None,
    knows: Literal["colluders", "all"] = "all",
    own: Rows | None = None,
    model: Vector | None = None,
    step: int = 0,
    key: int | Key = 0,
    memory: MutableMapping[int, Any] | None = None,
    notes: MutableMapping[str, Any] | None = None,
) -> Any:
    """Colluders spend their positions where they move most edges over the cut of a layer.

    Args:
        honest: Rows of the benign clients, in any of the forms.
        m: Number of malicious clients.
        kept: Share of each layer's edges that the server keeps. Default: the protocol's
            ``k``, which is public, or 0.5 of a protocol without that parameter.
        knows: Rankings it reads: those of ``all`` benign clients; or those of the
            ``colluders`` as if honest, whose mean then stands for each benign ranking.
        own: The ``m`` rows that its clients would have sent; by default the first honest
            ones stand in.
        model: Weights that the server sent, for attacks that read it.
        step: Round, from 0.
        key: Randomness of the adversary in the whole run.
        memory: Dict that the attack remembers in, the same one in every round; None: it is
            the first.
        notes: Dict that what the attack notes is written to.

    Returns:
        The ``m`` rows that are sent instead, in the form of ``honest``.
    """

def vote_margin(x: Rows, *, f: int, findings: Findings | None = None) -> Any:
    """Compute the mean of the bits, and the share of coordinates that no ``f`` rows can overturn.

    Args:
        x: Rows, one for each client; a tensor, an array, vectors or state dicts.
        f: Malicious rows the server is prepared for.
        findings: Object that the rule's findings are written to.

    Returns:
        The answer, in the form of one row.
    """
