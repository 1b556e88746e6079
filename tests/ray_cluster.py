"""Ray cluster of several nodes on this machine, each with a session of its own, for tests."""

import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from moody import first, installed

from fedbench.experiment.record import Record

RAY = Path(sys.executable).with_name("ray")


class Node:
    """Node of a cluster: the processes of one session."""

    def __init__(self, options: list[str], env: dict[str, str]) -> None:
        command = [str(RAY), "start", *options, "--object-store-memory", "100000000"]
        command += ["--min-worker-port", "0", "--max-worker-port", "0"]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        started = subprocess.Popen(command, env=env, text=True, start_new_session=True, **pipes)
        self.session = started.pid
        output, _ = started.communicate(timeout=120)
        if started.returncode:
            self.end()
            raise RuntimeError(output)

    def processes(self, name: bytes = b"") -> list[int]:
        results = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                pid = int(path.parent.name)
                command = path.read_bytes()  # empty of what has ended and was not waited for
                if os.getsid(pid) == self.session and command and command.startswith(name):
                    results.append(pid)
            except OSError:  # it has ended
                continue
        return results

    def playing(self) -> list[int]:
        """Workers in the middle of a run; Ray gives others another name."""
        return self.processes(b"ray::_play")

    def end(self) -> None:
        while pids := self.processes():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.05)


class Cluster:
    """Cluster of a head with one core and of nodes that join. They have no data files.

    The name of the ``folder`` is short, because those of sockets must be. Moody attacks of the
    packages in ``site`` write into the ``diary``.
    """

    def __init__(self, folder: Path, site: Path, diary: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{probe.getsockname()[1]}"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
        self.env |= dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
        self.env |= {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "token",  # or whoever reaches the port could run code here
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "PYTHONPATH": first(site),
            "DIARY": str(diary),
            "FEDBENCH_DATA": str(folder / "nothing"),
        }
        self.folder = folder
        self.nodes: list[Node] = []
        port = self.address.partition(":")[2]
        head = ["--head", "--port", port, "--include-dashboard", "false"]
        self.head = self.start([*head, "--temp-dir", str(folder)], "1", {})

    def start(self, options: list[str], cores: str, env: Mapping[str, str]) -> Node:
        self.nodes.append(Node([*options, "--num-cpus", cores], {**self.env, **env}))
        return self.nodes[-1]

    def join(self, *options: str, cores: str = "1", env: Mapping[str, str] = {}) -> Node:
        return self.start(["--address", self.address, *options], cores, env)

    def end(self) -> None:
        for node in self.nodes:
            node.end()

    def command(self, folder: Path, text: str, *options: str) -> list[str]:
        """Return the command of a sweep on this cluster, its store in ``folder / "store"``."""
        folder.mkdir(exist_ok=True)
        (folder / "s.toml").write_text(text)
        out = [str(folder / "s.toml"), "--out", str(folder / "store"), *options]
        address = [] if "--engine" in options else ["--engine", "ray", "--address", self.address]
        return [sys.executable, "-m", "fedbench", "sweep", *out, *address]

    def finished(
        self, words: list[str], folder: Path, env: Mapping[str, str] = {}
    ) -> subprocess.CompletedProcess[str]:
        env = {**self.env, **env}
        return subprocess.run(
            words, capture_output=True, text=True, env=env, cwd=folder, timeout=540
        )

    def sweep(
        self, folder: Path, text: str, *options: str, env: Mapping[str, str] = {}
    ) -> subprocess.CompletedProcess[str]:
        return self.finished(self.command(folder, text, *options), folder, env)

    def begin(self, folder: Path, text: str, *options: str) -> "subprocess.Popen[str]":
        words = self.command(folder, text, *options)
        return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=self.env, cwd=folder)

    def script(self, code: str) -> str:
        """Run a program with the environment of a sweep, and return its output."""
        program = f"address = {self.address!r}\n{textwrap.dedent(code)}"
        done = self.finished([sys.executable, "-c", program], self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout


@contextmanager
def running(packages: Path) -> Iterator[Cluster]:
    """Start a cluster whose nodes find the moody package in a new folder, and end it."""
    site = installed(packages)
    with tempfile.TemporaryDirectory(prefix="fedbench-", ignore_cleanup_errors=True) as folder:
        cluster = Cluster(Path(folder), site, site / "diary")
        try:
            yield cluster
        finally:
            cluster.end()


@contextmanager
def joined(cluster: Cluster) -> Iterator[Node]:
    """Let a second node join the cluster, and end it."""
    node = cluster.join()
    yield node
    node.end()
    gone(cluster)


def gone(cluster: Cluster) -> None:
    """Wait until the cluster knows which nodes have left: the next sweep must not use them."""
    cluster.script(
        """
        import time
        import ray
        ray.init(address, log_to_driver=False, logging_level="ERROR")
        end = time.monotonic() + 90
        while sum(node["Alive"] for node in ray.nodes()) > 1:
            assert time.monotonic() < end
            time.sleep(0.2)
        """
    )


def wait(until: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end
        time.sleep(0.01)


def numbers(record: Record) -> dict[str, Any]:
    """Return everything that a record measured, but for the executor."""
    measured = record.measured()
    del measured["digest"]
    del measured["environment"]["executor"], measured["environment"]["chunk"]
    return measured
