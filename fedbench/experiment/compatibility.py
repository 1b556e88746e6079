"""Resolution of a scenario: plug-ins that fit each other, and every default written out."""

import dataclasses
from collections.abc import Callable
from functools import cached_property
from types import SimpleNamespace
from typing import Any, TypeGuard

import torch
from torch import Tensor

from fedbench.adversary.threat_model import needs
from fedbench.api import Defense, DpEvent, Knowledge, Protocol, Release, Traits
from fedbench.api.prefilter import links_of
from fedbench.core import registry
from fedbench.core.blame import Hook, ask, shown
from fedbench.core.choices import SUMS
from fedbench.core.errors import ConfigError, Incompatible
from fedbench.core.sources import SourceFile, source_at, source_of
from fedbench.experiment import availability, cohorts
from fedbench.experiment.scenario import Scenario, code_version, fingerprint, foreign
from fedbench.isolation.stand_ins import IsolatedDefense, StandIn
from fedbench.models import adapters
from fedbench.payload import SUMMED, Payload

WHY = (str, type(None))
Load = Callable[[str, str], Any]  # kind and text to plug-in, as `registry.load`


@dataclasses.dataclass(frozen=True)
class Plugins:
    """Plug-ins that play a round, as objects."""

    protocol: Any
    attack: Any
    defense: Any  # the server's rule, with its prefilters
    mechanism: Any
    defense_name: str  # of a chain with those of its prefilters
    declares: bool  # whether the defense takes its ``f`` from the declared share

    def sources(self) -> list[SourceFile]:
        """Return the source files of the plug-ins, and those whose code their attack copies."""
        parts = (self.protocol, self.attack, self.mechanism, *self.links())
        apart = (StandIn, SimpleNamespace)  # in another process, which says its files
        files = [source_at(p.file) if isinstance(p, apart) else source_of(type(p)) for p in parts]
        if isinstance(self.attack, StandIn):
            return [*files, *map(source_at, self.attack.described["copies"])]
        return [*files, *map(source_of, self.attack.copies())]

    def described(self, kind: str, text: str) -> str:
        """Return the text of a part of this kind with every parameter written out."""
        part = getattr(self, kind)
        if isinstance(part, StandIn):
            return part.text
        return registry.describe(registry.split(text)[0], part)

    def links(self) -> list[Any]:
        """Return the prefilters and the rule, in the order in which rows go through them."""
        if isinstance(self.defense, IsolatedDefense):
            return list(self.defense.links)
        return links_of(self.defense)

    def noises(self, scenario: Scenario) -> int:
        """Return how many of protocol and mechanism release something that an accountant prices."""
        release = Release(1, 1, 1, 1, scenario.clients, scenario.per_round)
        kinds = (DpEvent, type(None))
        parts = (self.protocol, self.mechanism)
        return sum(ask(part, "event", kinds, release) is not None for part in parts)

    def check(self, scenario: Scenario) -> None:
        """Raise `ConfigError` unless the parts fit each other and the number of rows."""
        self._check_alphabets(scenario)
        self._check_links(scenario)
        self._check_knowledge(scenario)
        self._check_rows(scenario)
        self._check_privacy(scenario)
        self._check_sum(scenario)
        self._check_validation(scenario)
        self._check_availability(scenario)
        self._check_adapter(scenario)

    def _check_alphabets(self, scenario: Scenario) -> None:
        """Raise unless attack and defense work on what the protocol sends."""
        sends = getattr(self.protocol, "sends", None)  # a class that forgot it has none
        if not is_alphabet(sends):
            raise Hook(self.protocol, "sends").wrong(
                f"must be a type of messages, got {shown(sends)}; write that of its own, such as "
                "sends = FloatVectors"
            )
        sent = f"{scenario.protocol} sends {sends.__name__}"
        for part in (self.attack, *self.links()):
            _must_be_alphabets(part, "accepts", part.accepts)
        if not issubclass(sends, self.attack.accepts):
            legal = ", ".join(alphabet.__name__ for alphabet in self.attack.accepts)
            raise Incompatible(f"attack {scenario.attack} works on {legal}, but {sent}")
        if (why := ask(self.defense, "refuses", WHY, sends)) is not None:
            raise Incompatible(f"defense {self.defense_name} {why}, but {sent}")

    def _check_links(self, scenario: Scenario) -> None:
        """Raise unless what the defense needs is there, and means something here."""
        first, *others = self.links()
        name = self.defense_name
        traits = ask(self.defense, "traits", Traits)
        if any(ask(link, "traits", Traits).oracle for link in others):
            raise ConfigError(
                f"--defense {name} must have oracle first, where nobody else sees the truth; "
                "use oracle+..."
            )
        oracle = ask(first, "traits", Traits).oracle
        if oracle and any(getattr(link, "f", None) is not None for link in others):
            raise ConfigError(
                f"--defense {scenario.defense} must leave every f to the oracle; leave f out"
            )
        if traits.root and scenario.mechanism.partition(":")[0] != "none":
            raise Incompatible(
                f"defense {name} trains on images of clients as they are, which no mechanism "
                "protects; use --mechanism none"
            )
        if traits.root and self.noises(scenario):
            raise Incompatible(
                f"defense {name} trains on images of clients as they are, which the noise of "
                f"{scenario.protocol} does not protect; use --defense mean"
            )
        if traits.model and not self.protocol.adds:
            raise Incompatible(
                f"defense {name} must know the weights, to which the server adds its answer, but "
                f"{scenario.protocol} does not; use --protocol fedavg"
            )
        if traits.broadcast and type(self.protocol).heard is not Protocol.heard:
            raise Incompatible(
                f"defense {name} must know the model from the broadcast, but {scenario.protocol} "
                "sends each client what it has missed; use --protocol fedkseed"
            )
        if traits.shrinks and self.protocol.votes:
            raise Incompatible(
                f"defense {name} moves shares towards the middle and would be the plain vote "
                f"for {registry.split(scenario.protocol)[0]}, which takes the majority"
            )

    def _check_knowledge(self, scenario: Scenario) -> None:
        """Raise unless attack and defense may read what they need."""
        needed = needs(self.attack)
        allowed = scenario.knowledge
        if allowed is not None and not Knowledge.parse(allowed).covers(needed):
            raise Incompatible(
                f"attack {scenario.attack} must be shown {needed}, but --knowledge "
                f"{allowed} is less"
            )

    def _check_sum(self, scenario: Scenario) -> None:
        """Raise if a part needs more of hidden messages than a sum of whole numbers."""
        if scenario.sees not in SUMS:
            return
        hides = f"--sees {scenario.sees} hides them in their sum"
        if needs(self.attack).tier == "all":
            raise Incompatible(
                f"attack {scenario.attack} reads the messages of all, but {hides}; "
                "use --sees messages"
            )
        if not ask(self.defense, "traits", Traits).reads_sum:
            raise Incompatible(
                f"defense {self.defense_name} reads single messages, but {hides}; "
                "use --defense mean, or --sees messages"
            )
        if scenario.server_checks == "range":
            raise Incompatible(
                f"--server-checks range reads single messages, but {hides}; "
                "use --server-checks finite, or --sees messages"
            )
        if not issubclass(self.protocol.sends, SUMMED):
            legal = " or ".join(alphabet.__name__ for alphabet in SUMMED)
            raise Incompatible(
                f"protocol {scenario.protocol} must send {legal} under --sees {scenario.sees}, got "
                f"{self.protocol.sends.__name__}; use fedpm, signsgd, skellam or pbm, or "
                "--sees messages"
            )
        if self.protocol.weighted:
            raise Incompatible(
                f"protocol {scenario.protocol} weights clients by size, but {hides}, which counts "
                "all the same; use --sees messages"
            )

    def _check_rows(self, scenario: Scenario) -> None:
        """Raise unless the defense can aggregate as many rows as a round has.

        A grid leaves out what does not fit; an ``f`` that was typed is a mistake.
        """
        misfit = Incompatible if self.declares else ConfigError
        name = self.defense_name
        per_round = scenario.per_round
        least = ask(self.defense, "rows_needed", int)
        f = getattr(self.defense, "f", None)
        lower = (" or lower --declared" if self.declares else " or lower f") if f else ""
        if least > per_round:
            prepared = "" if f is None else f" with f = {f}"
            if self.declares:
                typed = "malicious" if scenario.declared is None else "declared"
                prepared += f", from --{typed} {getattr(scenario, typed):g},"
            raise misfit(
                f"--defense {name}{prepared} needs at least {least} clients a round, got "
                f"--per-round {per_round}; sample more clients{lower}"
            )
        most = ask(self.defense, "most_rows", (int, type(None)))
        if most is not None and per_round > most:
            raise misfit(
                f"--defense {name} looks at every subset of the rows and must have at most {most}, "
                f"got --per-round {per_round}; sample fewer clients{lower}"
            )

    def _check_privacy(self, scenario: Scenario) -> None:
        """Raise unless exactly one part adds noise, and its privacy is proved."""
        if self.noises(scenario) > 1:
            raise Incompatible(
                f"protocol {registry.split(scenario.protocol)[0]} adds noise of its own; use it "
                "with --mechanism none"
            )
        unproved = ask(self.mechanism, "misfit", WHY, self.protocol, self.defense)
        if unproved is not None:
            raise Incompatible(f"mechanism {registry.split(scenario.mechanism)[0]} {unproved}")

    def _check_adapter(self, scenario: Scenario) -> None:
        """Raise unless the protocol can train what is added to frozen weights."""
        if scenario.adapter != adapters.NONE and not self.protocol.adapters:
            raise Incompatible(
                f"--protocol {registry.split(scenario.protocol)[0]} must train whole weights, for "
                "it drops units or prunes by them, and what is frozen beside factors stays, got "
                f"--adapter {scenario.adapter}; use none, or --protocol fedavg or fedpm"
            )

    def _check_availability(self, scenario: Scenario) -> None:
        """Raise where clients drop out and participation is hidden.

        Bounds for hidden participation assume rounds of a known law of their size.
        """
        if scenario.availability == availability.NONE:
            return
        hidden = scenario.sees == "hidden-sum"
        if self.mechanism.central or hidden:
            asked = "--sees hidden-sum" if hidden else f"--mechanism {scenario.mechanism}"
            raise Incompatible(
                f"--availability {scenario.availability} must have rounds whose participants are "
                f"seen, for no theorem covers rounds that lose some, got {asked}; use --sees sum "
                "and noise of the clients, or --availability none"
            )

    def _check_validation(self, scenario: Scenario) -> None:
        """Raise unless there is validation data for a protocol that chooses on it."""
        if not self.protocol.validates:
            return
        chooses = f"protocol {scenario.protocol} chooses on clients' validation data"
        if scenario.split != "per-client":
            raise Incompatible(
                f"{chooses}, which --split {scenario.split} does not leave; use --split per-client"
            )
        if scenario.mechanism.partition(":")[0] != "none":
            raise Incompatible(f"{chooses}, which no mechanism protects; use --mechanism none")


