"""The Python interface: plug-ins as objects, models that are kept, errors that speak Python."""

import copy
import hashlib
import linecache
import re
import reprlib
import subprocess
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fedbench
from fedbench import play, sweep
from fedbench.api import Attack, AttackView, Defense, ServerView
from fedbench.core import registry
from fedbench.core.errors import (
    ConfigError,
    FedbenchError,
    Incompatible,
    PluginError,
    UnknownPluginError,
)
from fedbench.core.rng import Key
from fedbench.data.datasets import Data
from fedbench.data.own import from_arrays
from fedbench.data.partitions import Partition
from fedbench.experiment.prepare import load_pool, prepare
from fedbench.experiment.record import Source
from fedbench.experiment.scenario import Scenario
from fedbench.payload import Payload
from fedbench.public.words import in_python
from fedbench_defenses.mixing import NNM

TINY: dict[str, Any] = {"clients": 5, "per_round": 4, "rounds": 1, "epochs": 1, "malicious": 0.4}


@dataclass(frozen=True, kw_only=True)
class Louder(Attack):
    """Send the honest message many times over.

    Args:
        times: Factor of every value.
        tone: A word.
    """

    times: float = 3.0
    tone: str = "low"

    def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
        return view.own.nearest(view.own.values() * self.times), memory


@dataclass(frozen=True, kw_only=True)
class Least(Defense[Payload]):
    """Take the least of every coordinate.

    Args:
        f: Rows that may be malicious.
    """

    f: int | None = None

    def tolerates(self, n: int) -> int:
        return 0

    def aggregate(self, received: Payload, state: Any, view: ServerView) -> tuple[Any, Any]:
        return received.values().amin(dim=0), state


@dataclass(frozen=True, kw_only=True)
class Halves(Partition):
    """Deal the samples in turn."""

    def split(
        self,
        y: torch.Tensor,
        clients: int,
        classes: int,
        key: Key,
        owner: torch.Tensor | None = None,
    ) -> list[torch.Tensor]:
        return [torch.arange(i, len(y), clients) for i in range(clients)]


@dataclass(frozen=True, kw_only=True)
class Shifted(Attack):
    """Hold a tensor, which no text can say."""

    by: torch.Tensor = torch.zeros(1)  # noqa: RUF009


def test_plugins_as_objects_play_what_their_texts_would() -> None:
    scenario = Scenario(attack=Louder(times=5), defense=Least(f=1), **TINY)
    assert (scenario.attack, scenario.defense) == ("louder:times=5,tone=low", "least:f=1")
    record = play(scenario)
    assert record.scenario.attack == "louder:times=5.0,tone=low"
    again = play(Scenario(attack="louder:times=5,tone=low", defense="least:f=1", **TINY))
    assert again.id == record.id
    assert again.result == record.result


def test_a_plugin_of_ours_as_an_object_is_the_installed_one() -> None:
    rule = registry.load("defense", "nnm:f=1+multi-krum:f=1")
    fsl = registry.load("protocol", "fsl:k=0.3")
    scenario = Scenario(protocol=fsl, defense=rule)
    assert scenario.defense.startswith("nnm:f=1")
    assert registry.load("defense", scenario.defense) == rule
    assert registry.load("protocol", scenario.protocol) == fsl
    assert registry._HERE == {}


def test_a_record_says_that_nobody_installed_the_plugin_and_which_source_it_had() -> None:
    record = play(Scenario(attack=Louder(), **TINY))
    (source,) = record.sources
    content = Path(__file__).read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert source == Source(module="test_public", package="", version="", url="", sha256=digest)


def test_the_source_of_a_class_in_a_notebook_is_that_of_its_cell() -> None:
    cell = (
        "from dataclasses import dataclass\nfrom fedbench.api import Attack\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Cell(Attack):\n"
        "    def craft(self, view, memory):\n        return view.own, memory\n"
    )
    digests = []
    for name, text in (("<cell 1>", cell), ("<cell 2>", cell), ("<cell 3>", cell + "# else\n")):
        lines = text.splitlines(keepends=True)
        linecache.cache[name] = (len(text), None, lines, name)
        space: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(text, name, "exec"), space)
        registry._HERE.clear()
        digests.append(play(Scenario(attack=space["Cell"](), **TINY)).sources[0].sha256)
    assert digests[0] == digests[1] != digests[2]


