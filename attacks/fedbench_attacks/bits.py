"""Bits as votes: masks and signs that colluders choose bit by bit, or by probabilities."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from fedbench.api import Attack, AttackView, Choices, Knowledge
from fedbench.core.devices import accelerated
from fedbench.core.errors import require
from fedbench.core.order_statistics import largest
from fedbench.payload import BinaryMasks, NoiseMasks, Payload, SignBits, bits_of, with_bits

from .alie import against, largest_z
from .crafted import Reader, messages_read


def ones_of(view: AttackView, knows: Literal["colluders", "all"]) -> tuple[Tensor, int]:
    """Return how many of the messages read, its own if none, say 1, ``(d,)``, and their number."""
    view.notes["benign"] = messages_read(view, knows)
    return ones_among(view, view.seen if len(view.seen) else view.own)


def ones_among(view: AttackView, messages: Payload) -> tuple[Tensor, int]:
    """Return how many of these ``messages``, or those behind its sums, say 1, and their number."""
    if view.sums is not None and len(view.sums):  # none where floats beside all bits are NaN
        return view.sums.ones().long(), len(view.sums)
    read = bits_of(messages)
    return read.sum(dim=0), len(read)


def odds(p: Tensor) -> Tensor:
    """Return ``p / (1 - p)`` of probabilities."""
    return p / (1 - p)


def drawn_odds(u: Tensor) -> Tensor:
    """Return ``u / (1 - u)`` of draws of `Key.uniform`, written over them.

    The draws are moved to the middle between two of them, so that no odds are 0 or infinite.
    """
    rest = (1 - u).sub_(2.0**-25)
    return u.add_(2.0**-25).div_(rest)


@dataclass(frozen=True, kw_only=True)
class Complement(Attack):
    """Every colluder sends ``1 - b`` with the bits b of its own message, or of their majority.

    The majority is 1 where more than half of the colluders' honest bits are, so a tie is sent as 1.
    Floats, seeds and scales stay honest. Bits over noise of different seeds do not vote for the
    same thing: those are complemented one by one, recorded.

    Args:
        of: ``own``: each complements its own bits; ``majority``: all send the same bits.

    References:
        None: proposed here. The idea is the sign flip, for bits.
    """

    accepts = (BinaryMasks, NoiseMasks, SignBits)
    choices: ClassVar[Choices] = {"of": ("own",)}

    of: Literal["own", "majority"] = "majority"

    def needs(self) -> Knowledge:
        return Knowledge("own" if self.of == "own" else "colluders")

    @property
    def folds(self) -> bool:
        return True

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        own = bits_of(view.own)
        majority = self.of == "majority" and not isinstance(view.own, NoiseMasks)
        view.notes["of"] = "majority" if majority else "own"
        if not majority:
            return with_bits(view.own, ~own), memory
        ones, rows = ones_among(view, view.own)
        return with_bits(view.own, 2 * ones <= rows), memory


@dataclass(frozen=True, kw_only=True)
class Saturation(Attack):
    """Every malicious client sends all ones, all zeros, or ones where its own message has none.

    ``disjoint``: ``round(density * d)`` ones, drawn first from the zeros of the own bits and, only
    if these run out, from its ones, so that they overlap least. Floats and seeds stay honest.

    Args:
        kind: ``ones``, ``zeros`` or ``disjoint``.
        density: Share of ones of ``disjoint``; None: as many as the own message.

    References:
        None: proposed here. The idea is that a mask's density is the client's to choose.
    """

    accepts = (BinaryMasks, NoiseMasks, SignBits)
    choices: ClassVar[Choices] = {"kind": ("zeros", "disjoint")}

    kind: Literal["ones", "zeros", "disjoint"] = "ones"
    density: float | None = None

    def __post_init__(self) -> None:
        legal = self.density is None or 0 <= self.density <= 1
        require("Saturation.density", self.density, legal, "None or in [0, 1]")

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        own = bits_of(view.own)
        if self.kind != "disjoint":
            return with_bits(view.own, torch.full_like(own, self.kind == "ones")), memory
        d = own.shape[1]
        chosen = torch.empty_like(own)
        for row, bits in enumerate(own):
            order = view.key.fold("disjoint", row).uniform(d, device=own.device)
            ones = int(bits.sum()) if self.density is None else round(self.density * d)
            chosen[row] = largest((order - bits.float())[None], ones)[0]
        return with_bits(view.own, chosen), memory


@dataclass(frozen=True, kw_only=True)
class Pinning(Reader):
    """Colluders send the complement of the majority that they saw first in this reset period.

    A Beta posterior counts the masks of all rounds since its last reset (FedPM's equations 3 and
    4): the same mask in all of them adds to one side of every weight. The majority is 1 where more
    than half of the masks read are, so a tie is sent as 1. Rounds ``0, period, 2 period, ...``
    start afresh, as with FedPM's ``resets=every:period`` while no round is skipped.

    Args:
        period: Number of rounds between resets.

    References:
        None: proposed here. The idea is that a posterior that accumulates rewards persistence.
    """

    accepts = (BinaryMasks,)
    choices: ClassVar[Choices] = {"period": (2, 5)}

    period: int = 1
    knows: Literal["colluders", "all"] = "all"

    def __post_init__(self) -> None:
        require("Pinning.period", self.period, self.period >= 1, ">= 1")

    @property
    def folds(self) -> bool:
        return True

    def look(self, view: AttackView, memory: Any) -> tuple[Tensor, Any]:
        """Return the mask ``(d,)`` bool that is pinned in this period."""
        now = view.step // self.period
        view.notes["pinned"] = memory is None or memory[0] != now
        if view.notes["pinned"]:
            counts, b = ones_of(view, self.knows)
            memory = (now, 2 * counts <= b)
        return memory[1], memory

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        mask = view.looked
        if mask is None:
            mask, memory = self.look(view, memory)
        return with_bits(view.own, mask), memory


TIES = {"stays": 0, "up": 1, "down": -1}


def decided(ones: Tensor, rows: int, tie: int) -> Tensor:
    """Return the decision ``(d,)`` in -1, 0, 1 of ``ones`` among ``rows`` votes, or the tie."""
    sign = torch.sign(2 * ones - rows)
    return torch.where(sign == 0, tie, sign)


@dataclass(frozen=True, kw_only=True)
class Margin(Reader):
    """All colluders vote against the benign majority wherever that changes its decision.

    With S ones among b benign votes, a count decides ``sign(2 S - b)``, and with c ones among m
    colluders ``sign(2 (S + c) - (b + m))``. That grows with c, so if any c changes the decision,
    c = 0 or c = m does, and coordinates do not constrain each other: no choice of the m d bits
    changes more decisions than all against the benign decision where that is enough. Elsewhere
    colluders send what the benign clients decided, and cannot be told from them.

    Where the server decides nothing (FedPM, the mean of signs), ``rest=against`` moves it furthest
    in every norm. A cut at a rank, as in `TopKMask`, is not a count. Floats stay honest.

    Args:
        tie: Decision of as many ones as zeros: the coordinate ``stays`` (signs by default), is 1
            (``up``) or 0 (``down``, masks by default, which keep what is strictly above 1/2). A
            server that throws a coin is best met by ``stays``.
        rest: Where no choice changes anything: ``honest``, or ``against`` all the same.
        knows: Whose messages stand for the benign ones: those of ``all`` benign clients, which the
            optimum needs, or those of the ``colluders`` as if honest, taken for a sample of them.

    References:
        None: proposed here. The idea is DYN-OPT for votes: spend them where they decide.
    """

    accepts = (BinaryMasks, SignBits)
    choices: ClassVar[Choices] = {"rest": ("against",)}

    tie: Literal["alphabet", "stays", "up", "down"] = "alphabet"
    rest: Literal["honest", "against"] = "honest"
    knows: Literal["colluders", "all"] = "all"

    @property
    def folds(self) -> bool:
        return True

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        m = view.m
        counts, b = ones_of(view, self.knows)
        if self.knows == "colluders" and view.n > m:
            counts = (counts * (view.n - m) / b).round().long()
            b = view.n - m
        usual = "stays" if isinstance(view.own, SignBits) else "down"
        tie = TIES[usual if self.tie == "alphabet" else self.tie]
        honest = decided(counts, b, tie)
        against = honest <= 0  # also where a tie stays: there any unanimous vote decides
        changes = decided(counts + m * against, b + m, tie) != honest
        view.notes["overturned"] = int(changes.sum())
        bits = against if self.rest == "against" else torch.where(changes, against, ~against)
        return with_bits(view.own, bits), memory


class MaskVotes(Reader):
    """Colluders send bits that follow a changed share of ones.

    ``theta (d,)`` is the share of the messages read whose bit is 1, float64. Floats stay honest.

    Args:
        how: ``sample``: each colluder draws its own bits; ``threshold``: all the most probable.
        density: ``benign``: as many ones as the messages read, their mean rounded, over the whole
            message (a mask does not say where a layer ends); ``free``: what the probabilities give.
    """

    accepts = (BinaryMasks, SignBits)

    how: Literal["sample", "threshold"]
    density: Literal["benign", "free"]

    def changed(self, view: AttackView, theta: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Return the probabilities ``(d,)`` of a 1 that the colluders follow, and the memory."""
        raise NotImplementedError

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        """Draw or threshold the changed probabilities.

        With ``density=benign`` exactly so many bits are 1: the most probable ones, equals in an
        order of the adversary's key, or a sample of that size, those with the largest ``theta / (1
        - theta) * u / (1 - u)``, u uniform (Pareto sampling: Rosen, Journal of Statistical Planning
        and Inference 62, 1997); a Bernoulli sample is where that is above 1.
        """
        counts, b = ones_of(view, self.knows)
        theta, memory = self.changed(view, counts.double() / b, memory)
        ones = round(float(counts.sum()) / b)
        rows = len(view.own)
        key = view.key.fold("mask")
        skip = view.first * len(theta)
        if self.density == "free" and self.how == "threshold":
            bits = theta[None] > 0.5
        elif self.density == "free":
            bits = key.uniform(rows, len(theta), device=theta.device, skip=skip) < theta
        elif self.how == "threshold":
            tie = key.uniform(len(theta), device=theta.device)
            bits = largest((theta + 1e-6 * tie)[None], ones)
        else:
            uniform = key.uniform(rows, len(theta), device=theta.device, skip=skip)
            # The clip keeps certain bits certain: the odds of 24-bit draws reach 2^25 only.
            wanted = odds(theta.clamp(1e-16, 1 - 1e-16)).float()
            at_once = rows if accelerated(theta.device) else 1  # a row's numbers stay in cache
            drawn = (drawn_odds(u).mul_(wanted) for u in torch.split(uniform, at_once))
            bits = torch.cat([largest(ranked, ones) for ranked in drawn])
        return with_bits(view.own, bits), memory


