"""Reading of what an app's ``task.py`` returns: any model of a scenario, images or numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from fedbench.core.errors import ConfigError, require
from fedbench.core.rng import Key
from fedbench.data.datasets import Data
from fedbench.deployment.client import Samples
from fedbench.models.draws import own_draws
from fedbench.models.models import Model
from fedbench.models.modules import ModuleModel
from fedbench.models.network import Network, require_network


def network_of(model: Callable[[], Any], sample: tuple[int, ...], classes: int) -> Network:
    """Return the network that ``model()`` stands for, the same at server and clients.

    Args:
        model: Function that returns a `torch.nn.Module`, a function that makes one, a `Model` such
            as `ModuleModel`, or a `Network`. What it draws from torch's generators is the same in
            every call: frozen weights are regenerated at both ends.
        sample: Shape of one sample, such as ``(channels, height, width)``.
        classes: Number of labels.

    Raises:
        ConfigError: it returns something else, or a module that these protocols cannot train.
    """
    with own_draws(Key(0)):
        made = model()
    if isinstance(made, Network):
        return made
    if isinstance(made, nn.Module):
        made = ModuleModel(module=model)  # made again under the run's seed
    elif callable(made) and not isinstance(made, Model):
        made = ModuleModel(module=made)
    if not isinstance(made, Model):
        raise ConfigError(
            "task.model() must return a torch.nn.Module, a function that makes one or a model of "
            f"fedbench.models, got {type(made).__name__}"
        )
    network: Network = made.build(sample, classes)
    require_network(network)
    return network


def samples_of(given: Any) -> Samples:
    """Return a client's samples; those of `Data` normalised as it says.

    The first ``trained`` samples of `Data` are for training and the others for tests; without that
    number all are for training. `ConfigError` for anything but `Samples` and `Data`.
    """
    if isinstance(given, Samples):
        return given
    kind = type(given).__name__
    require(
        "task.data()", kind, isinstance(given, Data), "Samples or fedbench.data.own.from_arrays"
    )
    count = len(given) if given.trained is None else given.trained
    x = given.floats(torch.arange(len(given)))
    return Samples(x[:count], given.y[:count], x[count:], given.y[count:])
