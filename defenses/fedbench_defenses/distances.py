"""Norms, products and combinations of rows, a matrix or packets, and Krum's scores of them."""

import dataclasses
from abc import abstractmethod

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, State
from fedbench.core.copies import copied_to
from fedbench.core.devices import accelerated
from fedbench.core.tiling import finite_rows, tiles
from fedbench.payload import KeptMessages, Payload, Rows, tiles_of


class Geometric(Defense[State]):
    """Rule whose answer is one piece of code for rows and for their packets.

    So it reads rows by functions that take both: those of this file, and `mean.mean_of`.
    """

    @abstractmethod
    def answer(
        self, x: Rows, origin: Tensor, state: State | None, view: ServerView
    ) -> tuple[Tensor, State | None]:
        """Return what `aggregate` returns, from rows and the middle ``(k,)`` of the alphabet."""

    def aggregate(
        self, received: Payload, state: State | None, view: ServerView
    ) -> tuple[Tensor, State | None]:
        return self.answer(received.values(), received.origin(), state, view)

    def aggregate_kept(
        self, received: KeptMessages, state: State | None, view: ServerView
    ) -> tuple[Tensor, State | None]:
        return self.answer(received, received.form.origin(), state, view)


def finite_of(x: Rows) -> Tensor:
    """Return the finite rows, ``(n,)`` bool; a mixed row is one if all that it is made of are."""
    if not isinstance(x, KeptMessages):
        return finite_rows(x)
    return x.finite if x.shares is None else _untouched(x.shares, x.finite)


def _untouched(shares: Tensor, finite: Tensor) -> Tensor:
    """Return which mixed rows ``(m,)`` have no share ``(m, n)`` of a row that is not finite."""
    return ~(shares[:, ~finite] > 0).any(dim=1)


def norms(x: Rows, origin: Tensor) -> Tensor:
    """Return the norms ``(n,)`` float64 of rows about ``origin (k,)``; inf for one not finite."""
    squared = torch.zeros(len(x), dtype=torch.float64, device=origin.device)
    for tile, middle in tiles_of(x, origin):
        squared += (tile.to(torch.float64) - middle.to(torch.float64)).square_().sum(dim=1)
    return squared.nan_to_num_(nan=torch.inf, posinf=torch.inf).sqrt_()