@dataclass(frozen=True, kw_only=True)
class MaskALIE(MaskVotes):
    """Colluders send bits of ``clip(theta - z sigma, 0, 1)`` or ``clip(theta + z sigma, 0, 1)``.

    ``theta`` is the share of the messages read whose bit is 1, ``sigma = sqrt(theta (1 - theta))``
    their deviation (ddof 0, as a Bernoulli variable's). With ``density=benign`` only the order of
    these probabilities counts: bits that the clients agree upon stay, others are traded.

    Args:
        z: Deviations; None: the paper's formula, see `alie.largest_z`, without its sign, or with
            ``side=minus`` 0 where that is negative: 0 for 2 of 10.
        side: ``worse``: the side against what the adversary's own clients learned, see
            `alie.against`, in the first round in which the messages differ, kept from then on;
            ``minus``: below ``theta``.

    References:
        None: proposed here. The idea is ALIE (Baruch, Baruch and Goldberg, "A Little Is Enough",
        NeurIPS 2019, https://arxiv.org/abs/1902.06156) in the space of probabilities.
    """

    choices: ClassVar[Choices] = {
        "z": (None, 0.5, 1.0, 3.0),
        "how": ("threshold",),
        "density": ("free",),
    }

    z: float | None = 1.5
    how: Literal["sample", "threshold"] = "sample"
    density: Literal["benign", "free"] = "benign"
    knows: Literal["colluders", "all"] = "all"
    side: Literal["worse", "minus"] = "worse"

    @property
    def folds(self) -> bool:
        return True

    @property
    def reads_updates(self) -> bool:
        return self.side == "worse"

    def __post_init__(self) -> None:
        require("MaskALIE.z", self.z, self.z is None or self.z >= 0, "None or >= 0")

    def changed(self, view: AttackView, theta: Tensor, memory: Any) -> tuple[Tensor, Any]:
        z = largest_z(view.n, view.m) if self.z is None else self.z
        z = abs(z) if self.side == "worse" else max(0.0, z)
        view.notes["z"] = z
        sigma = (theta * (1 - theta)).sqrt_()
        side = view.looked
        if side is None:
            side, memory = self.chosen(view, sigma, memory)
        return (theta - side * z * sigma).clamp_(0, 1), memory

    def look(self, view: AttackView, memory: Any) -> tuple[Tensor, Any]:
        """Return the side: 1 for minus, -1 for plus."""
        counts, b = ones_of(view, self.knows)
        theta = counts.double() / b
        return self.chosen(view, (theta * (1 - theta)).sqrt_(), memory)

    def chosen(self, view: AttackView, sigma: Tensor, memory: Any) -> tuple[Tensor, Any]:
        """Return the side of these deviations ``(d,)``, as `look` does."""
        if self.side == "worse" and bool(sigma.any()):
            push = sigma.new_zeros(view.own.values().shape[1])  # floats stay where they are
            push[: len(sigma)] = -sigma
            memory = memory or against(view, push)
            view.notes["side"] = "minus" if memory == 1 else "plus"
            return sigma.new_tensor(memory), memory
        return sigma.new_ones(()), memory


