"""Flags of a run: reasons to doubt its own evaluation."""

import statistics

import torch
from torch import Tensor

from fedbench.adversary.metrics import NOT_FINITE
from fedbench.api import hooks
from fedbench.experiment.measurements import Result, Round
from fedbench.experiment.setup import Setup

MAYBE = (Tensor, type(None))


def flags(setup: Setup, rounds: list[Round], result: Result) -> list[str]:
    """Return reasons to doubt this evaluation, worded so that runs share a line.

    How often something happened is in the rounds.
    """
    doubts = []
    if setup.scenario.attack.partition(":")[0] != "none":
        doubts += _of_attack(setup, rounds)
    else:
        chance = 1 / setup.population.data.classes
        if result.accuracy < 2 * chance:
            doubts.append(f"clean accuracy {result.accuracy:.3f} is near chance ({chance:.3f})")
    doubts += _of_server(setup, rounds, result)
    if result.skipped_rounds:
        doubts.append(f"{result.skipped_rounds} of {len(rounds)} rounds were skipped")
    return doubts


def _of_attack(setup: Setup, rounds: list[Round]) -> list[str]:
    """Return doubts about an attack: it does nothing, ends on a bound, or is not seen."""
    doubts = []
    attacked = [r for r in rounds if r.malicious and not r.skipped]
    acted = [r for r in attacked if setup.acts(r.step)]
    gains = [r.gain_mean for r in acted if r.gain_mean is not None]
    if gains and statistics.median(gains) < 1e-6:
        doubts.append("the attack would not move the plain mean: is it one?")
    if any(r.notes.get("ended") == "bound" and _searched(r) for r in attacked):
        doubts.append("the attack's search ended on its bound in some rounds")
    if any(r.notes.get("gamma", r.notes.get("lambda")) == 0 for r in attacked):
        doubts.append("the attack's search found no strength above 0 in some rounds")
    if not attacked:
        doubts.append("no malicious client was ever sampled, or every round was skipped")
    elif not acted and setup.scenario.attack_from < len(rounds):  # else it is meant to be so
        doubts.append("no malicious client was sampled in a round in which the attack acted")
    sent = sum(r.malicious for r in rounds if setup.acts(r.step))
    refused = sum(r.rejected_malicious for r in rounds if setup.acts(r.step))
    if refused > sent / 2:
        share = "all" if refused == sent else "most"
        doubts.append(f"{share} malicious messages were rejected")
    if any(2 * r.malicious >= len(r.clients) for r in rounds):
        doubts.append("the adversary had at least half of the rows in some rounds")
    return doubts


def _of_server(setup: Setup, rounds: list[Round], result: Result) -> list[str]:
    """Return doubts about the defense, and about what the server deployed."""
    doubts = []
    honest = sum(len(r.clients) - r.malicious for r in rounds)
    rejected = sum(r.rejected_honest for r in rounds)
    if rejected > honest / 2:
        doubts.append(f"the server rejected {rejected} of {honest} honest messages")
    always = hooks.ask(setup.plugins.defense, "select", MAYBE, torch.zeros(3, 3)) is not None
    wronged = result.false_positive_rate or 0.0
    if wronged > 0.5 and not always:  # a rule that selects always leaves some out
        doubts.append(f"the rule left out {100 * wronged:.0f} % of the honest messages")
    if result.loss is None:
        doubts.append("the deployed model's scores are not finite: such images count as wrong")
    fell_back = {str(r.findings["fell_back"]) for r in rounds if "fell_back" in r.findings}
    doubts += [f"the rule fell back in some rounds: {why}" for why in sorted(fell_back)]
    if any(NOT_FINITE in r.findings for r in rounds):
        doubts.append("the rule answered NaN or infinity in some rounds")
    stopped = {str(r.findings["stopped"]) for r in rounds if "stopped" in r.findings}
    doubts += [f"the rule stopped early in some rounds: {why}" for why in sorted(stopped)]
    return doubts


def _searched(played: Round) -> bool:
    return played.notes.get("search") != "unbounded"
