"""``fedbench privacy figure5``: FedPM's Figure 5 as printed, corrected, and exact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

    from fedbench.privacy.figure5 import Figure5, Point
    from fedbench.tables.table import Line

EPSILONS = {
    "claimed\nε": "claimed",
    "\ntrue ε": "gaussian",
    "claimed\nmin": "claimed-min",
    "true\nmin": "honest-min",
    "exact\nε": "exact",
}
ERRORS = {
    "share\nof ones": "raw",
    "printed\ncorr.": "printed",
    "right\ncorr.": "inverted",
    "affine\nbits": "affine",
    "affine,\nclipped": "affine-clipped",
    "no\nbits": "no-bits",
}
NO_INVERSE = "*"


def figure5(
    delta: Annotated[float, typer.Option(help="of every epsilon; the paper's is 1/N^2")] = 1e-4,
    repetitions: Annotated[int, typer.Option(help="of the experiment, 2 or more")] = 2000,
    seed: Annotated[int, typer.Option(help="of theta, noise and bits")] = 0,
    out: Annotated[Path, typer.Option(help="folder for picture and numbers")] = Path("results"),
) -> None:
    """FedPM's Figure 5 again: epsilon against error, as printed, corrected, and exact.

    100 clients estimate the mean of 5 probabilities in [0.2, 0.8] from one noisy bit each.
    """
    from rich.console import Console

    from fedbench.cli.figure5_chart import draw
    from fedbench.core.errors import require
    from fedbench.core.files import writable, write_atomically
    from fedbench.experiment.scenario import LAST_SEED
    from fedbench.privacy.conversion import check_claim

    check_claim(delta)
    require("--repetitions", repetitions, repetitions >= 2, ">= 2")
    require("--seed", seed, 0 <= seed <= LAST_SEED, "in 0 .. 2**63 - 1")
    writable(out)
    from fedbench.privacy.figure5 import play

    figure = play(delta, seed, repetitions)
    picture, numbers = out / "figure5.png", out / "figure5.json"
    write_atomically(numbers, to_json(figure).encode())
    draw(figure, picture)
    console = Console()
    console.print(Report(figure))
    console.print(f"\nwrote {picture} and {numbers}", highlight=False, soft_wrap=True)


def to_json(figure: Figure5) -> str:
    """Everything, in full precision."""
    from fedbench.privacy import figure5 as setting

    where = {
        "clients": setting.N,
        "dimensions": setting.D,
        "c": setting.C,
        "data": setting.DATA,
        "error": "squared, summed over dimensions",
    }
    return json.dumps({"setting": where, **asdict(figure)}, indent=1) + "\n"


@dataclass(frozen=True, eq=False)
class Report:
    """For a terminal: what epsilons are, what errors are, and why they differ from the paper's.

    Args:
        figure: The experiment.
    """

    figure: Figure5

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Two kinds of tables, what their columns are, and the remarks."""
        from fedbench.tables.table import cell, grid, listed

        figure = self.figure
        title = "from strong noise to weak; errors on uniform theta"
        heads = ["\nsigma", *EPSILONS, *list(ERRORS)[:3]]
        yield grid(title, heads, rows(figure.claims, "uniform", heads), options)
        for data in figure.controls if figure.equal else ():
            yield ""
            heads = [list(EPSILONS)[-1], "\nsigma", *ERRORS]
            title = f"errors at one exact epsilon, on {data} theta"
            yield grid(title, heads, rows(figure.equal, data, heads), options)
        yield ""
        yield listed(captions(figure).items(), options)
        for remark in remarks(figure):
            yield ""
            yield cell(remark, options)


def rows(points: Sequence[Point], data: str, heads: Sequence[str]) -> list[Line]:
    """A line for each point."""
    from fedbench.tables.table import Line

    return [Line([text(point, data, head) for head in heads]) for point in points]


def text(point: Point, data: str, head: str) -> str:
    """One number; that of a formula without inverse is marked."""
    from fedbench.cli.codec_table import number
    from fedbench.privacy.figure5 import invertible

    if head in EPSILONS:
        return epsilon(point.epsilons[EPSILONS[head]])
    if head not in ERRORS:
        return f"{point.sigma:.3g}"
    error = number(point.errors[data][ERRORS[head]].mean)
    if ERRORS[head] != "printed":
        return error
    return error + (" " if invertible(point.sigma) else NO_INVERSE)


def epsilon(x: float) -> str:
    """Four digits, at most three of them after the point.

    >>> [epsilon(x) for x in (0.12, 8.9551, 13.461, 162.46)]
    ['0.120', '8.955', '13.46', '162.5']
    """
    return f"{x:.3f}" if x < 10 else f"{x:.2f}" if x < 100 else f"{x:.1f}"


