"""FLTrust, trust by the angle to the server's own message."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedbench.api import ServerView, Traits
from fedbench.payload import Rows

from .distances import Geometric, combine, inner, norms


@dataclass(frozen=True, kw_only=True)
class FLTrust(Geometric[None]):
    """Average rows weighted by trust ``TS_i = max(cos(g_i, g_0), 0)``, each as long as ``g_0``.

    That is ``sum_i TS_i (|g_0| / |g_i|) g_i / sum_i TS_i``, where ``g_i`` are the rows and ``g_0``
    the server's own message, from its root data, all measured from the middle of the alphabet,
    which is added back: zero for floats and signs, 1/2 for bits. Ignores the clients' sizes, as the
    paper does.

    Where no row is trusted the paper's sum is empty. The answer is then the server's own message,
    legal in every alphabet, and `findings` say so.

    References:
        Cao et al., "FLTrust: Byzantine-robust Federated Learning via Trust Bootstrapping", NDSS
        2021, https://arxiv.org/abs/2012.13995, Algorithm 2.
    """

    pairs: ClassVar[bool] = False

    def traits(self) -> Traits:
        return Traits(root=True, detects=True, shift=False, scale=False, sharp=False)

    def tolerates(self, n: int) -> int:
        return n - 1  # no row counts for more than the length of the server's message

    def answer(self, x: Rows, origin: Tensor, state: None, view: ServerView) -> tuple[Tensor, None]:
        assert view.root is not None
        root = view.root.values()
        lengths, own = norms(x, origin), norms(root, origin)
        angled = torch.isfinite(lengths) & (lengths > 0) & (own > 0)
        cosine = inner(x, origin, root[0]) / (lengths * own)
        trust = torch.where(angled, cosine, 0.0).clamp_min_(0)
        trusted = trust > 0
        view.findings.kept = trusted.cpu()
        if not bool(trusted.any()):
            view.findings.notes["fell_back"] = "no trust"
            return combine(torch.ones(1, dtype=torch.float64), root), None
        share = torch.where(trusted, trust * own / lengths, 0.0) / trust.sum()
        return combine(share, x, origin), None
