"""Options of the command line: every one is explained, and those of a scenario are its fields."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from conftest import Command

from fedbench.cli import app
from fedbench.cli.attack import choose
from fedbench.cli.options import FIELDS
from fedbench.experiment.scenario import Scenario

GENERATED = ("--help", "--install-completion", "--show-completion")  # by typer, in its own words


def commands(command: Any, name: str = "fedbench") -> Iterator[tuple[str, Any]]:
    """Yield every command with the words that call it."""
    yield name, command
    for word, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{name} {word}")


def test_every_command_and_option_has_a_sentence_and_every_option_shows_its_default() -> None:
    missing = []
    options = 0
    for name, command in commands(typer.main.get_command(app)):
        if not command.help:
            missing.append(name)
        for parameter in command.get_params(typer.Context(command)):
            if parameter.opts[0] in GENERATED:
                continue
            options += 1
            text = parameter.help or ""
            shown = (parameter.default not in (None, []) and parameter.show_default) or (
                parameter.required or getattr(parameter, "is_flag", False) or "default" in text
            )
            if not (text.endswith(".") and len(text.split()) >= 3 and shown):
                missing.append(f"{name} {parameter.opts[0]}: {text}")
    assert missing == []
    assert options > 100


def test_every_field_of_a_scenario_has_a_description_and_one_panel() -> None:
    assert sorted(FIELDS) == sorted(Scenario.model_fields)
    for name, field in Scenario.model_fields.items():
        assert (field.description or "").endswith("."), name


@pytest.mark.parametrize(("name", "default"), [("attack", 50), ("privacy", 100), ("audit", 320)])
def test_a_field_has_the_default_of_its_command(
    name: str, default: int, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")  # at which the paragraphs are wrapped
    _, out, _ = command(name, "--help")
    assert name != "attack" or "two of them malicious. A preset has values of its own" in out
    (line,) = [line for line in out.splitlines() if "--clients" in line]
    assert f"[default: {default}]" in line


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("attack --protocol feda", {"fedavg"}),
        ("audit --adjacency z", {"zero-out"}),
        ("leaderboard pl", {"plan"}),
        ("attack --data", {"--dataset", "--data-seed"}),
        pytest.param("attack --preset dem", {"demo"}, marks=pytest.mark.slow),
        pytest.param("show trim", {"trimmed-mean"}, marks=pytest.mark.slow),
        ("list part", {"partitions"}),
    ],
)
def test_the_shell_completes_commands_options_plug_ins_and_choices(
    typed: str, offered: set[str]
) -> None:
    environment = {"_FEDBENCH_COMPLETE": "complete_bash", "COMP_WORDS": f"fedbench {typed}"}
    environment["COMP_CWORD"] = str(len(typed.split()))
    code = (
        "import sys; from fedbench.cli import main\n"
        "sys.modules['torch'] = None  # an import of it fails\n"
        "sys.argv = ['fedbench']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True
    )
    assert offered <= set(done.stdout.split()), done.stderr
    assert all(word.startswith(typed.split()[-1]) for word in done.stdout.split())


def test_the_help_of_a_command_with_generated_options_does_not_wait_for_torch() -> None:
    code = (
        "import sys; from fedbench.cli import main\n"
        "try: main(['attack', '--help'])\n"
        "except SystemExit: sys.exit(bool({'torch', 'numpy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--per-round" in done.stdout


def test_a_preset_keeps_its_values_but_those_that_were_typed() -> None:
    plan = choose(None, {"rounds": 3}, (4, 5), 0.3)
    assert plan.seeds == (4, 5)
    (first, *_), _ = plan.cells()
    assert (first.scenario.clients, first.scenario.rounds) == (10, 3)  # of the demo, and typed
    protocols = {cell.scenario.protocol for cell in plan.cells()[0]}
    assert protocols == {"fedavg:lr=0.05", "signsgd:lr=0.3", "fsl:lr=0.3"}