def test_a_class_is_registered_for_this_process_and_a_cell_may_run_again() -> None:
    fedbench.register("attack", "shout")(Louder)
    assert Scenario(attack=Louder(times=2)).attack == "shout:times=2,tone=low"
    fedbench.register("attack", "shout")(Louder)
    assert "shout" in registry.names("attack")
    assert fedbench.plugins("attack")["shout"] is Louder
    with pytest.raises(ConfigError, match="a name of its own, got 'shout', which is taken"):
        fedbench.register("attack", "shout")(replace_class())
    with pytest.raises(ConfigError, match="a name of its own, got 'alie', which is taken"):
        fedbench.register("attack", "alie")(Louder)
    with pytest.raises(UnknownPluginError, match=r"must be a frozen dataclass that inherits"):
        fedbench.register("defense", "shout")(Louder)
    with pytest.raises(ConfigError, match="small letters, digits, hyphens, got 'Shout'"):
        fedbench.register("attack", "Shout")(Louder)


def echo(times: float) -> Attack:
    """Return an attack whose source says nothing of ``times``."""

    @dataclass(frozen=True, kw_only=True)
    class Echo(Attack):
        def craft(self, view: AttackView, memory: Any) -> tuple[Payload, Any]:
            return view.own.nearest(view.own.values() * times), memory

    return Echo()


def test_a_number_that_no_record_would_say_is_refused() -> None:
    why = r"^Echo.craft must read .* got times = 9.0 of the function around it; write self.times"
    with pytest.raises(ConfigError, match=why):
        Scenario(attack=echo(9.0))
    assert registry._HERE == {}


def test_a_repr_that_python_wrapped_reads_nothing_of_the_function_around_it() -> None:
    # From Python 3.13 on, `dataclass` itself wraps it so: `fillvalue` is reprlib's, not ours.
    @dataclass(frozen=True, kw_only=True, repr=False)
    class Terse(Attack):
        @reprlib.recursive_repr()
        def __repr__(self) -> str:
            return "Terse()"

    assert Scenario(attack=Terse(), **TINY).attack == "terse"


@dataclass(frozen=True, kw_only=True)
class Template(Attack):
    """Hold a vector, which no text describes."""

    of: torch.Tensor = None  # type: ignore[assignment]


def replace_class() -> type[Attack]:
    @dataclass(frozen=True, kw_only=True)
    class Other(Attack):
        """Do nothing that is worth a name."""

    return Other


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attack": Louder}, r"Scenario.attack must be a plug-in or its text, .*write Louder\(\)"),
        ({"attack": Least()}, "must be a plug-in or its text, got a Least; inherit fedbench.api:A"),
        (
            {"attack": lambda x: x},
            "attack must be a plug-in or its text, got a function; inherit f",
        ),
        (
            {"defense": (1, "krum")},
            r"plug-in or its text, got \(1, 'krum'\); inherit fedbench.api:D",
        ),
        (
            {"defense": NNM()},
            r"must be a rule, got the prefilter NNM; write NNM\(\).before\(Median",
        ),
        (
            {"attack": Template()},
            "Template.of must be a number, a word .* got the type Tensor; make",
        ),
        ({"attack": Shifted()}, "Shifted.by must be a number, a word or None.*got a tensor"),
        ({"rounds": 0}, "Scenario.rounds must be >= 1, got 0"),
        ({"per_round": 60}, "Scenario.per_round must be <= Scenario.clients = 50, got 60"),
        ({"rounds": "many"}, "^Scenario.rounds must be a number, got the text 'many'$"),
        ({"round": 3}, r"^Scenario.round is no field; did you mean rounds\?$"),
        ({"device": "cpu"}, r"device is no field; write fedbench.play\(scenario, device=...\)$"),
        ({"stream": True}, r"stream is no field; write fedbench.play\(scenario, stream=...\)$"),
        ({"seeds": [0]}, r"seeds is no field; write fedbench.sweep\(scenarios, seeds=...\)$"),
        ({"lr": 0.1}, r"lr is no field; write it behind the protocol: protocol='fedavg:lr=0.1'$"),
        ({"attack": ["alie"]}, "must be a plug-in or its text, got a list of 1; for several write"),
        ({"model": {"a": 1}}, "^Scenario.model must be a plug-in or its text, got a dict of 1$"),
        ({"availability": "drop:p=0.1"}, "^Scenario.availability must be one of none, dropout, tr"),
        ({"knowledge": "everything"}, "^Scenario.knowledge must be own, colluders or all, each"),
        ({"delta": 2}, r"^Scenario.delta must be in \[1e-100, 1\), got 2.0$"),
        ({"adapter": "lora:r=4"}, "^Scenario.adapter lora has no parameter 'r'; parameters: rank"),
        ({"zzz": 3}, r"^Scenario.zzz is no field; known: protocol, attack, .*data_seed$"),
    ],
)
def test_what_is_no_scenario_is_refused_in_the_words_of_python(
    fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(FedbenchError, match=message):
        Scenario(**fields)


def test_the_words_of_a_plugin_stay_as_they_are() -> None:
    said = PluginError("attack moody (package m 1.0)", "craft", "raised KeyError: '--rounds'", 3)
    with pytest.raises(PluginError, match="raised KeyError: '--rounds'"), in_python():
        raise said


def test_a_word_that_its_text_does_not_keep_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"Louder.tone must be the same when it is read from"):
        Scenario(attack=Louder(tone="LOW"))


