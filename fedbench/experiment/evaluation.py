"""Evaluation of deployed models on test data."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedbench.api import Deployed, hooks
from fedbench.core.blame import Hook
from fedbench.core.trees import Tree
from fedbench.data.datasets import Data
from fedbench.experiment.deployed import DeployedModel
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.models.network import Network, laid_out
from fedbench.payload import Payload

_BATCH = 1024


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Accuracy and loss on pooled samples, and the accuracy of each part."""

    accuracy: float  # share of correct answers over all samples
    loss: float | None  # mean cross-entropy in nats; None if the model is not finite
    parts: Tensor  # ``(parts,)`` float64 share of correct answers in each part
    sparsity: float
    success: float | None = None  # of a backdoor, see `share_taken_for`


@dataclass(frozen=True, eq=False)
class Models:
    """Deployed model for all images, or another draw of it for every few images."""

    draw: Callable[[int], Deployed]  # of the number of a batch, from 0
    size: int = _BATCH  # images that one draw answers

    def batches(self, images: int) -> Iterator[tuple[slice, Deployed]]:
        """Yield the rows of each batch of so many images, and the model that answers them."""
        for number, start in enumerate(range(0, images, self.size)):
            yield slice(start, start + self.size), self.draw(number)


def fixed(model: Deployed) -> Models:
    """Return what answers all images with one model."""
    return Models(lambda _: model)


def models(setup: Setup, server: Any, step: int) -> Models:
    """Return what the protocol deploys after this round; the server's state is `settled`."""
    hook = Hook(setup.plugins.protocol, "redraws", step)
    size: int | None = hook.returned((int, type(None)))
    hook.must(size is None or size > 0, "None or a number of images", size)
    if size is None:
        return fixed(deployed(setup, server, step))
    return Models(lambda batch: deployed(setup, server, step, batch), size)


def evaluate(setup: Setup, server: Any, step: int, learned: Tensor | None = None) -> Evaluation:
    """Score what is deployed after this round on the samples that test (`Population.judged`).

    ``learned`` is what the adversary's clients have learned of a trigger (`Attack.learn`).
    """
    population = setup.population
    answering = models(setup, settled(setup, server, step), step)
    parts = population.judged
    own = population.own_tests
    score = score_models(setup.shared.network, answering, population.data, parts, own)
    success = backdoor_success(setup, answering, torch.cat(parts), learned)
    return dataclasses.replace(score, success=success)


def validation_accuracy(setup: Setup, server: Any) -> float | None:
    """Return the final model's accuracy on the validation parts of the benign clients.

    None if they have no validation samples. The server's state is `settled`.
    """
    population = setup.population
    benign = population.validating
    if not any(len(part) for part in benign):
        return None
    answering = models(setup, server, setup.scenario.rounds - 1)
    return score_models(setup.shared.network, answering, population.data, benign).accuracy


def is_evaluated(scenario: Scenario, step: int) -> bool:
    """Return True for the rounds that read test data; the last one is always among them."""
    return (step + 1) % scenario.eval_every == 0 or step + 1 == scenario.rounds


def settled(setup: Setup, server: Any, step: int) -> Any:
    """Return the server's state with what the protocol chooses on validation data, if it does."""
    if not setup.plugins.protocol.validates:
        return server
    population = setup.population
    benign = population.validating

    def accuracy(model: Deployed) -> float:
        network = setup.shared.network
        return score_models(network, fixed(model), population.data, benign).accuracy

    return Hook(setup.plugins.protocol, "settle", step).returned(
        object, setup.shared, server, accuracy
    )


def deployed(setup: Setup, server: Any, step: int, batch: int = 0) -> Deployed:
    """Return the model, or the ensemble, that the protocol makes of its state after this round.

    Where it is drawn anew for every batch of images, the number of the ``batch`` says which.
    """
    shapes = setup.shared.network.shapes
    key = setup.secret.key("model", step, *([batch] if batch else []))
    model: Deployed = hooks.model(setup.plugins.protocol, shapes, setup.shared, server, key)
    return model


def final_model(setup: Setup, server: Any) -> DeployedModel:
    """Return what is deployed after the last round; the first draw where there are several."""
    last = setup.scenario.rounds - 1
    model = deployed(setup, settled(setup, server, last), last)
    return DeployedModel(setup.shared.network, tuple(_ensemble(model)))


