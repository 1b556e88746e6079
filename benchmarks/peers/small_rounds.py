"""Rounds of ByzFL's MNIST benchmark, here and in ByzFL, in turns in one process, by CPU time.

``make .venv-peers/installed && .venv-peers/bin/python benchmarks/peers/small_rounds.py`` plays
every rule and every attack that both have: DSGD with momentum of the clients, one local step of 25
samples each, ByzFL's own network, 10 benign and 2 Byzantine clients on one thread; without an
attack 12 benign ones. Both train from the same weights on the same samples, so they end alike
unless rule or attack differ. A turn's ratio is that of the median CPU times of its rounds, without
the first, which is cold, and the last, in which here the model is evaluated; shown are medians over
turns, and the range of their ratios. ByzFL's samples are normalised tensors before the clock
starts, which its own benchmark, whose loader transforms images, does in every step; here they are
normalised in every round. Here Byzantine clients train, too, as the record compares with what they
would have sent.
"""

from __future__ import annotations

import importlib
import statistics
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from fedbench import Round, Scenario, play
from fedbench.data.archives import vision
from fedbench.data.datasets import Data, Mnist, data_folder
from fedbench.executors.malloc import keep_memory
from fedbench.experiment.population import Population
from fedbench.experiment.prepare import prepare
from fedbench.models.modules import ModuleModel

vision("datasets")  # byzfl imports torchvision, which may not fit a CPU build of torch
byzfl = importlib.import_module("byzfl")
models = importlib.import_module("byzfl.fed_framework.models")

BENIGN, BYZANTINE, BATCH = 10, 2, 25  # ByzFL's benchmark, with the middle of its numbers f
LR, BETA, DECAY = 0.1, 0.9, 1e-4
TESTED = 2000  # images, of both sides
F = {"f": BYZANTINE}

# Ours, and ByzFL's with its parameters.
RULES: dict[str, tuple[str, dict[str, Any]]] = {
    "mean": ("Average", {}),
    "median": ("Median", {}),
    "trimmed-mean": ("TrMean", F),
    "meamed": ("Meamed", F),
    "krum": ("Krum", F),
    "multi-krum": ("MultiKrum", F),
    "geometric-median": ("GeometricMedian", {}),
    "centered-clipping": ("CenteredClipping", {}),
    "mda": ("MDA", F),
    "nna": ("MoNNA", F),
    "smea": ("SMEA", F),
    "caf": ("CAF", F),
}
FILTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "nnm": ("NNM", F),
    "bucketing": ("Bucketing", {"s": 2}),
    "clip": ("Clipping", {}),
    "arc": ("ARC", F),
}
ATTACKS: dict[str, str] = {
    "sign-flip:of=mean": "SignFlipping",
    "ipm:eps=2.0": "InnerProductManipulation",
    "alie:z=1.5,side=minus": "ALittleIsEnough",
    "opt-ipm": "Optimal_InnerProductManipulation",
    "opt-alie": "Optimal_ALittleIsEnough",
    "mimic": "Mimic",
    "noise": "Gaussian",
    "label-flip": "LabelFlipping",
}


@dataclass(frozen=True)
class Turn:
    """Median CPU seconds of the timed rounds of one side, and its accuracy after the last one."""

    seconds: float
    accuracy: float


def lasting(moments: list[float]) -> float:
    """Return the median time between moments, without the first and the last round."""
    return statistics.median(b - a for a, b in pairwise(moments[1:-1]))


def pool() -> Data:
    """Return MNIST's first training images, a batch for each client, and test images."""
    data = Mnist().load(data_folder())
    assert data.trained is not None
    count = (BENIGN + BYZANTINE) * BATCH
    rows = torch.cat([torch.arange(count), data.trained + torch.arange(TESTED)])
    return Data(
        data.x[rows], data.y[rows], data.classes, data.scale, data.mean, data.std, trained=count
    )


def scenario(network: torch.nn.Module, rule: str, attack: str, rounds: int) -> Scenario:
    """Return the scenario of so many rounds, none of which is evaluated but the last."""
    clients = BENIGN + BYZANTINE
    return Scenario(
        protocol=f"worker-momentum:lr={LR},beta={BETA},weight_decay={DECAY}",
        model=ModuleModel(module=network),
        defense=rule,
        attack=attack,
        partition="iid",
        split="published",
        clients=clients,
        per_round=clients,
        malicious=0.0 if attack == "none" else BYZANTINE / clients,
        declared=BYZANTINE / clients,
        epochs=1,
        batch_size=BATCH,
        rounds=rounds,
        eval_every=rounds,
    )


class Again(Dataset[tuple[Tensor, Tensor]]):
    """Samples of a client, over and over, so that its loader never starts anew."""

    def __init__(self, x: Tensor, y: Tensor, times: int) -> None:
        self.x = x
        self.y = y
        self.times = times

    def __len__(self) -> int:
        return len(self.x) * self.times

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        row = i % len(self.x)
        return self.x[row], self.y[row]