def test_one_object_takes_no_parameters_and_a_partition_of_ones_own_is_in_the_id() -> None:
    pool = load_pool("digits")
    name = Scenario(dataset=Data(pool.x[:600], pool.y[:600], 10, 16.0, pool.mean, pool.std)).dataset
    with pytest.raises(ConfigError, match="without parameters, as one object is, got"):
        registry.load("dataset", f"{name}:classes=3")
    record = play(Scenario(partition=Halves(), **TINY | {"malicious": 0.0}))
    assert [source.module for source in record.sources] == ["test_public"]


def test_errors_of_a_run_name_fields_and_arguments_where_the_command_names_options() -> None:
    with pytest.raises(ConfigError, match=r"^Scenario.defense krum with f = 9 needs at least 21"):
        play(Scenario(defense="krum:f=9"))
    with pytest.raises(ConfigError, match=r"^device must be auto, cpu, cuda or mps, got 'tpu'$"):
        play(Scenario(**TINY), device="tpu")
    with pytest.raises(ConfigError, match=r"^isolate must have an attack that a package"):
        play(Scenario(attack=Louder(), **TINY), isolate=True)
    with pytest.raises(ConfigError, match=r"^isolate must have an attack that a package"):
        sweep(Scenario(attack=Louder(), **TINY), isolate=True)
    for name, value, message in (
        ("callbacks", print, r"must be a list, got a builtin_function_or_method; write \[it\]"),
        ("data", "digits", r"must be samples, got 'digits'; write fedbench.data.own.from_arrays"),
        ("checkpoint", "run", r"must be a Checkpoint, got 'run'; write fedbench.Checkpoint\(Path"),
    ):
        with pytest.raises(ConfigError, match=f"^{name} {message}"):
            play(Scenario(**TINY), **{name: value})  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match=r"^workers must be >= 0, got -1"):
        sweep(Scenario(**TINY), workers=-1)
    with pytest.raises(ConfigError, match=r"not installed; for several write a Scenario for each$"):
        sweep(Scenario(attack="alie,ipm"))


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["fedavg", "fedpm:final=sample"])
def test_the_model_that_is_returned_is_the_one_that_was_evaluated(
    protocol: str, tmp_path: Path
) -> None:
    scenario = Scenario(protocol=protocol, **TINY | {"malicious": 0.0, "rounds": 2})
    record, model = play(scenario, return_model=True)
    data = load_pool("digits")
    rows = torch.cat(prepare(scenario).population.judged)
    right = model.predict(data.floats(rows)).argmax(dim=1) == data.y[rows]
    assert float(right.double().mean()) == pytest.approx(record.result.accuracy, abs=1e-12)
    model.save(tmp_path / "model.safetensors", record)
    kept = load_file(tmp_path / "model.safetensors")
    assert kept.keys() == model.state_dict().keys()
    assert all(torch.equal(kept[name], x) for name, x in model.state_dict().items())


def test_an_ensemble_is_saved_member_by_member_and_is_no_single_state_dict(tmp_path: Path) -> None:
    _, model = play(Scenario(**TINY), return_model=True)
    twice = replace(model, members=model.members * 2)
    twice.save(tmp_path / "two.safetensors")
    assert {"0.conv1", "1.conv1"} <= load_file(tmp_path / "two.safetensors").keys()
    with pytest.raises(ConfigError, match="got an ensemble of 2"):
        twice.state_dict()


