"""Adapters by their text: which part of a network the clients train. No torch is imported."""

from dataclasses import dataclass, replace
from typing import Self

from fedbench.core import registry
from fedbench.core.errors import require

NONE = "none"


@dataclass(frozen=True, kw_only=True)
class LoRA:
    """Low-rank factors of weight matrices, as the text of an adapter describes them.

    Args:
        rank: Rank r of the product of the two factors of a weight. It is one for all layers and not
            capped: above the smaller side of a weight its factors have more numbers than the weight
            itself, all of them trained and sent, and their product has no higher rank.
        alpha: Strength: the product counts ``alpha / rank`` times; by default as large as the rank.
        freeze_a: Whether ``B`` alone is trained, over a frozen random ``A``: the mean of ``B`` over
            clients is then that of the products, too (FFA-LoRA).
    """

    rank: int = 4
    alpha: float | None = None
    freeze_a: bool = False

    def __post_init__(self) -> None:
        require("--adapter lora:rank", self.rank, self.rank >= 1, ">= 1")
        require("--adapter lora:rank", self.rank, self.rank < 1 << 20, "< 2**20")
        good = self.alpha is None or self.alpha > 0
        require("--adapter lora:alpha", self.alpha, good, "> 0")

    @property
    def scale(self) -> float:
        """Factor of the product ``B A`` beside the frozen weight."""
        return 1.0 if self.alpha is None else self.alpha / self.rank

    def written(self) -> Self:
        """Return the same adapter with its alpha written out."""
        return replace(self, alpha=float(self.rank if self.alpha is None else self.alpha))


def parse(text: str) -> LoRA | None:
    """Return the adapter that a text names, None for none; `ConfigError` if there is no such."""
    if text == NONE:
        return None
    name, params = registry.split(text)
    require("--adapter", text, name == "lora", "none or lora, as in lora:rank=4")
    adapter: LoRA = registry.made("adapter", name, LoRA, params)
    return adapter


def written(text: str) -> str:
    """Return the text with every default written out.

    >>> written("lora"), written("lora:rank=8,alpha=16,freeze_a=true")
    ('lora:rank=4,alpha=4.0,freeze_a=false', 'lora:rank=8,alpha=16.0,freeze_a=true')
    """
    adapter = parse(text)
    if adapter is None:
        return NONE
    whole = adapter.written()
    return registry.describe("lora", whole)
