"""The one-run bound and the one-shot estimate: a run with canaries, beside what it claims."""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedbench.audits import one_run, one_shot
from fedbench.audits.canaries import Canaries, Form, play, radius
from fedbench.audits.finding import AuditFinding, Method
from fedbench.audits.laws import Gaussians
from fedbench.audits.rates import check_confidence
from fedbench.core.errors import ConfigError, NoTheorem, require
from fedbench.experiment.compatibility import load_plugins
from fedbench.experiment.guarantee import guarantee
from fedbench.experiment.prepare import prepare
from fedbench.experiment.record import Privacy
from fedbench.experiment.scenario import Scenario
from fedbench.experiment.setup import Setup
from fedbench.experiment.state import RunState
from fedbench.run import begin

Rows = npt.NDArray[np.int64]
Laws = Callable[[Rows], Gaussians]
ADJACENCIES = ("zero-out", "replace-one")  # a canary that is not there is one that is replaced


def one_run_bound(scenario: Scenario, canaries: int, confidence: float) -> AuditFinding:
    """A lower bound from coins that decide which canaries are there, and guesses of these coins.

    A canary's score is the sum over rounds of ``<what is seen, u>``. The accountant is asked what
    the same run costs at zero-out, or at replace-one, of which zero-out is a case.

    References:
        Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023,
        https://arxiv.org/abs/2305.08846, Algorithm 1.
    """
    check_confidence(confidence)
    setup = ready(scenario, canaries)
    key = setup.secret.key("audit", "one-run")
    coins = key.fold("there").uniform(canaries) < 0.5
    birds = flock(setup, coins, "signs")
    state = begin(setup)
    scores = torch.zeros(canaries, dtype=torch.float64)
    for seen in play(setup, state, birds):
        for j, x in seen.items():
            scores[j] += float(x.double() @ birds.direction(j, len(x)).to(x).double())
    claim = claimed(setup, state)
    epsilon, guesses = one_run.best_guesses(scores.numpy(), coins.numpy(), claim.delta, confidence)
    evidence = (
        f"{guesses.right} of {guesses.made} guesses right, no word on {canaries - guesses.made} "
        f"canaries; all right would prove {guesses.best(confidence):.3g}"
    )
    found = _finding(setup, claim, canaries, "one-run", epsilon, evidence)
    return dataclasses.replace(found, confidence=confidence)


def one_shot_estimates(scenario: Scenario, canaries: int) -> list[AuditFinding]:
    """Two estimates from canaries that are all there: of the end of the run, and of its rounds.

    References:
        Andrew et al., "One-Shot Empirical Privacy Estimation for Federated Learning", ICLR 2024,
        https://arxiv.org/abs/2302.03098, Algorithms 2 and 3.
    """
    setup = ready(scenario, canaries)
    present = flock(setup, torch.ones(canaries, dtype=torch.bool), "sphere")
    others = Canaries(present.there, 0, 0.0, present.key.fold("unobserved"), "sphere")
    state = begin(setup)
    total = dict[int, Tensor]()
    largest = np.full((2, canaries), -math.inf)
    for seen in play(setup, state, present):
        for j, x in seen.items():
            total[j] = x.double() if j not in total else total[j] + x.double()
            for k, bird in enumerate((present, others)):
                largest[k, j] = max(largest[k, j], cosine(x, bird.direction(j, len(x))))
    claim = claimed(setup, state)
    took = np.array(sorted(total))
    require("canaries that took part", len(took), len(took) >= 4, ">= 4; more rounds have more")
    d = len(total[int(took[0])])
    final = np.array([cosine(total[j], present.direction(j, d)) for j in took.tolist()])

    def end(rows: Rows) -> Gaussians:
        return one_shot.from_final(final[rows], d)

    def best(rows: Rows) -> Gaussians:
        return one_shot.from_all(largest[0, took[rows]], largest[1, took[rows]])

    return [
        _estimate(setup, claim, len(took), "one-shot", end),
        _estimate(setup, claim, len(took), "one-shot, max", best),
    ]


def _estimate(setup: Setup, claim: Privacy, took: int, method: Method, laws: Laws) -> AuditFinding:
    epsilon, error = one_shot.estimate(laws, took, claim.delta)
    fit = laws(np.arange(took))
    cosines = "largest cosines of a round" if "max" in method else "cosines"
    evidence = (
        f"{cosines} {fit.mean:.3g} (std {fit.std:.2g}), without canaries "
        f"{fit.other:.3g} (std {fit.other_std:.2g})"
    )
    found = _finding(setup, claim, took, method, epsilon, evidence)
    return dataclasses.replace(found, error=error)


def _finding(
    setup: Setup, claim: Privacy, canaries: int, method: Method, epsilon: float, evidence: str
) -> AuditFinding:
    return AuditFinding(
        method=method,
        epsilon=epsilon,
        claimed=math.inf if claim.epsilon is None else claim.epsilon,
        delta=claim.delta,
        unit=claim.unit,
        adjacency=claim.adjacency,
        confidence=None,
        audited=_audited(setup, canaries),
        evidence=evidence,
        paper=claim.paper,
    )


def cosine(x: Tensor, u: Tensor) -> float:
    """Cosine of ``x`` and a unit vector; 0 where nothing moved."""
    norm = float(torch.linalg.vector_norm(x.double()))
    return float(x.double() @ u.to(x).double()) / norm if norm else 0.0


def ready(scenario: Scenario, canaries: int) -> Setup:
    """The run, at the adjacency of its canaries.

    Raises:
        ConfigError: too few clients, or a mechanism that canary clients say nothing about.
        NoTheorem: there is none for what they do.
    """
    mechanism = load_plugins(scenario).mechanism
    if mechanism.unit != "client":
        raise ConfigError(
            f"--mechanism {scenario.mechanism.partition(':')[0]} covers an {mechanism.unit}, of "
            "which a canary client says nothing; use --method mechanism"
        )
    asked = scenario.adjacency
    require("--adjacency", asked, asked is None or asked in ADJACENCIES, " or ".join(ADJACENCIES))
    refused: NoTheorem | None = None
    for adjacency in ADJACENCIES if asked is None else (asked,):
        try:
            return prepare(scenario.model_copy(update={"adjacency": adjacency}), "cpu")
        except NoTheorem as error:
            refused = refused or error
    assert refused is not None
    raise refused


def flock(setup: Setup, there: Tensor, form: Form) -> Canaries:
    """The last clients of the run."""
    first = setup.scenario.clients - len(there)
    key = setup.secret.key("audit", form)
    return Canaries(there, first, radius(setup), key, form)


def claimed(setup: Setup, state: RunState) -> Privacy:
    """Return the accountant's price of the run that was played.

    Raises:
        ConfigError: nothing is claimed.
    """
    found = guarantee(setup, state.ledger)
    if found is None:
        raise ConfigError(
            f"--mechanism {setup.scenario.mechanism.partition(':')[0]} claims nothing that could "
            "be audited; fedbench list mechanisms"
        )
    return found


def _audited(setup: Setup, canaries: int) -> str:
    scenario = setup.scenario
    rounds = f"{scenario.rounds} round{'s' * (scenario.rounds > 1)}"
    who = f"{canaries} canaries among {scenario.clients} clients"
    sight = {
        "messages": "messages",
        "sum": "sums",
        "hidden-sum": "sums, not who took part,",
        "model": "models",
    }
    return f"{who}, {rounds}, {sight[setup.sees]} seen"