@dataclass(frozen=True, kw_only=True)
class MaskIPM(MaskVotes):
    """Colluders send bits of ``theta_m = clip(1/2 - eps (theta - 1/2), 0, 1)``.

    ``theta`` is the share of the messages read whose bit is 1, so at ``eps = 1`` that is
    ``1 - theta``: probabilities mirror at 1/2, where sending the negative mean has no meaning.

    Args:
        eps: Distance from 1/2, on the other side, in distances of the messages read.

    References:
        None: proposed here. The idea is inner-product manipulation (Xie, Koyejo and Gupta, "Fall
        of Empires", UAI 2019, https://arxiv.org/abs/1903.03936) in the space of probabilities.
    """

    choices: ClassVar[Choices] = {"eps": (0.3, 3.0), "how": ("threshold",), "density": ("free",)}

    eps: float = 1.0
    how: Literal["sample", "threshold"] = "sample"
    density: Literal["benign", "free"] = "benign"
    knows: Literal["colluders", "all"] = "all"

    @property
    def folds(self) -> bool:
        return True

    def __post_init__(self) -> None:
        require("MaskIPM.eps", self.eps, self.eps > 0, "> 0")

    def changed(self, view: AttackView, theta: Tensor, memory: Any) -> tuple[Tensor, Any]:
        return (0.5 - self.eps * (theta - 0.5)).clamp_(0, 1), memory
