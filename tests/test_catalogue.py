"""What `fedbench list` and `fedbench show` print."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path

import pytest
from rich.console import Console

from fedbench.cli.catalogue import list_plugins, show_plugin
from fedbench.cli.docstrings import Doc
from fedbench.core import registry
from fedbench.core.errors import ConfigError, UnknownPluginError
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.scenario import Scenario

INSTALLED = [(kind, name) for kind in registry.KINDS for name in registry.names(kind)]


def listed(kind: str | None = None) -> str:
    out = io.StringIO()
    list_plugins(Console(file=out, width=80, force_terminal=False), kind)
    return out.getvalue()


def shown(name: str, kind: str | None = None) -> str:
    out = io.StringIO()
    show_plugin(Console(file=out, width=80, force_terminal=False), name, kind)
    return out.getvalue()


def words(text: str) -> str:
    """Without line breaks and indentation."""
    return " ".join(text.split())


@pytest.fixture
def look_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An installed package of somebody else whose attack has the name of a built-in one."""
    info = tmp_path / "stranger-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 2.0\n")
    (info / "entry_points.txt").write_text(
        "[fedbench.attacks]\nsign-flip = fedbench.api:Attack\ntheir-own = stranger_attack:Attack\n"
    )
    (tmp_path / "stranger_attack.py").write_text(
        "from dataclasses import dataclass\nfrom fedbench import api\n\n\n"
        "@dataclass(frozen=True)\nclass Attack(api.Attack):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._points.cache_clear()
    yield
    monkeypatch.undo()
    registry._points.cache_clear()


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package of somebody else, with two attacks of which one cannot be imported."""
    info = tmp_path / "foreign-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[fedbench.attacks]\nbroken = foreign_broken:Attack\nmean = foreign_attacks:Mean\n"
    )
    (tmp_path / "foreign_broken.py").write_text("import a_package_that_nobody_has\n")
    (tmp_path / "foreign_attacks.py").write_text(
        "from dataclasses import dataclass\nfrom fedbench.api import Attack\n\n\n"
        '@dataclass(frozen=True)\nclass Mean(Attack):\n    """Send [the mean] of them."""\n'
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    registry._points.cache_clear()
    yield tmp_path
    monkeypatch.undo()
    registry._points.cache_clear()


@pytest.mark.usefixtures("look_alike")
def test_a_name_that_two_packages_claim_is_refused_and_says_which_they_are() -> None:
    refused = (
        "--attack 'sign-flip' must be the name of one package's plug-in, got it from "
        f"fedbench-toolkit {version('fedbench-toolkit')} and stranger 2.0; uninstall one of them "
        "or rename its entry point"
    )
    for load in (registry.plugin, registry.load):
        with pytest.raises(UnknownPluginError) as error:
            load("attack", "sign-flip")
        assert str(error.value) == refused
    with pytest.raises(UnknownPluginError):
        load_plugins(Scenario(attack="sign-flip"))
    assert registry.plugin("attack", "their-own").__name__ == "Attack"
    text = words(listed("attack"))
    assert "and stranger 2.0; uninstall one of them" in text
    assert "Every malicious client sends" in text  # the others are listed


@pytest.mark.parametrize("kind", registry.KINDS)
def test_the_list_names_every_plugin_of_a_kind_and_what_it_does(kind: str) -> None:
    text = words(listed(kind))
    for name in registry.names(kind):
        summary = Doc.of(registry.plugin(kind, name)).summary
        assert words(f"{name} {summary.replace('``', '`')}") in text


def test_the_list_without_a_kind_holds_all_kinds() -> None:
    assert listed() == "".join(listed(kind) for kind in registry.KINDS)


def test_kinds_are_typed_in_singular_or_plural() -> None:
    assert listed("attacks") == listed("attack")
    assert "dyn-opt" in listed("attack")
    assert "trimmed-mean" not in listed("attack")


def test_an_unknown_kind_is_answered_with_the_kinds() -> None:
    with pytest.raises(UnknownPluginError, match=r"one of protocols, attacks, .*, got 'weapons'"):
        listed("weapons")


@pytest.mark.usefixtures("foreign")
def test_a_plugin_that_cannot_be_imported_is_listed_with_its_error() -> None:
    text = words(listed("attacks"))
    assert "ModuleNotFoundError: No module named 'a_package_that_nobody_has'" in text
    assert "Every malicious client sends" in text  # those after it in the alphabet


@pytest.mark.usefixtures("foreign")
def test_brackets_in_a_docstring_are_text_and_not_markup() -> None:
    assert "Send [the mean] of them." in listed("attacks")
    assert "Send [the mean] of them." in shown("mean", "attack")


@pytest.mark.parametrize(("kind", "name"), INSTALLED)
def test_every_plugin_can_be_shown_with_its_paper(kind: str, name: str) -> None:
    text = shown(name, kind)
    doc = Doc.of(registry.plugin(kind, name))
    assert text.startswith(f"{kind} {name}\n")
    assert words(doc.references.replace("``", "`")) in words(text)
    assert ("\npaper\n" in text) == bool(doc.references)
    assert "\x1b" not in text
    long = [line for line in text.splitlines() if len(line) > 80]
    typed = registry.describe(name, registry.load(kind, name))
    pasted = f"--defense {typed}+RULE" if kind == "prefilter" else f"--{kind} {typed}"
    assert long in ([], [f"  {pasted}"])  # what is to be pasted stays one line


@pytest.mark.parametrize(("kind", "name"), INSTALLED)
def test_every_parameter_of_every_plugin_is_described(kind: str, name: str) -> None:
    plugin = registry.plugin(kind, name)
    described = Doc.of(plugin).args
    assert [f.name for f in fields(plugin) if f.init and f.name not in described] == []


def test_an_inherited_parameter_has_the_description_of_its_class_and_the_default_of_this_one() -> (
    None
):
    assert "lr=0.4 float. Learning rate of a local step." in words(shown("fsl"))
    assert "lr=0.01 float. Learning rate of a local step." in words(shown("fedavg"))


def test_a_description_in_the_class_itself_wins_over_an_inherited_one() -> None:
    @dataclass
    class Base:
        """Base.

        Args:
            f: Theirs.
            g: Theirs too.
        """

    @dataclass
    class Derived(Base):
        """Derived.

        Args:
            f: Ours.
        """

    assert Doc.of(Derived).args == {"f": "Ours.", "g": "Theirs too."}


def test_a_class_without_docstring_does_not_borrow_one() -> None:
    @dataclass
    class Base:
        """Send the negative."""

    @dataclass
    class Bare(Base):
        f: int = 1

    assert Bare.__doc__ is not None  # dataclass wrote the signature there
    assert Doc.of(Bare).summary == ""


def test_an_attack_says_what_it_must_know_and_what_it_works_on() -> None:
    assert "the messages of all clients, the benign ones included; the server's rule" in words(
        shown("dyn-opt")
    )
    assert "to query" not in shown("sign-flip")
    assert "works on Rankings, TopRankings" in words(shown("rank-reversal"))
    assert "works on messages of any protocol" in words(shown("sign-flip"))


def test_a_defense_says_how_many_clients_it_needs_for_the_f_that_it_assumes() -> None:
    assert "at least 3 with f=1, 5 with f=2, 11 with f=5" in words(shown("trimmed-mean"))
    assert "at least 5 with f=1, 7 with f=2, 13 with f=5" in words(shown("multi-krum"))
    assert "clients a round at least 1" in words(shown("median"))


def test_a_protocol_says_what_it_sends_and_how_it_counts() -> None:
    assert "clients send Rankings" in words(shown("fsl"))
    assert "every client counts the same, and tables call it vote" in words(shown("fsl"))
    assert "default defense mean; clients weighted by size" in words(shown("fedavg"))


def test_a_formula_in_the_docstring_is_shown() -> None:
    assert "`w <- w + sum_i (n_i / n) (w_i - w)`" in shown("fedavg")


def test_a_name_with_parameters_is_no_plugin() -> None:
    with pytest.raises(ConfigError, match="without parameters, got 'sign-flip:scale=4'"):
        shown("sign-flip:scale=4")


def test_a_name_of_several_kinds_shows_all_of_them() -> None:
    text = shown("none")
    assert text == shown("none", "attacks") + shown("none", "mechanism")
    assert "mechanism none" in text


def test_an_unknown_name_is_compared_with_the_names_of_all_kinds() -> None:
    with pytest.raises(UnknownPluginError, match="did you mean the defense 'trimmed-mean'"):
        shown("trimed-mean")
    with pytest.raises(UnknownPluginError, match="'median' is not an installed attack; did you"):
        shown("median", "attack")
    with pytest.raises(UnknownPluginError, match="`fedbench list` shows what is"):
        shown("qqqqqq")
