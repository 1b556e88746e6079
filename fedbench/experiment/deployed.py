"""Weights that a run deploys in the end: to save, to load into a module, to predict with."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedbench.core.errors import ConfigError
from fedbench.core.files import write_atomically
from fedbench.core.trees import Tree
from fedbench.models.network import Network, laid_out

if TYPE_CHECKING:
    from fedbench.experiment.record import Record


@dataclass(frozen=True, eq=False)
class DeployedModel:
    """Model, or ensemble of models, that the server deploys after the last round.

    A protocol that draws its model anew for every few images (`Protocol.redraws`) deploys many;
    this is its first draw.

    Args:
        network: Function that computes logits from weights.
        members: Weights by name, one model or several whose probabilities are averaged.
    """

    network: Network
    members: tuple[Tree, ...] = field(repr=False)

    def state_dict(self) -> Tree:
        """Return the weights by their names, on the CPU; `ConfigError` for an ensemble.

        Of a `torch.nn.Module` it has all that its own state dict has, also what no run trains. The
        factors of an adapter are merged into the weights; `members` has the factors.
        """
        if len(self.members) > 1:
            raise ConfigError(
                f"a state dict must be that of one model, got an ensemble of {len(self.members)}; "
                "take one of DeployedModel.members"
            )
        tree = self.network.state_dict(self.members[0])
        return {name: x.detach().cpu() for name, x in tree.items()}

    def predict(self, x: Tensor) -> Tensor:
        """Return the probabilities of the classes, ``(B, classes)``, averaged over the ensemble.

        ``x (B, ...)`` are samples as the network is trained on them (`Data.floats`).
        """
        device = next(iter(self.members[0].values())).device
        samples = laid_out(x.to(device)) if x.ndim == 4 else x.to(device)
        with torch.no_grad():
            chances = [self.network.logits(tree, samples).softmax(dim=1) for tree in self.members]
        return torch.stack(chances).mean(dim=0)

    def save(self, path: Path | str, record: Record | None = None) -> None:
        """Write the weights as safetensors, whole or not at all.

        The file has all that `state_dict` has; an ensemble's members have their number in front of
        each name, as in ``0.conv1``. The metadata hold the number of members and, if given, id and
        scenario of the ``record``.
        """
        from safetensors.torch import save

        many = len(self.members) > 1
        tensors = {
            f"{number}.{name}" if many else name: x.detach().cpu().clone()  # which may share memory
            for number, tree in enumerate(self.members)
            for name, x in self.network.state_dict(tree).items()
        }
        about = {"members": str(len(self.members))}
        if record is not None:
            about |= {"record": record.id, "scenario": record.scenario.model_dump_json()}
        write_atomically(Path(path), save(tensors, about))
