"""Public form of a message as bytes, for an end that does not hold the other's state."""

from dataclasses import fields, replace

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.sources import package_of
from fedbench.experiment.state_bytes import StateReader, StateWriter
from fedbench.payload import Payload
from fedbench.payload.sparse import Alive


def form_bytes(payload: Payload) -> bytes:
    """Return the form of a message: its class and its fields without rows."""
    form = payload.take([])
    alive = [f.name for f in fields(form) if isinstance(getattr(form, f.name), Alive)]
    plain = {name: bytes(getattr(form, name)) for name in alive}
    written = {"form": replace(form, **plain), "alive": alive}
    return b"".join(StateWriter([package_of(type(payload))]).pieces(written))


def form_of(data: bytes, package: str = "fedbench") -> Payload:
    """Return the message without rows that `form_bytes` wrote; an error if there is none.

    Beside fedbench's own its class may be one of this ``package``, if that is imported already.
    """
    read = StateReader(memoryview(data), [package]).whole()
    form = read.get("form") if isinstance(read, dict) else None
    if not isinstance(form, Payload):
        raise IllegalPayloadError("a broadcast's form must be a message without rows, got another")
    return replace(form, **{name: Alive(getattr(form, name)) for name in read["alive"]})
