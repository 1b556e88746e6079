"""The folder of an exported Flower app: written whole or not at all."""

from __future__ import annotations

import json
import secrets
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from fedbench.core.errors import ConfigError
from fedbench.deployment.settings import Settings
from fedbench.peers.packages import FLWR

TASK = '''"""What this app trains: EDIT THIS FILE. Server and clients import it."""

from collections.abc import Mapping
from typing import Any

from fedbench.deployment import example

SAMPLE = (1, 8, 8)  # shape of one sample: channels, height, width
CLASSES = 10


def model() -> Any:
    """Return the model, the same at server and clients.

    A `torch.nn.Module`, a function that makes one, `fedbench.models.modules.ModuleModel`, or a
    network of `fedbench.models`.
    """
    return example.lenet()


def data(number: int, clients: int, config: Mapping[str, Any]) -> Any:
    """Return this client's own samples; they never leave it.

    ``number`` is the ``partition-id`` of the node's configuration, -1 without one: then read what
    lies on this machine. `fedbench.data.own.from_arrays(x, y, mean=..., std=..., trained=...)`,
    where mean and std are the same for all clients and samples from ``trained`` on are for tests;
    or `fedbench.deployment.client.Samples`, float32 and normalised.
    """
    return example.digits(number, clients, max(int(config.get("rehearse", -1)), 0))
'''

SERVER = '''"""The server: fedbench's protocol and rule. Nothing to edit here."""

from fedbench.deployment.flower import server_app
from fedbench.deployment.task import network_of

from {package}.task import CLASSES, SAMPLE, model

app = server_app(lambda: network_of(model, SAMPLE, CLASSES))
'''

CLIENT = '''"""A client: it trains on its own data and sends bytes. Nothing to edit here."""

from fedbench.deployment.flower import client_app
from fedbench.deployment.task import network_of

from {package}.task import CLASSES, SAMPLE, data, model

app = client_app(lambda: network_of(model, SAMPLE, CLASSES), data)
'''

PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.0"
description = "{protocol} with the rule {defense}, exported by fedbench"
license = "Apache-2.0"
requires-python = ">=3.11"
# fedbench is not listed: it must be installed where Flower is, from its repository, since newer
# versions of Flower install what is listed here from the public index, which does not have it (the
# package called fedbench there is another one).
dependencies = ["{flwr}"]

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "fedbench"

[tool.flwr.app.components]
serverapp = "{package}.server_app:app"
clientapp = "{package}.client_app:app"

# All of this is public. public-seed regenerates what both ends share, like frozen weights; it
# protects nothing. rehearse below 0: batches, masks and noise come from the operating system, each
# end's own. At 0 or more all draws follow from that number, as in fedbench.play: only for tests.
[tool.flwr.app.config]
{config}
output = ""
"""

README = """# {protocol} in Flower

Written by `fedbench export flower`. Edit `{package}/task.py` (model and data), then, where fedbench
and {flwr} are installed:

    export FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION=1
    flwr run . --stream --federation-config num-supernodes={clients}

docs/how-to/flower.md of fedbench says how to run it on real machines, and which seeds are public.
"""


def export(settings: Settings, out: Path) -> list[Path]:
    """Write the app into the folder ``out``, which must not exist or be empty; return its files.

    `ConfigError` if the parts do not fit or need the harness, or the folder cannot be written.
    """
    plugins = settings.plugins()
    settings = replace(settings, public_seed=secrets.randbits(32))
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigError(f"--out must be a new or an empty folder, got {str(out)!r}")
    name = plugins.protocol.__class__.__name__.lower()
    package = f"fedbench_{name}"
    fields = {
        "name": f"fedbench-{name}",
        "package": package,
        "protocol": settings.protocol,
        "defense": plugins.defense_name,
        "flwr": FLWR,
        "clients": settings.clients,
        "config": "\n".join(f"{k} = {json.dumps(v)}" for k, v in settings.config().items()),
    }
    files = {
        "pyproject.toml": PROJECT.format(**fields),
        "README.md": README.format(**fields),
        f"{package}/__init__.py": f'"""{settings.protocol} as a Flower app."""\n',
        f"{package}/task.py": TASK,
        f"{package}/server_app.py": SERVER.format(**fields),
        f"{package}/client_app.py": CLIENT.format(**fields),
    }
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=out.parent) as place:
            draft = Path(place) / "app"
            for path, text in files.items():
                (draft / path).parent.mkdir(parents=True, exist_ok=True)
                (draft / path).write_text(text)
            if out.exists():
                out.rmdir()
            shutil.move(draft, out)
    except OSError as error:
        raise ConfigError(f"--out {str(out)!r} cannot be written: {error.strerror}") from error
    return [out / path for path in files]