def backdoor_success(
    setup: Setup, answering: Models, rows: Tensor, learned: Tensor | None = None
) -> float | None:
    """Return the share of samples on which a backdoor works (`hooks.trigger`); None without one."""
    data = setup.population.data
    x = data.floats(rows)
    triggered = hooks.trigger(setup.plugins.attack, x, data.y[rows], data.classes, learned)
    network = setup.shared.network
    return None if triggered is None else share_taken_for(network, answering, *triggered)


def local_accuracies(
    setup: Setup,
    earlier: Mapping[int, float],
    ids: Sequence[int],
    broadcast: Payload,
    honest: Payload,
) -> dict[int, float]:
    """Measure the accuracy of each benign client's last message on the client's own test part.

    That part never changes, so a client is evaluated again only when it sends again.
    """
    accuracies = dict(earlier)
    population = setup.population
    malicious = population.malicious[ids].tolist()
    for row, i in enumerate(ids if setup.scenario.local_models else ()):
        if malicious[row]:
            continue
        received = broadcast.take([row % len(broadcast)])
        sent = honest.take([row])
        hook = Hook(setup.plugins.protocol, "local_model")
        model = hook.returned((dict, type(None)), setup.shared, received, sent)
        if model is not None:
            part = [population.test[i]]
            score = score_models(setup.shared.network, fixed(model), population.data, part)
            accuracies[i] = score.accuracy
    return accuracies


def score_models(
    network: Network,
    answering: Models,
    data: Data,
    parts: Sequence[Tensor],
    own: Sequence[Tensor] | None = None,
) -> Evaluation:
    """Score models, or ensembles by their mean probability, on the samples of ``parts``.

    Answers count as `taken_for` says. The sparsity is that of the first model. The shares of
    correct answers are those of the parts, or of ``own`` ones, whose samples are among theirs.
    """
    right: list[Tensor] = []
    losses: list[Tensor] = []
    zeros = 0.0
    pool = torch.cat(list(parts))
    for rows, model in answering.batches(len(pool)):
        batch = pool[rows]
        y = data.y[batch]
        hits, mean = taken_for(network, model, data.floats(batch), y)
        zeros = zeros if right else sparsity(network, _ensemble(model))
        right.append(hits)
        losses.append(-mean.gather(1, y[:, None])[:, 0].clamp_min(1e-30).log())
    correct = torch.cat(right)
    loss = torch.cat(losses)
    if own is None:
        shares = [part.mean() for part in torch.split(correct, [len(part) for part in parts])]
    else:
        answers = correct.new_zeros(len(data))
        answers[pool] = correct
        shares = [answers[part].mean() for part in own]
    mean_loss = float(loss.mean())
    finite = mean_loss if math.isfinite(mean_loss) else None
    return Evaluation(float(correct.mean()), finite, torch.stack(shares).cpu(), zeros)


def share_taken_for(network: Network, answering: Models, x: Tensor, label: int) -> float | None:
    """Return the share of ``x (N, C, H, W)`` that is taken for ``label``; None without an image."""
    taken = [
        float(taken_for(network, model, x[rows], label)[0].sum())
        for rows, model in answering.batches(len(x))
    ]
    return sum(taken) / len(x) if len(x) else None


def _ensemble(model: Deployed) -> list[Tree]:
    return [model] if isinstance(model, dict) else model


def taken_for(
    network: Network, model: Deployed, x: Tensor, y: Tensor | int
) -> tuple[Tensor, Tensor]:
    """Return how far images are taken for ``y``, ``(N,)`` float64, and the mean probabilities.

    That is 1 or 0, but ``1 / c`` where ``y`` is one of ``c`` classes that share the highest
    probability, and 0 where probabilities are not finite: argmax would call all images of a model
    that has died, or diverged, class 0.
    """
    images = laid_out(x)
    with torch.no_grad():
        chances = [network.logits(m, images).softmax(dim=1) for m in _ensemble(model)]
        mean = torch.stack(chances).mean(dim=0)
    highest = mean == mean.amax(dim=1, keepdim=True)  # nowhere in a row with NaN
    wanted = highest.gather(1, y[:, None])[:, 0] if isinstance(y, Tensor) else highest[:, y]
    return wanted / highest.sum(dim=1, dtype=torch.float64).clamp_min(1), mean


def sparsity(network: Network, ensemble: Sequence[Tree]) -> float:
    """Return the share of weights that are exactly 0; biases and normalisation do not count."""
    weights = [model[name] for model in ensemble for name in network.weights]
    return sum(int((x == 0).sum()) for x in weights) / sum(x.numel() for x in weights)