def middle(x: Tensor) -> Tensor:
    """Return the median of ``x (n,)``, with an even ``n`` the mean of the two middle values."""
    return x.sort().values[(len(x) - 1) // 2 : len(x) // 2 + 1].mean()


def smallest(keys: Tensor, count: int, rounding: float = 0.0) -> Tensor:
    """Return shares ``(..., n)`` float64: 1 for the ``count`` smallest keys, 0 for the others.

    Keys that tie for the last places share them. A key ``>= 0`` also ties with the last one if it
    differs by a ``rounding``, relative to that one, at most.

    >>> smallest(torch.tensor([3.0, 1.0, 3.0, 3.0, 4.0, 3.0]), 3).tolist()
    [0.5, 1.0, 0.5, 0.5, 0.0, 0.5]
    """
    last = keys.sort(dim=-1).values[..., count - 1 : count]
    nearer = keys < last * (1 - rounding)
    tied = ~nearer & (keys <= last * (1 + rounding))
    places = count - nearer.sum(dim=-1, keepdim=True)
    return nearer + tied * places / tied.sum(dim=-1, keepdim=True, dtype=torch.float64)


def real_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of real rows that are made of ``x``: float64 of float64, else float32."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def combine(share: Tensor, x: Rows, origin: Tensor | None = None) -> Tensor:
    """Return ``origin + sum_i share_i (x_i - origin)``, summed in float64.

    Rows of share 0 are not read. Without an origin the shares add up to one. Float rows give
    float32, whole numbers float64. Shares may be on the CPU or on the rows' device. Where they are
    all the same, whole numbers are summed exactly: as many votes each way are a tie.
    """
    here = share.cpu()
    chosen = here.nonzero()[:, 0]
    form = x.form.values() if isinstance(x, KeptMessages) else x
    some = x.take(chosen) if isinstance(x, KeptMessages) else x
    largest = float(here.abs().max()) or 1.0
    portion = copied_to(here[chosen] / largest, form.device)
    rows = copied_to(chosen, form.device)
    out = torch.empty(form.shape[1], dtype=torch.float64, device=form.device)
    for tile, part in tiles_of(some, out):
        read = tile if len(tile) == len(rows) else tile[rows]
        part.copy_((portion @ read.to(torch.float64)).mul_(largest))
    if origin is not None:
        out += (1 - float(here.sum())) * origin.to(torch.float64)
    return out.to(form.dtype) if form.is_floating_point() else out


def gram(x: Rows, origin: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the inner products ``(n, n)`` float64 about ``origin``, and which rows are finite.

    The default origin is the row of smallest norm, which no attacker can make larger than a benign
    one: uncentred, rows that differ little cancel; centred on a row that an attacker made huge,
    everything does. In float64 1e30 has a square. A row that is not finite has products 0. Products
    of mixed messages are those of their parts, since shares add up to one.
    """
    if isinstance(x, KeptMessages) and x.shares is not None:
        products, of_parts = gram(dataclasses.replace(x, shares=None), origin)
        within = torch.where(of_parts, x.shares, 0.0)
        finite = _untouched(x.shares, of_parts)
        products = within @ products @ within.T
        products = (products + products.T) / 2  # scores that are equal are so in both directions
        return torch.where(finite[:, None] & finite, products, 0.0), finite
    finite = finite_of(x)
    origin = _nearest(x) if origin is None else origin
    if isinstance(x, KeptMessages):
        products = torch.zeros(len(x), len(x), dtype=torch.float64, device=origin.device)
        for some, middle in x.tiles(origin):
            products += _products(some, middle, finite)
    else:
        products = _products(x, origin, finite)
    return (products + products.T) / 2, finite


def _nearest(x: Rows) -> Tensor:
    """Return the row ``(k,)`` of smallest norm."""
    if not isinstance(x, KeptMessages):
        return x.index_select(0, _shortest(_sizes(x)))[0]
    shortest = _shortest(x.each(_sizes, torch.float64))
    (nearest,) = x.take(shortest.cpu()).parts()
    return nearest.values()[0]


def _sizes(x: Tensor) -> Tensor:
    """Return the norms ``(n,)`` of float rows, and 0 of whole numbers, which cannot be huge."""
    return torch.linalg.vector_norm(x, dim=1) if x.is_floating_point() else x.new_zeros(len(x))


def _shortest(sizes: Tensor) -> Tensor:
    """Return the number ``(1,)`` of the row of smallest norm; NaN counts as infinity."""
    far = sizes.to(torch.float64).nan_to_num(nan=torch.inf, posinf=torch.inf)
    return far.argmin(dim=0, keepdim=True)


def _products(x: Tensor, origin: Tensor, finite: Tensor) -> Tensor:
    """Return the inner products ``(n, n)`` float64 about ``origin (k,)``; 0 of rows not finite."""
    products = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    spoilt = accelerated(x.device) or not bool(finite.all())  # there it would have to wait
    for tile, middle in tiles(x, origin):
        rows = tile.to(torch.float64, copy=True)
        rows -= middle.to(torch.float64)
        if spoilt:
            rows[~finite] = 0
        products += rows @ rows.T
    return products


def inner(x: Rows, origin: Tensor, other: Tensor) -> Tensor:
    """Return the inner products ``(n,)`` of rows with ``other (k,)``, both about the origin."""
    out = torch.zeros(len(x), dtype=torch.float64, device=origin.device)
    for tile, centre, column in tiles_of(x, origin, other):
        middle = centre.to(torch.float64)
        out += (tile.to(torch.float64) - middle) @ (column.to(torch.float64) - middle)
    return out


def cosines(products: Tensor) -> Tensor:
    """Return the cosines ``(n, n)`` of inner products: 0 for a zero row, 1 on the diagonal."""
    norms = products.diagonal().sqrt()
    norms = torch.where(norms > 0, norms, torch.inf)
    cosine = products / norms[:, None] / norms[None, :]
    return ((cosine + cosine.T) / 2).clamp_(-1, 1).fill_diagonal_(1)


def clipped_mean(x: Rows, origin: Tensor, norms: Tensor, chosen: Tensor, limit: Tensor) -> Tensor:
    """Return the mean ``(k,)`` of the chosen rows, each no longer than ``limit``."""
    clip = (limit / norms.clamp_min(1e-300)).clamp_max(1)
    share = torch.where(chosen, clip, 0.0) / chosen.sum().clamp_min(1)
    return combine(share, x, origin)


def squared_distances(x: Rows) -> Tensor:
    """Return the squared distances ``(n, n)`` float64 of rows or messages, 0 on the diagonal.

    A row that is not finite is infinitely far from all others.
    """
    products, finite = gram(x)
    lengths = products.diagonal()
    squared = (lengths[:, None] + lengths[None, :] - 2 * products).clamp_min_(0)
    squared[~finite] = torch.inf
    squared[:, ~finite] = torch.inf
    return squared.fill_diagonal_(0)


def comparable(squared: Tensor) -> Tensor:
    """Return distances with infinity and NaN replaced by more than all finite ones add up to."""
    finite = torch.isfinite(squared)
    far = len(squared) * torch.where(finite, squared, 0.0).max() + 1
    return torch.where(finite, squared, far).fill_diagonal_(0)


def hdbscan(distances: Tensor, smallest: int) -> Tensor:
    """Return the number ``(n,)`` int64 of each row's cluster by HDBSCAN, from 0; -1 of no cluster.

    A cluster has ``smallest`` rows or more, and may have all of them.

    References:
        Campello, Moulavi and Sander, "Density-Based Clustering Based on Hierarchical Density
        Estimates", PAKDD 2013, https://doi.org/10.1007/978-3-642-37456-2_14.
    """
    if len(distances) < smallest:
        return torch.full((len(distances),), -1)
    from sklearn.cluster import HDBSCAN

    clustering = HDBSCAN(  # which would write into its input
        smallest, min_samples=1, allow_single_cluster=True, metric="precomputed", copy=True
    )
    return torch.from_numpy(clustering.fit_predict(distances.numpy()))


def nearest_others(squared: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row's distances, ascending, and whose they are; first its own, as -1."""
    sorted_ = comparable(squared).clone().fill_diagonal_(-1).sort(dim=1)
    return sorted_.values, sorted_.indices


def krum_scores(distances: Tensor, f: int, fewest: int = 1) -> Tensor:
    """Return each row's sum ``(n,)`` over its ``n - f - 2`` nearest others, of `nearest_others`."""
    neighbours = max(len(distances) - f - 2, fewest)
    return distances[:, 1 : neighbours + 1].sum(dim=1)


def krum_order(distances: Tensor, f: int) -> Tensor:
    """Return the row numbers from the lowest score to the highest, given `nearest_others`.

    Among equal scores the row comes first whose distances to all add up to less, then the lower.
    """
    order = distances[:, 1:].sum(dim=1).sort(stable=True).indices  # without the -1
    scores = krum_scores(distances, f)
    return order[scores[order].sort(stable=True).indices]


def krum_best(distances: Tensor, f: int, fewest: int = 1) -> Tensor:
    """Return the first ``(1,)`` row number of `krum_order`, without sorting the others."""
    scores = krum_scores(distances, f, fewest)
    among = torch.where(scores == scores.min(), distances[:, 1:].sum(dim=1), torch.inf)
    return among.argmin(dim=0, keepdim=True)


def krum_picks(squared: Tensor, picks: int, f: int, fewest: int = 1) -> Tensor:
    """Return ``picks`` rows ``(n,)`` bool, each with the best Krum score among those then left."""
    n = len(squared)
    distances, whose = nearest_others(squared)
    left = torch.arange(n, device=squared.device)
    places = left
    for _ in range(picks):  # sorted once: a pick is struck out of others' neighbours
        best = krum_best(distances, f, fewest)
        at = (whose == left.index_select(0, best)).to(torch.uint8).argmax(dim=1)
        places = places[:-1]
        rows = places + (places >= best)  # indices and no mask, for whose size one has to wait
        columns = places + (places >= at.index_select(0, rows)[:, None])
        distances, whose = (x.index_select(0, rows).gather(1, columns) for x in (distances, whose))
        left = left.index_select(0, rows)
    chosen = torch.ones(n, dtype=torch.bool, device=squared.device)
    chosen[left] = False
    return chosen
