"""Attacks in real space: what they read, what they measure, and how they send what they craft."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import torch
from torch import Tensor

from fedbench.api import Attack, AttackView, Knowledge
from fedbench.core.tiling import finite_rows, tiles
from fedbench.payload import FoldedMessages, GatedVectors, Payload, Rows, tiles_of

NOTHING_FINITE = "nothing finite to start from"  # note of an attack that sends honest messages
DECOY = 1e4  # how many times farther than the others the row is that hides them


class Reader(Attack):
    """Attack that reads the messages which its field ``knows`` names.

    Args:
        knows: Messages it reads: of the benign clients (``all``), or its own as if honest.
    """

    knows: Literal["colluders", "all"]  # each subclass has the field where its ids have it

    def needs(self) -> Knowledge:
        return Knowledge(self.knows)


@dataclass(frozen=True, kw_only=True)
class Sender(Reader):
    """Attack that sends rows of real numbers, made of the messages it reads.

    Args:
        via: ``codec``: compress the dense vector as the client would; ``wire``: the closest legal
            message with the honest headers, also where its values are not what is compressed.
    """

    knows: Literal["colluders", "all"] = "all"
    via: Literal["codec", "wire"] = "codec"


@dataclass(frozen=True, kw_only=True)
class Crafted(Sender):
    """Attack that makes rows of real numbers out of the honest rows it reads."""

    @abstractmethod
    def rows(self, view: AttackView, honest: Any) -> Tensor:
        """Return ``(k,)`` for all colluders, or ``(m, k)``, from ``honest (b, k)``, ``b >= 1``."""

    def look(self, view: AttackView, memory: Any) -> tuple[Tensor | None, Any]:
        honest = honest_messages(view, self.knows)
        return None if honest is None else self.rows(view, honest), memory

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        rows = view.looked
        if rows is None:
            rows, memory = self.look(view, memory)
        return view.own if rows is None else sender(view, self.via)(rows), memory


@dataclass(frozen=True, kw_only=True)
class TwoSided(Crafted):
    """Attack that leaves the mean along the deviation, below it or above it.

    It chooses its side in the first round in which the adversary has a client, and keeps it. To
    choose anew would undo what was done: honest clients heal the damage on one side, after which
    there is more to be done on the other. With a single message there is no deviation, and no side.

    Args:
        side: ``worse``: the side on which the attack does more, ``minus`` if neither does;
            ``minus``: below the mean, as published.
    """

    side: Literal["worse", "minus"] = "worse"

    @property
    def sides(self) -> tuple[int, ...]:
        """Sides to choose from, 1 for minus and -1 for plus; the first one where they are equal."""
        return (1, -1) if self.side == "worse" else (1,)

    @abstractmethod
    def sided(self, view: AttackView, honest: Any, sides: tuple[int, ...]) -> tuple[Tensor, int]:
        """Return what `rows` returns, of the worst of these sides, and the side; 0: undecided."""

    def rows(self, view: AttackView, honest: Any) -> Tensor:
        return self.sided(view, honest, self.sides)[0]

    def look(self, view: AttackView, memory: Any) -> tuple[Tensor | None, Any]:
        honest = honest_messages(view, self.knows)
        if honest is None:
            return None, memory
        choice = len(honest) > 1 and len(self.sides) > 1
        sides = (memory,) if choice and memory else self.sides if choice else (1,)
        rows, side = self.sided(view, honest, sides)
        if choice and side:
            view.notes["side"] = "minus" if side == 1 else "plus"
            memory = side
        return rows, memory


def margin(view: AttackView) -> float:
    """Return by how much more, relatively, the plus side must do to be preferred.

    In discrete alphabets that is a tenth: a coarse grid of strengths tells no less apart. Otherwise
    it is the rounding of sums.
    """
    return 0.1 if view.own.bounded else 1e-6


def honest_rows(view: AttackView) -> Tensor | None:
    """Return the finite rows ``(b, k)`` float32 of the messages read; None, recorded, without any.

    If no client of the round is benign, its own honest messages stand in for theirs.
    """
    view.notes["benign"] = len(view.seen)
    values = (view.seen if len(view.seen) else view.own).values().to(torch.float32)
    finite = finite_rows(values)
    if not bool(finite.any()):
        view.notes["ended"] = NOTHING_FINITE
        return None
    return values if bool(finite.all()) else values[finite]


def honest_messages(view: AttackView, knows: Literal["colluders", "all"]) -> Any:
    """Return `honest_rows`, or their packets or sums if the view has these; None without any."""
    if view.sums is None:
        return honest_rows(view)
    view.notes["benign"] = messages_read(view, knows)
    if len(view.sums):
        return view.sums if view.kept is None else view.kept
    view.notes["ended"] = NOTHING_FINITE
    return None


def honest_mean(view: AttackView, knows: Literal["colluders", "all"]) -> Tensor | None:
    """Return the mean ``(k,)`` float32 of `honest_messages`; None, recorded, without any."""
    honest = honest_messages(view, knows)
    return None if honest is None else mean_of(view, honest)


def mean_of(view: AttackView, honest: Rows | FoldedMessages) -> Tensor:
    """Return the mean ``(k,)`` float32 of `honest_messages`."""
    if isinstance(honest, Tensor):
        return honest.mean(dim=0)
    assert view.sums is not None
    return view.sums.mean().to(torch.float32)


def mean_answer(honest: Tensor, sent: Payload, n: int) -> Tensor:
    """Return the mean ``(k,)`` of the ``m`` messages and the ``n - m`` benign ones.

    The rows ``honest (b, k)`` stand for those, in turn.
    """
    others = honest[torch.arange(n - len(sent)) % len(honest)].to(torch.float64)
    return torch.cat([others, sent.values().to(torch.float64)]).mean(dim=0).to(torch.float32)


def messages_read(view: AttackView, knows: Literal["colluders", "all"]) -> int:
    """Return how many messages it may read: 0 of ``all`` benign clients where there are none."""
    if view.sums is None:
        return len(view.seen)
    return view.n - view.m if knows == "all" else view.m


def sender(view: AttackView, via: Literal["codec", "wire"]) -> Callable[[Tensor], Payload]:
    """Return the function from rows ``(k,)`` or ``(m, k)`` to the messages of all ``m`` colluders.

    A codec compresses rows of ``d`` numbers: where `values` are not these, only the wire is left.
    """
    k = view.own.values().shape[1]
    by_wire = via == "wire" or not view.own.aligned or k != view.updates.shape[1]
    view.notes["via"] = "wire" if by_wire else "codec"
    message = view.own.nearest if by_wire else view.compress
    return lambda rows: message(rows.expand(len(view.own), -1))


def split(
    send: Callable[[Tensor], Payload], base: Tensor, honest: Tensor
) -> Callable[[Tensor], Payload]:
    """Return a ``send`` of a row ``(k,)`` in which each client sends its share of the coordinates.

    Client ``i`` sends the coordinates ``i``, ``i + m``, ... of the row, and elsewhere its own of
    ``honest (m, k)``. No two messages are parallel, which FoolsGold looks for, and the first is
    `DECOY` times as far from ``base (k,)``: where a rule looks for the direction of most variance
    (DnC), or in standard deviations, it hides the others.

    >>> honest = torch.tensor([[5.0, 6.0, 7.0, 8.0], [6.0, 7.0, 8.0, 9.0]])
    >>> send = split(lambda rows: rows, torch.ones(4), honest)
    >>> send(torch.tensor([2.0, 3.0, 4.0, 5.0])).tolist()
    [[10001.0, 6.0, 30001.0, 8.0], [6.0, 3.0, 8.0, 5.0]]
    """
    m, k = honest.shape
    client = torch.arange(m, device=honest.device)[:, None]
    mine = torch.arange(k, device=honest.device) % m == client
    times = torch.where(client == 0, DECOY, 1.0)
    return lambda row: send(torch.where(mine, base + times * (row - base), honest))


def mirrored(view: AttackView, row: Tensor, scale: float) -> Tensor:
    """Return ``-scale`` times ``row (k,)``; masks and probabilities are mirrored at 1/2.

    What cannot be mirrored, gates for instance, stays. Scale 0 gives the middle of the alphabet.
    """
    return view.own.opposite(row[None], scale)[0]


def deviation(rows: Tensor, mean: Tensor) -> Tensor:
    """Return the standard deviation ``(k,)``, ddof 1, of at least two ``rows (b, k)``.

    ``torch.std`` is slow: benchmarks/shortcuts.py.
    """
    squares = [(x - middle).square_().sum(dim=0) for x, middle in tiles(rows, mean)]
    return torch.cat(squares).div_(len(rows) - 1).sqrt_()


def direction(
    view: AttackView,
    rows: Rows | FoldedMessages,
    mean: Tensor,
    kind: Literal["std", "sign", "unit"],
) -> Tensor:
    """Return minus the deviation, minus the sign of the mean, or minus the mean over its norm.

    The deviation is that of ``rows (b, k)``, or of the messages whose sums are shown instead. A
    single row has no deviation: ``std`` then falls back to ``sign``, recorded.
    """
    if kind == "std" and len(rows) < 2:
        kind = "sign"
        view.notes["direction"] = kind
    if kind == "std":
        if isinstance(rows, Tensor):
            return -deviation(rows, mean)
        assert view.sums is not None
        return -view.sums.deviation().to(mean)
    if kind == "sign":
        return -mean.sign()
    return -unit(mean)


def unit(x: Tensor) -> Tensor:
    """Return ``x (k,)`` at length 1, or 0 where it is 0."""
    scaled: Tensor = x / torch.linalg.vector_norm(x).clamp_min(1e-30)
    return scaled


class Squares:
    """Squared distances ``(n, n)`` of honest rows and ``m`` copies of ``base + gamma push``.

    ``|base + gamma p - x_i|^2`` is a quadratic in gamma: the rows are read once, whatever the
    number of trials. All of it is float64.
    """

    def __init__(self, honest: Rows, base: Tensor, push: Tensor, m: int) -> None:
        b = len(honest)
        self.gram = torch.zeros(b + 1, b + 1, dtype=torch.float64, device=base.device)
        for tile, middle, line in tiles_of(honest, base, push):
            rows = self.gram.new_empty(b + 1, tile.shape[1])
            rows[:b].copy_(tile).sub_(middle)
            rows[b] = line
            self.gram += rows @ rows.T
        self.m = m
        self.norms = self.gram.diagonal()[:b]
        self.cross = self.gram[:b, b]
        self.length = self.gram[b, b]
        among = self.norms[:, None] + self.norms[None, :] - 2 * self.gram[:b, :b]
        self.among = among.clamp_min_(0).fill_diagonal_(0)

    def __call__(self, gamma: float) -> Tensor:
        """Return them at ``gamma``: honest rows first, then the copies, at 0 from each other."""
        b = len(self.norms)
        out = torch.zeros(b + self.m, b + self.m, dtype=torch.float64, device=self.gram.device)
        out[:b, :b] = self.among
        to_copy = (self.norms - 2 * gamma * self.cross + gamma**2 * self.length).clamp_min_(0)
        out[:b, b:] = to_copy[:, None]
        out[b:, :b] = to_copy[None, :]
        return out

    def moved(self, gamma: float, chosen: Tensor) -> float:
        """Return ``|agg - base|`` of a rule that averages the ``chosen (n,)`` rows."""
        b = len(self.norms)
        share = chosen.to(self.gram) / chosen.sum().clamp_min(1)
        weights = torch.cat([share[:b], gamma * share[b:].sum()[None]])
        return float((weights @ self.gram @ weights).clamp_min(0).sqrt())


@dataclass(frozen=True, eq=False)
class Origin:
    """Rows around which pushes are made, and how a pushed row is sent."""

    name: str  # before those of its pushes
    base: Tensor  # (k,) mean of the honest rows
    std: Tensor  # (k,) their deviation
    size: float  # distance of an honest row from the mean
    send: Callable[[Tensor], Payload]
    gates: int = 0  # so many first coordinates are gates: all open, and never pushed

    @classmethod
    def of(cls, name: str, rows: Tensor, send: Callable[[Tensor], Payload], gates: int = 0) -> Self:
        """Measure the honest rows ``(b, k)``, as if all their gates were open."""
        if gates:
            rows = torch.cat([torch.ones_like(rows[:, :gates]), rows[:, gates:]], dim=1)
        base = rows.mean(dim=0)
        std = deviation(rows, base) if len(rows) > 1 else torch.sign(base)
        distance = float(torch.linalg.vector_norm(rows - base, dim=1).mean())
        size = distance or float(torch.linalg.vector_norm(base)) or 1.0
        return cls(name, base, std, size, send, gates)

    @classmethod
    def wired(cls, view: AttackView, honest: Tensor) -> Self:
        """Measure the messages' own numbers ``honest (b, k)``, to be sent as they are.

        Behind gates an update is pushed (FedDrop); FedSparse's clients also train thresholds.
        """
        gates = view.own.fixed()[0] if isinstance(view.own, GatedVectors) else 0
        gates = gates if gates + view.updates.shape[1] == honest.shape[1] else 0
        return cls.of("wire ", honest.to(torch.float32), sender(view, "wire"), gates)

    def own(self) -> dict[str, Tensor]:
        """Return the directions that follow from the rows alone."""
        mean = self.behind(self.base[self.gates :])
        std = self.behind(self.std[self.gates :])
        return {"minus mean": -mean, "std": std, "minus std": -std}

    def opened(self, directions: dict[str, Tensor | None]) -> dict[str, Tensor]:
        """Return directions ``(k,)`` of the ``(k - gates,)`` along gradients; none without gates.

        Nothing holds a client to the part of the network that it was sent (FedDrop).
        """
        names = ("gradient", "gradient sign", "past gradients") if self.gates else ()
        parts = {name: directions[name] for name in names}
        return {name: self.behind(x) for name, x in parts.items() if x is not None}

    def behind(self, x: Tensor) -> Tensor:
        """Return the direction that pushes what is behind the gates along ``x``."""
        return torch.cat([x.new_zeros(self.gates), x])
