"""What `fedbench list` and `fedbench show` print."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version

import pytest
from conftest import Install
from rich.console import Console

from fedbench.cli.catalogue import list_plugins, show_plugin
from fedbench.cli.docstrings import Doc
from fedbench.core import registry
from fedbench.core.errors import UnknownPluginError
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.scenario import Scenario

INSTALLED = [(kind, name) for kind in registry.KINDS for name in registry.names(kind)]


def printed(command: Callable[..., None], *arguments: str | None) -> str:
    out = io.StringIO()
    command(Console(file=out, width=80, force_terminal=False), *arguments)
    return out.getvalue()


def shown(name: str, kind: str | None = None) -> str:
    return printed(show_plugin, name, kind)


def listed(kind: str | None = None) -> str:
    return printed(list_plugins, kind)


def words(text: str) -> str:
    return " ".join(text.split())


SOURCE = """
from dataclasses import dataclass
from fedbench import api

@dataclass(frozen=True)
class Mean(api.Attack):
    '''Send [the mean] of them.'''
"""


def test_a_name_that_two_packages_claim_is_refused_and_says_which_they_are(
    install: Install,
) -> None:
    install(SOURCE, {"sign-flip": "Mean", "their-own": "Mean"})
    refused = (
        "--attack 'sign-flip' must be the name of one package's plug-in, got it from "
        f"fedbench-toolkit {version('fedbench-toolkit')} and outsider 1.0; uninstall one of them "
        "or rename its entry point"
    )
    for load in (registry.plugin, registry.load):
        with pytest.raises(UnknownPluginError) as error:
            load("attack", "sign-flip")
        assert str(error.value) == refused
    with pytest.raises(UnknownPluginError):
        load_plugins(Scenario(attack="sign-flip"))
    assert registry.plugin("attack", "their-own").__name__ == "Mean"
    text = words(listed("attack"))
    assert "and outsider 1.0; uninstall one of them" in text
    assert "Every malicious client sends" in text  # the others are listed


def test_the_list_names_every_plugin_of_a_kind_and_what_it_does() -> None:
    text = {kind: words(listed(kind)) for kind in registry.KINDS}
    for kind, name in INSTALLED:
        summary = Doc.of(registry.plugin(kind, name)).summary
        assert words(f"{name} {summary.replace('``', '`')}") in text[kind]


def test_a_plugin_that_cannot_be_imported_is_listed_with_its_error_and_brackets_are_no_markup(
    install: Install,
) -> None:
    install(SOURCE, {"broken": "NobodyHasIt", "mean": "Mean"})
    text = words(listed("attacks"))
    assert "AttributeError: module 'outsider' has no attribute 'NobodyHasIt'" in text
    assert "Every malicious client sends" in text  # those after it in the alphabet
    assert "Send [the mean] of them." in text
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
    typed = registry.describe(name, registry.load(kind, name), every=True)
    pasted = f"--defense {typed}+RULE" if kind == "prefilter" else f"--{kind} {typed}"
    assert long in ([], [f"  {pasted}"])  # what is to be pasted stays one line


def test_a_class_inherits_descriptions_unless_it_has_its_own_and_no_summary() -> None:
    @dataclass
    class Base:
        """Send the negative.

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

    @dataclass
    class Bare(Base):
        f: int = 1

    assert Doc.of(Derived).args == {"f": "Ours.", "g": "Theirs too."}
    assert Bare.__doc__ is not None  # dataclass wrote the signature there
    assert Doc.of(Bare).summary == ""


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("dyn-opt", "the messages of all clients, the benign ones included; the server's rule"),
        ("a3fl", "of all its own clients; samples of its own clients, with loss and gradient"),
        ("rank-reversal", "works on Rankings, TopRankings"),
        ("sign-flip", "works on messages of any protocol"),
        ("trimmed-mean", "at least 3 with f=1, 5 with f=2, 11 with f=5"),
        ("multi-krum", "at least 5 with f=1, 7 with f=2, 13 with f=5"),
        ("median", "clients a round at least 1"),
        ("fsl", "clients send Rankings"),
        ("fsl", "every client counts the same, and tables call it vote"),
        ("fedavg", "default defense mean; clients weighted by size"),
        ("fedavg", "`w <- w + sum_i (n_i / n) (w_i - w)`"),  # from its docstring
        # described in the class that both inherit, each with a default of its own
        ("fsl", "lr=0.4 float. Learning rate of a local step."),
        ("fedavg", "lr=0.01 float. Learning rate of a local step."),
    ],
)
def test_a_plugin_says_what_it_needs_and_does(name: str, said: str) -> None:
    assert said in words(shown(name))


def test_without_a_kind_all_kinds_are_listed_and_shown() -> None:
    assert listed() == "".join(listed(kind) for kind in registry.KINDS)
    assert shown("none") == shown("none", "attacks") + shown("none", "mechanism")
    assert "mechanism none" in shown("none")
    assert "to query" not in shown("sign-flip")


def test_an_unknown_name_is_compared_with_the_names_of_all_kinds() -> None:
    with pytest.raises(UnknownPluginError, match="did you mean the defense 'trimmed-mean'"):
        shown("trimed-mean")
    with pytest.raises(UnknownPluginError, match="'median' is not an installed attack; did you"):
        shown("median", "attack")
    with pytest.raises(UnknownPluginError, match="`fedbench list` shows what is"):
        shown("qqqqqq")