def load_plugins(scenario: Scenario, load: Load = registry.load) -> Plugins:
    """Return the plug-ins of a scenario; an ``f`` that was left open follows the declared share.

    ``load`` makes an attack or a defense of its text, possibly in another process. `ConfigError` if
    a plug-in or a parameter does not exist, or the parts do not fit each other.
    """
    protocol = registry.load("protocol", scenario.protocol)
    text = _defense_text(scenario, protocol)
    typed = load("defense", text)
    defense = ask(typed, "declared", Defense, cohorts.declared(scenario))
    plugins = Plugins(
        protocol=protocol,
        attack=load("attack", scenario.attack),
        defense=defense,
        mechanism=registry.load("mechanism", scenario.mechanism),
        defense_name=registry.split(text)[0],
        declares=defense != typed,
    )
    plugins.check(scenario)
    return plugins


def _defense_text(scenario: Scenario, protocol: Protocol[Any]) -> str:
    """Return the text of the server's rule: ``own`` is the protocol's default."""
    return protocol.default_defense if scenario.defense == "own" else scenario.defense


@dataclasses.dataclass(frozen=True)
class Resolution:
    """One scenario with every default written out, and the objects that its texts name."""

    scenario: Scenario  # equal runs have equal ones, however they were typed
    plugins: Plugins
    dataset: Any
    model: Any
    partition: Any

    @cached_property
    def sources(self) -> list[SourceFile]:
        """Source files of plug-ins of other packages; `code_version` covers ours."""
        others = map(type, (self.dataset, self.model, self.partition))
        return foreign([*self.plugins.sources(), *map(source_of, others)])

    def id(self, own_data: str = "") -> str:
        """Return the run's sixteen hex digits; ``own_data`` as in `fingerprint`."""
        digests = [source.sha256 for source in self.sources]
        return fingerprint(self.scenario.model_dump_json(), code_version(), digests, own_data)