def ours(played: Scenario, data: Data, executor: str) -> Turn:
    """Play the scenario; the last round, which is evaluated, is not timed."""
    moments = [time.process_time()]

    def note(_: Round) -> None:
        moments.append(time.process_time())

    record = play(played, data=data, device="cpu", executor=executor, callbacks=[note])
    return Turn(lasting(moments), record.result.accuracy)


def theirs(
    network: torch.nn.Module, rule: str, attack: str, data: Data, parts: Population, rounds: int
) -> Turn:
    """Play the same with ByzFL's clients and server, as its `start_training` does."""
    *filters, last = rule.split("+")
    name, parameters = RULES[last]
    aggregator = {"name": name, "parameters": parameters}
    before = [dict(zip(("name", "parameters"), FILTERS[each], strict=True)) for each in filters]
    flips = ATTACKS.get(attack) == "LabelFlipping"
    options = {
        "model_name": type(network).__name__,
        "device": "cpu",
        "optimizer_name": "SGD",
        "learning_rate": LR,
        "weight_decay": DECAY,
        "milestones": [],
        "learning_rate_decay": 1.0,
    }
    tests = torch.arange(len(data) - TESTED, len(data))
    x = data.floats(tests)
    y = data.y[tests]
    server = byzfl.Server(
        options
        | {
            "validation_loader": None,
            "test_loader": DataLoader(Again(x, y, 1), batch_size=128),
            "aggregator_info": aggregator,
            "pre_agg_list": before,
        }
    )
    malicious = parts.malicious[list(range(BENIGN + BYZANTINE))].tolist()
    honest = [i for i, owned in enumerate(malicious) if not owned]
    clients = []
    for i in honest:
        rows = parts.train[i]
        samples = Again(data.floats(rows), data.y[rows], rounds)
        clients.append(
            byzfl.Client(
                options
                | {
                    "loss_name": "NLLLoss",
                    "LabelFlipping": flips,
                    "training_dataloader": DataLoader(samples, batch_size=BATCH),
                    "momentum": BETA,
                    "nb_labels": data.classes,
                    "store_per_client_metrics": True,
                }
            )
        )
    adversary = None
    if attack != "none":
        given = {"aggregator_info": aggregator, "pre_agg_list": before, "f": BYZANTINE}
        adversary = byzfl.ByzantineClient(
            {"name": ATTACKS[attack], "f": BYZANTINE, "parameters": given}
        )
    server.set_model_state(network.state_dict())
    for client in clients:
        client.set_model_state(server.get_dict_parameters())
    moments = [time.process_time()]
    losses = torch.zeros(rounds)
    for step in range(rounds):
        losses[step] = statistics.fmean(client.compute_gradients() for client in clients)
        gradients = [client.get_flat_gradients_with_momentum() for client in clients]
        read = [client.get_flat_flipped_gradients() for client in clients] if flips else gradients
        forged = [] if adversary is None else adversary.apply_attack(read)
        server.update_model_with_gradients(gradients + forged)
        model = server.get_dict_parameters()
        for client in clients:
            client.set_model_state(model)
        moments.append(time.process_time())
    return Turn(lasting(moments), server.compute_test_accuracy())


def pairs(rules: list[str], attacks: list[str]) -> Iterator[tuple[str, str]]:
    """Yield every rule with every attack."""
    for attack in attacks:
        for rule in rules:
            yield rule, attack


def main() -> None:
    """Compare what is asked for on the command line."""
    every = [*RULES, *(f"{name}+trimmed-mean" for name in FILTERS)]
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="cnn_mnist", help="a network of ByzFL for MNIST")
    parser.add_argument("--rules", nargs="+", default=every)
    parser.add_argument("--attacks", nargs="+", default=["none", *ATTACKS])
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--executor", default="auto")
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    torch.manual_seed(0)  # ByzFL's networks draw their weights from torch's own stream
    network = getattr(models, given.model)()
    data = pool()
    print("| attack | rule | ours, ms | ByzFL, ms | theirs / ours | range | accuracy, % |")
    print("| :-- | :-- | --: | --: | --: | --: | --: |", flush=True)
    for rule, attack in pairs(given.rules, given.attacks):
        played = scenario(network, rule, attack, given.rounds)
        parts = prepare(played, "cpu", "loop", data=data).population
        turns = [
            (
                ours(played, data, given.executor),
                theirs(network, rule, attack, data, parts, given.rounds),
            )
            for _ in range(given.turns)
        ]
        ratios = [b.seconds / a.seconds for a, b in turns]
        mine, yours = (
            1e3 * statistics.median(side.seconds for side in sides)
            for sides in zip(*turns, strict=True)
        )
        accuracies = " / ".join(f"{100 * side.accuracy:.1f}" for side in turns[-1])
        print(
            f"| {attack} | {rule} | {mine:.1f} | {yours:.1f} | "
            f"{statistics.median(ratios):.2f} | {min(ratios):.2f}-{max(ratios):.2f} | "
            f"{accuracies} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