def captions(figure: Figure5) -> dict[str, str]:
    """What the columns are."""
    from fedbench.privacy.figure5 import DATA, honest_cap, printed_cap

    measured = [error for point in figure.claims + figure.equal for error in point.errors.values()]
    spread = max(error.se / error.mean for errors in measured for error in errors.values())
    return {
        **DATA,
        "sigma": "of the noise on theta, before it is clipped and sampled",
        "claimed ε": "sigma = Delta sqrt(2 ln(1.25/delta)) / ε, Delta = 0.6 sqrt(5)",
        "true ε": "of that noise, by the exact trade-off of Gaussians",
        "claimed min": f"min{{claimed ε, {printed_cap(figure.delta):.3f}}}: amplified, the paper's",
        "true min": f"min{{true ε, {honest_cap(figure.delta):.3f}}}: amplified, as it holds",
        "exact ε": "of the bits: randomized response that flips with p(c) = E clip(c + noise)",
        "error": "|estimate - mean|^2 summed over the 5 coordinates, not divided by 5; "
        f"{figure.repetitions} repetitions, standard errors at most {100 * spread:.2g} %",
        "printed corr.": "the theta whose printed E clip(theta + noise) is nearest to the share; "
        f"{NO_INVERSE} where that formula falls somewhere, so has no inverse",
        "right corr.": "the inverse of the right formula, in [0.2, 0.8]",
        "affine bits": "Bern(1/2 + k (theta - 1/2)), k such that ε is the same: no bias",
        "no bits": "Gaussian noise on theta and nothing else, at the same ε",
    }


def remarks(figure: Figure5) -> list[str]:
    """Where the paper's numbers come from, and what they are worth."""
    from fedbench.cli.codec_table import number
    from fedbench.privacy.amplification import r_alpha
    from fedbench.privacy.figure5 import CLAIMED, ORDER, C, D, N, honest_cap, printed_cap

    paper, renyi = 1 / N**2, D * float(r_alpha([ORDER], C)[0])
    printed, honest, other = printed_cap(paper), honest_cap(paper), figure.delta != paper
    cap, best = printed_cap(figure.delta), honest_cap(figure.delta)
    true = dict(zip(CLAIMED, (point.epsilons["gaussian"] for point in figure.claims), strict=True))
    worth = ", ".join(f"{claimed:g} is {epsilon(true[claimed])}" for claimed in (1, 9, 12, 64))
    constant, free = (figure.controls["uniform"][name].mean for name in ("constant", "no-dp"))
    skewed = figure.controls["skewed"]["constant"].mean
    helped = {
        correction: ", ".join(
            f"on {data} theta at {helps(figure, data, name)}" for data in figure.controls
        )
        for correction, name in (("printed", "printed"), ("right", "inverted"))
    }
    return [
        "8.96: the paper calls it d r_alpha(c), yet 5 r_alpha(0.2) is at most 5 ln 4 = 6.931 at "
        f"any alpha. 5 r_5(0.2) + ln(1/delta)/4 = {renyi:.3f} + {printed - renyi:.3f} = "
        f"{printed:.3f} at delta = 1/N^2 is order 5 and the conversion of its Remark C.1: "
        "inferred, as the paper states no alpha. The honest value, at the best order, is "
        f"{honest:.3f}."
        + (f" At delta = {figure.delta:g} the two are {cap:.3f} and {best:.3f}." * other),
        f"sigma: its formula is a theorem for ε < 1 only. In truth claimed {worth}.",
        f"The constant wins: always saying 1/2 has error {number(constant)} on uniform theta, bits "
        f"without any noise {number(free)}, because the mean of that theta is 1/2; on skewed theta "
        f"the constant's is {number(skewed)}.",
        "Correction: the paper's last line has e^(-2(c-theta)-1) for "
        "e^(-(1-2c)(1-2 theta)/(2 sigma^2)). Correcting, it says, lowers the error also where ε is "
        f"below {cap:.2f}. Of the claimed ε above, the printed formula does so "
        f"{helped['printed']}; the right one {helped['right']}.",
    ]


def helps(figure: Figure5, data: str, name: str) -> str:
    """The claimed epsilons below the paper's 8.96 at which a correction beats the share of ones."""
    from fedbench.privacy.figure5 import CLAIMED, printed_cap

    found = [
        f"{claimed:g}"
        for claimed, point in zip(CLAIMED, figure.claims, strict=True)
        if claimed < printed_cap(figure.delta)
        and point.errors[data][name].mean < point.errors[data]["raw"].mean
    ]
    return ", ".join(found) or "none"
