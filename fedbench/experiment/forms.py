"""Public form of a message as bytes, for an end that does not hold the other's state."""

from dataclasses import fields, replace

from fedbench.core.errors import IllegalPayloadError
from fedbench.experiment.state_bytes import decode, encode
from fedbench.payload import Payload
from fedbench.payload.sparse import Alive


def form_bytes(payload: Payload) -> bytes:
    """Return the form of a message: its class and its fields without rows."""
    form = payload.take([])
    alive = [f.name for f in fields(form) if isinstance(getattr(form, f.name), Alive)]
    plain = {name: bytes(getattr(form, name)) for name in alive}
    return encode({"form": replace(form, **plain), "alive": alive})


def form_of(data: bytes) -> Payload:
    """Return the message without rows that `form_bytes` wrote; an error if there is none."""
    read = decode(data)
    form = read.get("form") if isinstance(read, dict) else None
    if not isinstance(form, Payload):
        raise IllegalPayloadError("a broadcast's form must be a message without rows, got another")
    return replace(form, **{name: Alive(getattr(form, name)) for name in read["alive"]})
