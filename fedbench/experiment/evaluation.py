"""Evaluation of deployed models on test data."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import hooks
from fedbench.core.trees import Tree
from fedbench.data.datasets import Data
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.models.network import Network, is_weight
from fedbench.payload import Payload

_BATCH = 1024


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Accuracy and loss on pooled samples, and the accuracy of each part.

    Args:
        accuracy: Share of correct answers over all samples.
        loss: Mean cross-entropy in nats; None if the model is not finite.
        parts: ``(len(parts),)`` float64 share of correct answers in each part.
        sparsity: Share of the weights that are exactly 0.
        success: Of a backdoor, see `share_taken_for`; None without one.
    """

    accuracy: float
    loss: float | None
    parts: Tensor
    sparsity: float
    success: float | None = None


def evaluate(setup: Setup, server: Any, step: int) -> Evaluation:
    """Score what is deployed after this round on the test parts of the benign clients."""
    population = setup.population
    model = deployed(setup, server, step)
    benign = population.of_benign(population.test)
    score = score_model(setup.shared.network, model, population.data, benign)
    success = backdoor_success(setup, model, torch.cat(benign))
    return dataclasses.replace(score, success=success)


def validation_accuracy(setup: Setup, server: Any) -> float:
    """Accuracy of what is deployed in the end on the validation parts of the benign clients."""
    population = setup.population
    model = deployed(setup, server, setup.scenario.rounds - 1)
    benign = population.of_benign(population.validation)
    return score_model(setup.shared.network, model, population.data, benign).accuracy


def is_evaluated(scenario: Scenario, step: int) -> bool:
    """True for the rounds that read test data; the last one is always among them."""
    return (step + 1) % scenario.eval_every == 0 or step + 1 == scenario.rounds


def deployed(setup: Setup, server: Any, step: int) -> Tree | list[Tree]:
    """Return the model, or the ensemble, that the protocol makes of its state after this round."""
    shared = setup.shared
    key = setup.secret.key("model", step)
    model: Tree | list[Tree] = hooks.model(
        setup.plugins.protocol, shared.network.shapes, shared, server, key
    )
    return model


def backdoor_success(setup: Setup, model: Tree | list[Tree], rows: Tensor) -> float | None:
    """Share of these samples on which a backdoor works; None if the attack is none.

    Raises:
        PluginError: the attack's trigger is none, see `fedbench.api.hooks.trigger`.
    """
    data = setup.population.data
    x = data.floats(rows)
    triggered = hooks.trigger(setup.plugins.attack, x, data.y[rows], data.classes)
    return None if triggered is None else share_taken_for(setup.shared.network, model, *triggered)


def local_accuracies(
    setup: Setup,
    earlier: Mapping[int, float],
    ids: Sequence[int],
    broadcast: Payload,
    honest: Payload,
) -> dict[int, float]:
    """Measure the accuracy of each benign client's last message on the client's own test part.

    The honest message alone, before compression's other end averages it, is the client's model; its
    test part never changes, so a client is evaluated again only when it sends again.
    """
    accuracies = dict(earlier)
    population = setup.population
    for row, i in enumerate(ids if setup.scenario.local_models else ()):
        if population.malicious[i]:
            continue
        down = broadcast.take([row % len(broadcast)])
        model = hooks.ask(
            setup.plugins.protocol,
            "local_model",
            (dict, type(None)),
            setup.shared,
            down,
            honest.take([row]),
        )
        if model is not None:
            score = score_model(setup.shared.network, model, population.data, [population.test[i]])
            accuracies[i] = score.accuracy
    return accuracies


def score_model(
    network: Network, model: Tree | list[Tree], data: Data, parts: Sequence[Tensor]
) -> Evaluation:
    """Score a model, or an ensemble by its mean probability, on the samples of ``parts``.

    Scores that are not finite count as a wrong answer: argmax would call them class 0.
    """
    ensemble = [model] if isinstance(model, dict) else model
    rows = torch.cat(list(parts))
    right, losses = [], []
    with torch.no_grad():
        for batch in torch.split(rows, _BATCH):
            x = data.floats(batch)
            y = data.y[batch]
            chances = torch.stack([network.logits(m, x).softmax(dim=1) for m in ensemble])
            mean = chances.mean(dim=0)
            right.append((mean.argmax(dim=1) == y) & torch.isfinite(mean).all(dim=1))
            losses.append(-mean.gather(1, y[:, None])[:, 0].clamp_min(1e-30).log())
    correct = torch.cat(right).to(torch.float64)
    loss = torch.cat(losses)
    shares = [part.mean() for part in torch.split(correct, [len(part) for part in parts])]
    mean_loss = float(loss.mean())
    finite = mean_loss if math.isfinite(mean_loss) else None
    return Evaluation(float(correct.mean()), finite, torch.stack(shares).cpu(), sparsity(ensemble))


def share_taken_for(
    network: Network, model: Tree | list[Tree], x: Tensor, label: int
) -> float | None:
    """Share of the images ``x (N, C, H, W)`` that are taken for ``label``; None without an image.

    Scores that are not finite are taken for nothing.
    """
    ensemble = [model] if isinstance(model, dict) else model
    taken = 0
    with torch.no_grad():
        for batch in torch.split(x, _BATCH):
            chances = torch.stack([network.logits(m, batch).softmax(dim=1) for m in ensemble])
            mean = chances.mean(dim=0)
            hits = (mean.argmax(dim=1) == label) & torch.isfinite(mean).all(dim=1)
            taken += int(hits.sum())
    return taken / len(x) if len(x) else None


def sparsity(ensemble: Sequence[Tree]) -> float:
    """Share of the weights that are exactly 0; biases and normalisation do not count.

    >>> sparsity([{"conv1": torch.tensor([[0.0, 2.0]]), "conv1.bias": torch.zeros(5)}])
    0.5
    """
    weights = [x for model in ensemble for name, x in model.items() if is_weight(name)]
    return sum(int((x == 0).sum()) for x in weights) / sum(x.numel() for x in weights)
