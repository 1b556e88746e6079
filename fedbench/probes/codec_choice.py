"""Choice of the protocols whose codec can be measured by itself, and of their variants."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedbench.api import Protocol, Shared
from fedbench.core import registry
from fedbench.core.errors import ConfigError, FedbenchError
from fedbench.core.rng import Key
from fedbench.probes.codec_inputs import drawn
from fedbench.protocols.fedavg import DenseWeights

# In this order; other installed protocols follow with their defaults.
VARIANTS = (
    "fedavg",
    "cast:form=fp16",
    "cast:form=bf16",
    "topk:k=0.5",
    "topk:k=0.1",
    "topk:k=0.03,index=entropy",
    "randk:k=0.1",
    "randk:k=0.01",
    "qsgd",
    "qsgd:levels=1",
    "qsgd:norm=l2,bucket=0",
    "fedpaq",
    "terngrad",
    "terngrad:clip=2.5",
    "eden:bits=4",
    "eden:bits=3",
    "eden:bits=2",
    "eden:bits=1",
    "eden:bits=0.5",
    "drive",
    "drive:scale=min-mse",
    "ef-signsgd",
    "fedmrn",
    "fedmrns",
    "signsgd",
    "stochastic-sign",
)


@dataclass(frozen=True, eq=False)
class Codec:
    """A protocol's compression of dense updates.

    Args:
        name: Protocol as typed.
        protocol: The protocol with its parameters.
    """

    name: str
    protocol: Protocol[Any]


def chosen(texts: Sequence[str] | None, shared: Shared) -> tuple[list[Codec], dict[str, str]]:
    """Return the codecs to measure, and by name the reasons why others are not.

    Args:
        texts: Protocols as typed; None for every installed protocol that fits.
        shared: The network whose updates are compressed.

    Raises:
        ConfigError: a protocol that is asked for does not exist or does not fit.
    """
    if texts is not None:
        codecs = [Codec(t, registry.load("protocol", t)) for t in dict.fromkeys(texts)]
        for codec in codecs:
            if reason := misfit(codec.protocol, shared):
                raise ConfigError(
                    f"--protocol {codec.name} must compress dense updates of the weights, but its "
                    f"{reason}; without --protocol all that do are measured"
                )
        return codecs, {}
    fitting: list[Codec] = []
    others: dict[str, str] = {}
    for text in default_texts(registry.names("protocol")):
        try:
            codec = Codec(text, registry.load("protocol", text))
            reason = misfit(codec.protocol, shared)
        except ConfigError as error:  # another package's plug-in of that name
            reason = str(error)
        except Exception as error:  # another package's broken plug-in must not hide the others
            reason = f"messages fail, {type(error).__name__}: {error}".splitlines()[0]
        if reason is None and text not in VARIANTS and is_plain(codec.protocol):
            reason = "messages are those of fedavg"
        if reason is None:
            fitting.append(codec)
        else:
            others[text] = reason
    return fitting, others


def default_texts(installed: Iterable[str]) -> list[str]:
    """Return the `VARIANTS` of installed protocols, then the other installed protocols.

    >>> default_texts(["drive", "mine"])
    ['drive', 'drive:scale=min-mse', 'mine']
    """
    names = list(installed)
    variants = {text: registry.split(text)[0] for text in VARIANTS}
    rest = [name for name in names if name not in variants.values()]
    return [text for text, name in variants.items() if name in names] + rest


def is_plain(protocol: Protocol[Any]) -> bool:
    """True if its message is the update itself, so that all such protocols have one codec."""
    return type(protocol).message is DenseWeights.message


def misfit(protocol: Protocol[Any], shared: Shared) -> str | None:
    """Return why the codec cannot be measured on dense updates, or None; tried on a vector."""
    d = shared.layout.d
    if protocol.space != "weights":
        return f"updates are {protocol.space}"
    if protocol.trained(shared).d != d:
        return "updates hold more than the parameters of the network"
    if shared.statistics.d and not protocol.statistics:
        return "messages cannot carry the statistics of batch norm"
    x = drawn("gaussian", Key(0).fold("misfit"), d)[None].to(shared.device)
    try:
        payload, _ = protocol.message(shared, x, [Key(0)], [protocol.memory(shared)])
    except KeyError:
        return "messages need what a client remembers of its training"
    except FedbenchError as error:
        return f"messages fail: {error}"
    if payload.values().shape != (1, d) or not payload.aligned:
        return "values are no update of the parameters"
    return None