def test_a_round_of_any_size_is_streamed_where_it_is_asked_for() -> None:
    small = TINY | {"rounds": 1, "model": "micro"}
    fitting = Scenario(defense="median", **small)
    whole = play(fitting, chunk=2)
    streamed = play(fitting, chunk=2, stream=True)
    assert [r.uplink_bits for r in streamed.rounds] == [r.uplink_bits for r in whole.rounds]
    reading = Scenario(defense="signguard", **small)
    with pytest.raises(Incompatible, match="signguard reads each of them; use defense='median'"):
        play(reading, stream=True)


@pytest.mark.slow
def test_a_sweep_returns_its_records_in_order_and_plays_nothing_twice(tmp_path: Path) -> None:
    loud = Scenario(attack=Louder(), **TINY)
    quiet = Scenario(**TINY)
    records = sweep([loud, quiet, loud], seeds=[1, 0], out=tmp_path)
    assert [r.scenario.seed for r in records] == [1, 0, 1, 0, 1, 0]
    attacks = [r.scenario.attack for r in records]
    assert attacks[::2] == ["louder:times=3.0,tone=low", "none", "louder:times=3.0,tone=low"]
    assert list(records[:2]) == list(records[4:])
    seconds = [r.timing.seconds for r in sweep([loud, quiet, loud], seeds=[1, 0], out=tmp_path)]
    assert seconds == [r.timing.seconds for r in records]


def test_a_run_that_fails_does_not_end_the_others(tmp_path: Path) -> None:
    few = Scenario(attack=Louder(), **TINY | {"clients": 2000, "per_round": 2})
    with pytest.raises(ConfigError, match=r"dirichlet:minimum=10 needs.*the others are in"):
        sweep([few, Scenario(attack=Louder(), **TINY)], out=tmp_path)
    assert len(list(tmp_path.glob("*.json"))) == 1


def test_a_scenario_that_cannot_be_is_refused_by_its_place_before_anything_is_played(
    tmp_path: Path,
) -> None:
    fine = Scenario(attack=Louder(), **TINY)
    masked = Scenario(protocol="fedpm", mechanism="dp-fedavg", **TINY)
    with pytest.raises(Incompatible, match=r"^scenarios\[1\]: mechanism dp-fedavg needs updates"):
        sweep([fine, masked], out=tmp_path)
    with pytest.raises(Incompatible, match=r"^mechanism dp-fedavg needs updates"):
        sweep(masked, out=tmp_path)
    with pytest.raises(UnknownPluginError, match=r"^scenarios\[0\]: Scenario.attack 'nosuch'"):
        sweep([Scenario(attack="nosuch"), fine], out=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_failed_is_played_again_by_a_later_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = Scenario(attack=Louder(), **TINY)

    def broken(self: Louder, view: AttackView, memory: Any) -> Any:
        raise RuntimeError("out of order")

    with monkeypatch.context() as patch:
        patch.setattr(Louder, "craft", broken)
        with pytest.raises(ConfigError, match="out of order"):
            sweep(scenario, out=tmp_path)
    (record,) = sweep(scenario, out=tmp_path)
    assert record.scenario.attack == "louder:times=3.0,tone=low"


def test_finished_runs_outlive_one_that_fails_without_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    few = Scenario(attack=Louder(), **TINY | {"clients": 2000, "per_round": 2})
    fine = Scenario(attack=Louder(), **TINY)
    with pytest.raises(ConfigError, match="no other ran"):
        sweep(few)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match=f"the others are in {tmp_path}") as error:
        sweep([few, fine])
    (folder,) = tmp_path.iterdir()
    assert str(folder) in str(error.value)
    (again,) = sweep(fine, out=folder)
    assert list(fedbench.load(folder)) == [again]  # its seconds, too: it was not played again
    sweep(fine)
    assert list(tmp_path.iterdir()) == [folder]


def test_own_samples_are_named_by_their_digest_and_play() -> None:
    pool = load_pool("digits")
    mine = Data(pool.x[:600], pool.y[:600], 10, 16.0, pool.mean, pool.std)
    scenario = Scenario(dataset=mine, **TINY)
    assert scenario.dataset == f"given-{mine.identity[:16]}"
    record = play(scenario)
    assert record.data_digest == mine.digest
    titled = from_arrays(pool.x, pool.y, name="My scans (2nd)")
    assert Scenario(dataset=titled).dataset == f"my-scans-2nd-{titled.identity[:16]}"
    other = Data(pool.x[:599], pool.y[:599], 10, 16.0, pool.mean, pool.std)
    assert play(Scenario(dataset=other, **TINY)).id != record.id