def resolve(scenario: Scenario, load: Load = registry.load) -> Resolution:
    """Load everything that a scenario names, and write its defaults out."""
    plugins = load_plugins(scenario, load)
    text = _defense_text(scenario, plugins.protocol)
    fields: dict[str, Any] = {"defense": plugins.described("defense", text)}
    for kind in ("protocol", "attack", "mechanism"):
        fields[kind] = plugins.described(kind, getattr(scenario, kind))
    parts = {}
    for kind in ("dataset", "model", "partition"):
        text = getattr(scenario, kind)
        parts[kind] = registry.load(kind, text)
        fields[kind] = registry.describe(registry.split(text)[0], parts[kind])
    if scenario.declared is None:
        fields["declared"] = scenario.malicious
    if scenario.data_seed is None:
        fields["data_seed"] = scenario.seed
    fields["availability"] = availability.written(scenario.availability)
    fields["adapter"] = adapters.written(scenario.adapter)
    return Resolution(scenario.model_copy(update=fields), plugins, **parts)


def counts_votes(scenario: Scenario) -> bool:
    """Return whether the protocol's own rule is used, and with its server step counts votes."""
    protocol = registry.load("protocol", scenario.protocol)
    name = registry.split(scenario.defense)[0]
    return protocol.votes and name in ("own", protocol.default_defense)


