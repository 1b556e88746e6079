"""FLDetector, prediction of every client's update from its last one."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedbench.api import Defense, ServerView, Traits
from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.core.tiling import finite_rows
from fedbench.payload import (
    BinaryMasks,
    GatedVectors,
    MixtureVectors,
    Payload,
    PrunedVectors,
    Rankings,
    Residues,
    Spec,
    TopRankings,
)

from .distances import combine

History = dict[str, Any]
DRAWS = 10  # reference samples of the gap statistic, as in the authors' code
_WHY = "predicts updates of the broadcast weights, which its columns are not"
NO_UPDATES: tuple[type[Payload], ...] = (
    *(BinaryMasks, GatedVectors, MixtureVectors, PrunedVectors, Rankings, Residues, TopRankings),
)


def sent_model(name: str, view: ServerView, d: int) -> Tensor:
    """Return the broadcast model ``(d,)``, which a seed may follow, for the defense ``name``.

    `ConfigError` if the broadcast is narrower than the messages.
    """
    model = view.broadcast.values()[0, :d]
    if len(model) < d:
        raise ConfigError(
            f"--defense {name} must have a broadcast that begins with the model, as wide as the "
            f"messages, {d}, got {len(model)}; use a protocol that broadcasts it, such as fedavg"
        )
    return model


def hessian_product(steps: Tensor, changes: Tensor, v: Tensor) -> Tensor:
    """Return ``B v (d,)``, with the L-BFGS approximation ``B`` of the Hessian.

    ``B`` is ``sigma I`` with ``sigma = s y / s s`` of the last pair, updated by all pairs of a step
    ``s`` and a change of the gradient ``y``, the rows of ``steps (p, d)`` and ``changes (p, d)``,
    in the compact form of Byrd, Nocedal and Schnabel (1994), equation 3.5.

    >>> s, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 1.0]])
    >>> hessian_product(s, y, torch.tensor([0.0, 1.0])).tolist()  # B s = y, B = sigma elsewhere
    [1.0, 2.5]
    """
    s, y, v = (x.to(torch.float64) for x in (steps, changes, v))
    sigma = (s[-1] @ y[-1]) / (s[-1] @ s[-1])
    products = s @ y.T
    lower = products.tril(-1)
    diagonal = products.diagonal().diag()
    top = torch.cat([sigma * s @ s.T, lower], dim=1)
    inner = torch.cat([top, torch.cat([lower.T, -diagonal], dim=1)])
    wide = torch.cat([sigma * s, y])
    solved: Tensor = torch.linalg.pinv(inner) @ (wide @ v)
    return sigma * v - wide.T @ solved


def spread(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sum of squares ``(..., n)`` around one mean, around two, and the rows above.

    Two means on a line split the sorted values: all splits are tried. What is above the best of
    them is the third, ``(..., n)`` bool.

    >>> around_one, around_two, above = spread(torch.tensor([1.0, 9.0, 3.0, 7.0]))
    >>> around_one.item(), around_two.item(), above.tolist()
    (40.0, 4.0, [False, True, False, True])
    """
    n = x.shape[-1]
    ordered = x.to(torch.float64).sort(dim=-1).values
    splits = [
        sum((part - part.mean(dim=-1, keepdim=True)).square().sum(dim=-1) for part in parts)
        for parts in (ordered.tensor_split([i], dim=-1) for i in range(1, n))
    ]
    around_two, at = torch.stack(splits).min(dim=0)  # type: ignore[arg-type]
    around_one = (ordered - ordered.mean(dim=-1, keepdim=True)).square().sum(dim=-1)
    return around_one, around_two, x > ordered.gather(-1, at[..., None])


def is_divided(scores: Tensor, key: Key) -> bool:
    """Return whether the gap statistic finds more than one cluster among ``scores (n,)``.

    It does if ``Gap(1) < Gap(2) - s_2``, where ``Gap(k)`` is by how much the logarithm of the sum
    of squares in ``k`` clusters is below its mean for uniform samples on the range of the scores,
    and ``s_2`` the standard deviation of the latter, times ``sqrt(1 + 1 / DRAWS)``. The code of
    FLDetector's authors takes the logarithm of the mean, not the mean of the logarithms.

    References:
        Tibshirani, Walther and Hastie, "Estimating the Number of Clusters in a Data Set via the Gap
        Statistic", Journal of the Royal Statistical Society B 63, 2001, section 4.
    """
    low, high = scores.aminmax()
    if not bool(high > low):
        return False
    around_one, around_two, _ = spread((scores - low) / (high - low))
    uniform_one, uniform_two, _ = spread(key.uniform(DRAWS, len(scores)))
    first_gap = uniform_one.log().mean() - around_one.log()
    second_gap = uniform_two.log().mean() - around_two.log()
    error = uniform_two.log().std(unbiased=False) * (1 + 1 / DRAWS) ** 0.5
    return bool(first_gap < second_gap - error)


