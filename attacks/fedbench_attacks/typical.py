"""Rows along a gradient that have what a filter finds typical of honest rows."""

import torch
from torch import Tensor

from .crafted import unit


def typical(gradient: Tensor, honest: Tensor, m: int, model: Tensor | None = None) -> Tensor:
    """Return a row ``(k,)`` with the signs of ``gradient (k,)``, else like ``honest (b, k)``.

    Its sorted magnitudes are the mean of theirs. Among its largest, however many a rule looks at,
    as many as in the mean of theirs have the sign that most rows have there, steep coordinates
    first; among those rows are ``m`` copies of this one. If there is a ``model (k,)``, the row is
    turned to their median cosine with it.

    >>> honest = torch.tensor([[5.0, -4.0, 3.0, 1.0], [5.0, 4.0, -3.0, -1.0], [5.0, 4.0, 3.0, 1.0]])
    >>> typical(torch.tensor([-4.0, -3.0, 2.0, 1.0]), honest, 1).tolist()  # most: + 0 + +
    [-4.0, -3.0, 5.0, 1.0]
    >>> typical(torch.tensor([1.0, 0.0]), torch.ones(1, 2), 1, torch.tensor([0.0, 1.0])).tolist()
    [1.0, 1.0]
    """
    signs = torch.sign(gradient)
    most = torch.sign(torch.sign(honest).sum(dim=0) + m * signs)
    magnitudes, order = honest.abs().sort(dim=1, descending=True, stable=True)
    alike = (torch.sign(honest) == most).gather(1, order)
    wanted = (alike.cumsum(dim=1).sum(dim=0) / len(honest)).floor()
    places = torch.diff(wanted, prepend=wanted.new_zeros(1)) > 0  # of coordinates that agree
    steep = gradient.abs().argsort(descending=True, stable=True)
    agrees = (signs == most)[steep]
    missing = int(agrees.sum()) - int(places.sum())  # the smallest magnitudes make up for it
    if missing > 0:
        places[(~places).nonzero()[-missing:, 0]] = True
    elif missing < 0:
        places[places.nonzero()[missing:, 0]] = False
    sorted_row = magnitudes.mean(dim=0)
    row = torch.zeros_like(sorted_row)
    row[steep[agrees]] = sorted_row[places]
    row[steep[~agrees]] = sorted_row[~places]
    row = row * signs
    if model is None or not bool(model.any()):
        return row
    axis = unit(model.to(row))
    lengths = torch.linalg.vector_norm(honest, dim=1).clamp_min(1e-30)
    cosine = (honest @ axis / lengths).median().clamp(-0.99, 0.99)
    across = row - (row @ axis) * axis
    length = torch.linalg.vector_norm(across)
    turned: Tensor = across + length * cosine / (1 - cosine.square()).sqrt() * axis
    return turned