def is_alphabet(alphabet: Any) -> TypeGuard[type[Payload]]:
    """Say whether this is a type of messages."""
    return isinstance(alphabet, type) and issubclass(alphabet, Payload)


def _must_be_alphabets(plugin: Any, name: str, alphabets: Any) -> None:
    """Raise `PluginError` unless this attribute of a plug-in names types of messages."""
    if not (isinstance(alphabets, tuple) and all(map(is_alphabet, alphabets))):
        raise Hook(plugin, name).wrong(f"must be types of messages, got {shown(alphabets)}")


def examine(rule: Defense[Any], n: int) -> None:
    """Raise `PluginError` unless what a rule says of ``n`` rows, and attacks ask, has its form."""
    survives = Hook(rule, "tolerates")
    count = survives.returned(int, n)
    survives.must(0 <= count <= n, f"a number of rows from 0 to {n}", count)
    ask(rule, "sensitivity", (float, int, type(None)), 1.0, n)
    floats = (torch.float64, torch.float32)
    for name, argument, rows, dtypes in (
        ("order_weights", n, n, floats),
        ("select", torch.zeros(3, 3), 3, (torch.bool,)),
        ("candidates", torch.zeros(3, 3), 3, (torch.bool,)),
    ):
        hook = Hook(rule, name)
        answer = hook(argument)
        good = isinstance(answer, Tensor) and answer.shape == (rows,) and answer.dtype in dtypes
        types = " or ".join(map(str, dtypes))
        hook.must(answer is None or good, f"None or ({rows},) of {types}", answer)
