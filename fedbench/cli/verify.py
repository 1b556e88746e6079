"""``fedbench verify``: rules of other projects against the definitions of their papers."""

from __future__ import annotations

import typer
from rich.console import Console

from fedbench.cli import options as opt
from fedbench.core.errors import require
from fedbench.tables.table import Column, Line, Table
from fedbench.tables.terminal import grid


@opt.explained
def verify(
    context: typer.Context,
    packages: list[str],
    format: opt.Format = "table",
) -> int:
    """Try rules of other packages on rows: exit code 1 if one is not what its paper defines.

    A rule is tried with another seed, another order of the rows, a vector added to all, far rows on
    one side and on both, and whole models in float32, and compared with our rule of the same name.
    Every defect has a counterexample.

    Positional:
        packages: Packages to try: flwr, byzfl, byzpy.
    """
    from fedbench.peers.packages import installed_version
    from fedbench.tables.export import document
    from fedbench.verify.checks import CHECKS
    from fedbench.verify.checks import verify as tried
    from fedbench.verify.subjects import SUBJECTS, UNTRIED

    opt.chosen("--format", format, ("table", "json"))
    for package in packages:
        require("packages", package, package in SUBJECTS, ", ".join(SUBJECTS))
    results = []
    for package in packages:
        here = installed_version(package)
        for subject in SUBJECTS[package]:
            results.append((subject, here, tried(subject)))
    if format == "json":
        shown = [
            {
                "rule": subject.text,
                "version": version,
                "paper": subject.paper,
                "findings": [vars(finding) for finding in findings],
            }
            for subject, version, findings in results
        ]
        untried = {package: UNTRIED[package] for package in packages}
        print(document({"results": shown, "untried": untried}, indent=2))
    else:
        lines = []
        for subject, version, findings in results:
            marks = {finding.check: "yes" if finding.holds else "NO" for finding in findings}
            texts = [f"{subject.text} ({version})", *(marks.get(name, "-") for name in CHECKS)]
            lines.append(Line(texts, marked="NO" in texts))
        console = Console()
        columns = [Column("rule", "left", wraps=True), *map(Column, CHECKS)]
        console.print(grid(Table(columns, lines), console.options))
        for subject, version, findings in results:
            for finding in findings:
                if not finding.holds:
                    print(f"{subject.text} {version}: {finding.check}: {finding.detail}")
                    print(f"  definition: {subject.paper}")
        for package in packages:
            for name, why in UNTRIED[package].items():
                print(f"{package}:{name}: not tried: {why}")
    return int(any(not finding.holds for _, _, findings in results for finding in findings))