def test_the_package_shows_what_it_offers_without_importing_torch() -> None:
    code = (
        "import sys, fedbench; assert {'play', 'sweep', 'register', 'plugins', 'Scenario',"
        "'Record', '__version__'} <= set(dir(fedbench)); fedbench.__version__;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.slow
def test_the_command_keeps_models_beside_records(tmp_path: Path, command: Any) -> None:
    options = ["--clients", 4, "--per-round", 2, "--rounds", 1, "--epochs", 1, "--malicious", 0]
    line = ["attack", "-p", "fedavg", "-a", "none", *options, "--seeds", 0, "--out", tmp_path]
    assert command(*line, "--save-model")[0] == 0
    (kept,) = tmp_path.glob("*.safetensors")
    assert kept.with_suffix(".json").exists()
    assert "conv1" in load_file(kept)
    kept.unlink()
    code, _, err = command(*line, "--save-model")
    assert (code, "played without --save-model" in err) == (2, True)


class Perceptron(torch.nn.Module):
    """Two linear layers."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(64, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.outer = torch.nn.Linear(width, 10)
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.outer(torch.relu(self.norm(self.inner(x.flatten(1)))))
        return out


def test_a_module_plays_and_its_trained_weights_go_back_into_it(tmp_path: Path) -> None:
    scenario = Scenario(model=Perceptron, protocol="fedavg", **TINY | {"rounds": 3})
    assert re.fullmatch(r"perceptron-[0-9a-f]{16}", scenario.model)
    record, model = play(scenario, return_model=True)
    assert record.parameters == 64 * 16 + 16 + 4 * 16 + 16 * 10 + 10
    mine = Perceptron().eval()
    mine.load_state_dict(model.state_dict())
    model.save(tmp_path / "mine.safetensors")
    assert load_file(tmp_path / "mine.safetensors").keys() == mine.state_dict().keys()
    assert "tensor(" not in repr(model)  # a notebook shows it
    x = load_pool("digits").floats(torch.arange(20))
    assert torch.allclose(mine(x).softmax(dim=1), model.predict(x), atol=1e-6)


class Unready(torch.nn.Module):
    """A module that forgets to call the constructor of its base."""

    def __init__(self) -> None:
        self.outer = torch.nn.Linear(64, 10)


def test_a_module_that_cannot_be_made_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigError, match=r"^Scenario.model must be made .*AttributeError: cannot"):
        Scenario(model=Unready)


def test_the_name_of_a_module_follows_its_weights_and_its_maker() -> None:
    one = Perceptron()
    assert Scenario(model=one).model == Scenario(model=copy.deepcopy(one)).model
    with torch.no_grad():
        one.outer.bias[3] += 1
    assert len({Scenario(model=m).model for m in (one, Perceptron(), Perceptron)}) == 3
    wide = Scenario(model=partial(Perceptron, width=8)).model
    assert wide.startswith("perceptron-")
    assert wide != Scenario(model=partial(Perceptron, width=9)).model
    assert Scenario(model=lambda: Perceptron(4)).model.startswith("lambda-")


def test_what_is_no_scenario_is_refused_in_one_line() -> None:
    text: Any = "fedavg"
    with pytest.raises(ConfigError, match=r"^play must be given a fedbench.Scenario, got 'f"):
        play(text)
    with pytest.raises(ConfigError, match=r"^sweep must be given a fedbench.Scenario, got 'f"):
        sweep([text])
    number: Any = 3
    with pytest.raises(ConfigError, match=r"^seeds must be a list of seeds like .*, got 3$"):
        sweep([Scenario()], seeds=number)


@pytest.mark.slow
@pytest.mark.parametrize("file", [True, False])
def test_a_sweep_at_the_top_level_is_played_by_processes_that_do_not_import_it(
    file: bool, tmp_path: Path
) -> None:
    script = tmp_path / "top.py"
    tiny = "fedbench.Scenario(clients=4, per_round=2, rounds=1, epochs=1)"
    text = f"import fedbench\nprint(len(fedbench.sweep({tiny}, seeds=[0, 1], workers=2)))\n"
    script.write_text(text)
    words = [sys.executable, str(script) if file else "-"]
    done = subprocess.run(words, input=text, capture_output=True, text=True)
    assert done.stdout == "2\n", done.stderr


def test_samples_that_are_no_data_are_refused_with_the_function_that_makes_them() -> None:
    pair: Any = (torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(ConfigError, match=r"^Scenario.dataset must be .*from_arrays\(x, y\)$"):
        Scenario(dataset=pair)
