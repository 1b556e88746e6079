"""A client's own train, validation and test data."""

from torch import Tensor

from fedbench.core.errors import ConfigError
from fedbench.core.rng import Key


def split_client(indices: Tensor, key: Key) -> tuple[Tensor, Tensor, Tensor]:
    """Shuffle a client's rows and cut them 70/10/20 into train, validation and test.

    Validation has a tenth and test a fifth, rounded half up and at least one; train has the rest.

    >>> import torch
    >>> [len(part) for part in split_client(torch.arange(36), Key(0))]
    [25, 4, 7]

    Raises:
        ConfigError: there are fewer than three samples.
    """
    n = len(indices)
    if n < 3:
        raise ConfigError(
            f"a client needs at least 3 samples to train, validate and test, got {n}; "
            "ask for fewer clients"
        )
    validation = max(1, (n + 5) // 10)
    test = max(1, (2 * n + 5) // 10)
    train = n - validation - test
    parts = indices[key.permutation(n)].tensor_split((train, train + validation))
    return parts[0], parts[1], parts[2]