@dataclass(frozen=True, kw_only=True)
class FLDetector(Defense[History]):
    """Average the clients whose updates are not farther from what their last ones predict.

    By the mean value theorem ``g_t = g_r + H (w_t - w_r)`` for one client, with its integrated
    Hessian. The server knows the model and one ``H`` for all, the L-BFGS approximation by its last
    ``window`` models and answers. A client's distance from the prediction, divided by the mean of
    the round's distances, averaged over the client's last ``window`` ones, is its score. If the gap
    statistic finds more than one cluster of scores, the upper one of two is removed for good.
    Others are averaged by size; with nobody left the answer is the alphabet's middle.

    Deviations. The paper's clients take part in all rounds, and ``r`` is ``t - 1``; here ``r`` is
    the last round of the client, and a client has a score after ``window`` distances, ``window +
    2`` rounds at least. Scores are looked at while most clients have one. The paper then starts the
    training anew without those who are removed; here the model stays, and all scores begin anew.
    Distances are divided by their mean, not their sum, which depends on how many take part. Two
    means on a line are exact, not iterated. Updates stand for gradients, whose sign does not
    matter. Who is not finite is left out of the round. The paper's text was not at hand, but
    descriptions of it and the authors' code were.

    Args:
        window: Number of models that approximate the Hessian, and of distances in a score; ``N``.

    References:
        Zhang, Cao, Jia and Gong, "FLDetector: Defending Federated Learning Against Model Poisoning
        Attacks via Detecting Malicious Clients", KDD 2022, https://arxiv.org/abs/2207.09209; code:
        https://github.com/zaixizhang/FLDetector.
    """

    without: ClassVar[dict[type[Payload], str]] = dict.fromkeys(NO_UPDATES, _WHY)
    window: int = 10

    def __post_init__(self) -> None:
        require("FLDetector.window", self.window, 1 <= self.window <= 1000, "in [1, 1000]")

    def traits(self) -> Traits:
        return Traits(broadcast=True, identities=True, history=True, detects=True, randomized=True)

    def init(self, spec: Spec) -> History:
        return {
            **{"model": None, "answer": None, "steps": [], "changes": []},
            **{"rows": {}, "models": {}, "distances": {}, "removed": []},
        }

    def tolerates(self, n: int) -> int:
        return 0  # nobody is left out before there are scores

    def aggregate(
        self, received: Payload, state: History | None, view: ServerView
    ) -> tuple[Tensor, History]:
        past = self.init({}) if state is None else state
        x = received.values()
        model = sent_model("fldetector", view, x.shape[1])
        ids = view.ids.tolist()
        finite = finite_rows(x).cpu()
        trusted = torch.tensor([i not in past["removed"] for i in ids])
        candidates = (finite & trusted).nonzero()[:, 0].tolist()
        returning = {ids[row]: x[row] for row in candidates if ids[row] in past["rows"]}
        far = _far(past, returning, model)
        distances = {i: [*past["distances"].get(i, []), far[i]][-self.window :] for i in far}
        distances = past["distances"] | distances
        detected = self._detected(distances, view.key.fold("fldetector"))
        averaged = finite & trusted & torch.tensor([i not in detected for i in ids])
        view.findings.kept = averaged
        view.findings.notes["removed"] = len(past["removed"]) + len(detected)
        if not bool(averaged.any()):
            view.findings.notes["fell_back"] = "nobody is left"
        weights = torch.where(averaged, view.weights, 0.0).to(x.device)
        out = combine(weights / weights.sum().clamp_min(1e-300), x, received.origin())
        rows = {i: x[row].clone() for row, i in enumerate(ids) if bool(averaged[row])}
        return out, self._next(past, out, model, rows, detected, {} if detected else distances)

    def _detected(self, distances: dict[int, list[float]], key: Key) -> list[int]:
        """Return the clients with the higher scores, if most have one and these are divided."""
        scores = {i: sum(d) / len(d) for i, d in distances.items() if len(d) == self.window}
        if len(scores) < 3 or 2 * len(scores) <= len(distances):
            return []
        values = torch.tensor(list(scores.values()), dtype=torch.float64)
        if not is_divided(values, key):
            return []
        above = spread(values)[2].tolist()
        return [i for i, high in zip(scores, above, strict=True) if high]

    def _next(
        self,
        past: History,
        answer: Tensor,
        model: Tensor,
        rows: dict[int, Tensor],
        detected: list[int],
        distances: dict[int, list[float]],
    ) -> History:
        """Return what is remembered: of those who are ``detected`` nothing but their number."""
        steps = past["steps"]
        changes = past["changes"]
        if past["model"] is not None and bool((model != past["model"]).any()):
            step = model - past["model"]
            change = (answer - past["answer"]).to(model)
            if bool(torch.isfinite(step).all() & torch.isfinite(change).all()):  # else it diverged
                steps = [*steps, step][-self.window :]
                changes = [*changes, change][-self.window :]
        stay = {i: past["rows"][i] for i in past["rows"] if i not in detected}
        models = {i: past["models"][i] for i in stay} | dict.fromkeys(rows, model)
        return {
            **{"model": model, "answer": answer, "steps": steps, "changes": changes},
            **{"rows": stay | rows, "models": models},
            **{"distances": distances, "removed": [*past["removed"], *detected]},
        }


def _far(past: History, rows: dict[int, Tensor], model: Tensor) -> dict[int, float]:
    """Return how far each client's row is from its prediction, in means of this round."""
    if not past["steps"] or not rows:
        return {}
    steps = torch.stack(past["steps"])
    changes = torch.stack(past["changes"])
    products: dict[int, Tensor] = {}  # of the models of several clients' last rounds
    far = {}
    for i, row in rows.items():
        last = past["models"][i]
        if id(last) not in products:
            products[id(last)] = hessian_product(steps, changes, model - last)
        predicted = past["rows"][i] + products[id(last)]
        far[i] = float(torch.linalg.vector_norm(row - predicted))
    mean = sum(far.values()) / len(far)
    return {i: distance / mean if mean > 0 else 1.0 for i, distance in far.items()}
