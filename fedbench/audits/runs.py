"""The one-run bound and the one-shot estimates: audits of a run with canaries."""

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
ADJACENCIES = ("zero-out", "replace-one")  # an absent canary is one that was replaced
OBSERVED = {
    "messages": "messages",
    "sum": "sums",
    "hidden-sum": "sums, not who took part,",
    "model": "models",
}


def one_run_bound(scenario: Scenario, canaries: int, confidence: float) -> AuditFinding:
    """Return a lower bound from guesses of the coins that decide which canaries are present.

    A canary's score is the sum over rounds of ``<x, u>``, with ``x`` what is seen of it and ``u``
    its direction. The claim is the same run's epsilon at zero-out, or at replace-one, which
    includes zero-out.

    References:
        Steinke, Nasr, Jagielski, "Privacy Auditing with One (1) Training Run", NeurIPS 2023,
        https://arxiv.org/abs/2305.08846, Algorithm 1.
    """
    check_confidence(confidence)
    setup = ready(scenario, canaries)
    key = setup.secret.key("audit", "one-run")
    coins = key.fold("there").uniform(canaries) < 0.5
    planted = plant(setup, coins, "signs")
    state = begin(setup)
    scores = torch.zeros(canaries, dtype=torch.float64)
    for seen in play(setup, state, planted):
        for j, x in seen.items():
            scores[j] += float(x.double() @ planted.direction(j, len(x)).to(x).double())
    claim = claimed(setup, state)
    epsilon, guesses = one_run.best_guesses(scores.numpy(), coins.numpy(), claim.delta, confidence)
    evidence = (
        f"{guesses.right} of {guesses.made} guesses right, no word on {canaries - guesses.made} "
        f"canaries; all right would prove {guesses.best(confidence):.3g}"
    )
    return _finding(setup, claim, canaries, "one-run", epsilon, evidence, confidence=confidence)


def one_shot_estimates(scenario: Scenario, canaries: int) -> list[AuditFinding]:
    """Return two estimates from canaries that are all present: of the final model, and of all.

    References:
        Andrew et al., "One-Shot Empirical Privacy Estimation for Federated Learning", ICLR 2024,
        https://arxiv.org/abs/2302.03098, Algorithms 2 and 3.
    """
    setup = ready(scenario, canaries)
    present = plant(setup, torch.ones(canaries, dtype=torch.bool), "sphere")
    unused = Canaries(present.there, 0, 0.0, present.key.fold("unobserved"), "sphere")
    state = begin(setup)
    total = dict[int, Tensor]()
    largest = np.full((2, canaries), -math.inf)
    for seen in play(setup, state, present):
        for j, x in seen.items():
            total[j] = x.double() if j not in total else total[j] + x.double()
            for k, directions in enumerate((present, unused)):
                largest[k, j] = max(largest[k, j], cosine(x, directions.direction(j, len(x))))
    claim = claimed(setup, state)
    took = np.array(sorted(total))
    require("canaries that took part", len(took), len(took) >= 4, ">= 4; more rounds have more")
    d = len(total[int(took[0])])
    final = np.array([cosine(total[j], present.direction(j, d)) for j in took.tolist()])

    def of_final(rows: Rows) -> Gaussians:
        return one_shot.from_final(final[rows], d)

    def of_largest(rows: Rows) -> Gaussians:
        return one_shot.from_all(largest[0, took[rows]], largest[1, took[rows]])

    def estimate(method: Method, cosines: str, laws: Callable[[Rows], Gaussians]) -> AuditFinding:
        epsilon, error = one_shot.estimate(laws, len(took), claim.delta)
        fit = laws(np.arange(len(took)))
        evidence = (
            f"{cosines} {fit.mean:.3g} (std {fit.std:.2g}), without canaries "
            f"{fit.other:.3g} (std {fit.other_std:.2g})"
        )
        return _finding(setup, claim, len(took), method, epsilon, evidence, error=error)

    return [
        estimate("one-shot", "cosines", of_final),
        estimate("one-shot, max", "largest cosines of a round", of_largest),
    ]


def _finding(
    setup: Setup,
    claim: Privacy,
    canaries: int,
    method: Method,
    epsilon: float,
    evidence: str,
    confidence: float | None = None,
    error: float | None = None,
) -> AuditFinding:
    scenario = setup.scenario
    rounds = f"{scenario.rounds} round{'s' * (scenario.rounds > 1)}"
    clients = f"{canaries} canaries among {scenario.clients} clients"
    return AuditFinding(
        method=method,
        epsilon=epsilon,
        claimed=math.inf if claim.epsilon is None else claim.epsilon,
        delta=claim.delta,
        unit=claim.unit,
        adjacency=claim.adjacency,
        confidence=confidence,
        audited=f"{clients}, {rounds}, {OBSERVED[setup.sees]} seen",
        evidence=evidence,
        error=error,
        paper=claim.paper,
    )


def cosine(x: Tensor, u: Tensor) -> float:
    """Cosine of ``x`` and a unit vector; 0 if ``x`` is 0."""
    norm = float(torch.linalg.vector_norm(x.double()))
    return float(x.double() @ u.to(x).double()) / norm if norm else 0.0


def ready(scenario: Scenario, canaries: int) -> Setup:
    """Prepare the run, at an adjacency that covers its canaries.

    Raises:
        ConfigError: too few clients, or a mechanism that does not protect clients.
        NoTheorem: there is none for these adjacencies.
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


def plant(setup: Setup, there: Tensor, form: Form) -> Canaries:
    """Return canaries in place of the last clients of the run; ``there (m,)`` bool."""
    first = setup.scenario.clients - len(there)
    key = setup.secret.key("audit", form)
    return Canaries(there, first, radius(setup), key, form)


def claimed(setup: Setup, state: RunState) -> Privacy:
    """Return the guarantee that the accountant claims for the run that was played.

    Raises:
        ConfigError: nothing is claimed.
    """
    claim = guarantee(setup, state.ledger)
    if claim is None:
        raise ConfigError(
            f"--mechanism {setup.scenario.mechanism.partition(':')[0]} claims nothing that could "
            "be audited; fedbench list mechanisms"
        )
    return claim
