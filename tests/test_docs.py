"""The pages in docs/ name files, headings and tests that exist."""

import ast
import re
import runpy
import tomllib
from pathlib import Path

from sample_records import cell, made, rows

from fedbench.core import registry
from fedbench.sweeps.plan import Plan, runs
from fedbench.verify.checks import CHECKS
from fedbench.verify.subjects import SUBJECTS, UNTRIED

ROOT = Path(__file__).parents[1]
PAGES = [
    *ROOT.glob("*.md"),
    *ROOT.glob("docs/**/*.md"),
    *ROOT.glob("examples/**/*.md"),
    *(ROOT / folder / "README.md" for folder in ("attacks", "defenses", "leaderboards")),
]
PLUG_INS = {"attacks": "attacks/fedbench_attacks", "defenses": "defenses/fedbench_defenses"}
ERRATA = ROOT / "docs" / "errata.md"
LABEL = r"\b[ADEFMRS]\d{1,2}\b"  # of an erratum; B1 to B3 are bounds of docs/privacy.md
DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def prose(page: Path) -> str:
    """Return the text of a page without its blocks of code."""
    return re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Return the anchors that a page's headings get where it is rendered."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_relative_link_leads_somewhere() -> None:
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if "://" in link or link.startswith("mailto:"):
                continue
            if not target.exists() or (
                target.suffix == ".md" and anchor not in {"", *anchors(target)}
            ):
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert broken == []


def test_the_readme_counts_what_is_installed() -> None:
    page = (ROOT / "README.md").read_text()
    with (ROOT / "pyproject.toml").open("rb") as file:
        points = tomllib.load(file)["project"]["entry-points"]
    attacks = points["fedbench.attacks"].keys() - {"none"}
    assert f"| attacks | {len(attacks)} | " in page
    rules = points["fedbench.defenses"].keys() - {"mean"}
    prefilters = points["fedbench.prefilters"].keys() - {"oracle"}  # which no server has
    assert f"| robust rules, prefilters | {len(rules)}, {len(prefilters)} | " in page
    protocols = points["fedbench.protocols"]
    kinds = {registry.plugin("protocol", name).sends for name in protocols}
    assert f"| what is sent | {len(protocols)} protocols, {len(kinds)} kinds of messages | " in page


def test_the_errata_name_code_and_tests_that_exist() -> None:
    text = prose(ERRATA)
    tests = "\n".join(path.read_text() for path in ROOT.glob("tests/*.py"))
    missing = {name for name in re.findall(r"`(test_\w+)`", text) if f"def {name}(" not in tests}
    for folder, name in re.findall(r"`(\w+)/((?:\w+/)*\w+\.py)`", text):
        inside = ROOT / PLUG_INS.get(folder, f"fedbench/{folder}") / name
        if not inside.exists() and not (ROOT / folder / name).exists():
            missing.add(f"{folder}/{name}")
    assert missing == set()


def erratum_labels() -> set[str]:
    """Return the labels of all errata; a heading may have several, "S1, S2" or "M2 to M5"."""
    labels = set()
    for heading in re.findall(r"^\*\*((?:[A-Z]\d+(?:, | to )?)+)", prose(ERRATA), re.MULTILINE):
        named = re.findall(LABEL, heading)
        labels |= set(named)
        if " to " in heading:
            numbers = [int(label[1:]) for label in named]
            labels |= {f"{heading[0]}{number}" for number in range(numbers[0], numbers[1])}
    return labels


def test_every_erratum_that_a_docstring_cites_exists() -> None:
    cited = set()
    for folder in ("fedbench", *PLUG_INS.values()):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text()
            for node in ast.walk(ast.parse(text)) if re.search(LABEL, text) else ():
                if isinstance(node, DOCUMENTED):
                    cited |= set(re.findall(LABEL, ast.get_docstring(node) or ""))
    assert len(cited) > 40
    assert cited - erratum_labels() == set()


def test_the_makefile_names_tests_that_exist() -> None:
    text = (ROOT / "Makefile").read_text().replace("\\\n", " ")
    words = " ".join(re.findall(r"patsubst %,tests/test_%\.py,([^)]*)\)", text)).split()
    names = {f"tests/test_{word}.py" for word in words}
    single = re.findall(r"(tests/test_\w+\.py)::(\w+)", text)
    files = names | {file for file, _ in single}
    assert len(names) > 40
    assert sorted(name for name in files if not (ROOT / name).exists()) == []
    assert all(f"def {test}(" in (ROOT / file).read_text() for file, test in single)
    left_out = re.findall(r"test_\w+", re.findall(r"^NO_COMPARISONS := (.*)$", text, re.M)[0])
    compared = "".join((ROOT / name).read_text() for name in names)
    assert left_out
    assert [test for test in left_out if f"def {test}(" not in compared] == []


def conclusions() -> list[str]:
    """Return the items of the first page of the results, each on one line."""
    page = (ROOT / "docs" / "results.md").read_text()
    section = page.split("\n## What a practitioner may conclude\n")[1].split("\n## ")[0]
    items = re.findall(r"^- (.*(?:\n  .*)*)$", section, re.MULTILINE)
    return [re.sub(r"\s+", " ", item) for item in items]


def test_every_conclusion_has_a_number_a_command_that_exists_and_a_page() -> None:
    assert len(conclusions()) > 10
    for item in conclusions():
        said, *_ = re.split(r"`(?:fedbench|python) ", item)
        assert re.search(r"\d", said), f"no number: {item}"
        commands = re.findall(r"`((?:fedbench|python) [^`]*)`", item)
        assert commands, f"no command: {item}"
        assert re.search(r"\]\(results/[\w-]+\.md(#[\w-]+)?\)", item), f"no page: {item}"
        words = " ".join(commands).split()
        files = [
            word.rstrip(";") for word in words if word.startswith(("benchmarks/", "fedbench/"))
        ]
        presets = [words[i + 1] for i, word in enumerate(words) if word == "--preset"]
        files += [f"fedbench/presets/{name}.toml" for name in presets]
        assert [name for name in files if not (ROOT / name).exists()] == [], item


def test_the_plan_of_worst_cases_is_a_sweep_with_runs() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "worst_case.py"))
    table = tomllib.loads(script["plan"](ROOT / "leaderboards"))
    sweep = Plan.of(table, "worst_case.toml")
    cells, _ = sweep.cells()
    assert len(runs(cells, sweep.seeds)) > 0
    systems = {(grid["protocol"][0], grid["defense"][0]) for grid in table["grid"]}
    assert systems == set(script["systems"]())
    for grid in table["grid"]:
        assert grid["attack"][0] == "none"
        assert grid["attack"][-1] == "auto"
        assert len(set(grid["attack"])) == len(grid["attack"]) > 5


def test_the_table_of_rules_tells_two_budgets_of_an_attack_apart() -> None:
    script = runpy.run_path(str(ROOT / "benchmarks" / "rules_table.py"))
    texts = ("auto:budget=1.0,knows=all", "auto:budget=4.0,knows=all", "dyn-opt:direction=std")
    records = {cell("fedavg", "mean", text): [made(attack=text)] for text in texts}
    names = [script["attack"](row) for row in rows(records)]
    assert names == ["auto", "auto, budget 4", "dyn-opt, std"]


def test_the_pages_on_plug_ins_name_the_package_of_the_file_that_they_point_to() -> None:
    kinds = ("attack", "defense", "protocol", "mechanism", "model")
    pages = [ROOT / "docs" / "how-to" / f"own-{kind}.md" for kind in kinds]
    attack, *others = [
        re.findall(r"^```toml\n(.*?)^```$", p.read_text(), re.M | re.S) for p in pages
    ]
    (project,) = map(tomllib.loads, attack)
    name = project["project"]["name"].replace("-", "_")
    points = [project["project"]["entry-points"]]
    points += [tomllib.loads(block)["project"]["entry-points"] for (block,) in others]
    assert {group for groups in points for group in groups} == {
        f"fedbench.{kind}s" for kind in (*kinds, "dataset", "partition")
    }
    named = [target for groups in points for group in groups.values() for target in group.values()]
    assert [target.partition(":")[0] for target in named] == [name] * 7
    assert all("(own-attack.md#name-it)" in page.read_text() for page in pages[1:])


def test_the_page_of_results_begins_with_its_conclusions() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    headings = re.findall(r"^## (.*)$", page, re.MULTILINE)
    assert headings[0] == "What a practitioner may conclude"


def test_the_names_elsewhere_lead_to_plug_ins() -> None:
    page = (ROOT / "docs" / "peers.md").read_text()
    table = page.partition("## Names elsewhere")[2].partition("Not here")[0]
    texts = [text for row in table.splitlines() for text in re.findall("`(.+?)`", row)]
    kinds = ("attack", "defense", "protocol")
    named = {kind: set(registry.names(kind)) for kind in kinds}
    for text in texts:
        kind = next(kind for kind in kinds if text.partition(":")[0] in named[kind])
        registry.load(kind, text)
    assert len(texts) > 12


def test_the_page_of_peers_has_the_table_and_the_defects_that_the_command_prints() -> None:
    page = (ROOT / "docs" / "peers.md").read_text()
    block = page.partition("```text\n")[2].partition("```")[0].splitlines()
    assert re.split(r" {2,}", block[0]) == ["rule", *CHECKS]
    names: list[str] = []
    marks: list[dict[str, str]] = []
    end = next(i for i, line in enumerate(block) if "definition:" in line) - 1
    for line in block[2:end]:
        name, *cells = re.split(r" {2,}", line.strip())
        if cells:
            names.append(name)
            marks.append(dict(zip(CHECKS, cells, strict=True)))
        else:  # the end of a long name
            names[-1] += name
    subjects = [subject for package in SUBJECTS.values() for subject in package]
    assert [re.sub(r"\(.*\)|\s", "", name) for name in names] == [s.text for s in subjects]
    defects = []
    for name, row, subject in zip(names, marks, subjects, strict=True):
        assert (row["shift"] == "-") == (not subject.shifts)
        assert (row["agrees"] == "-") == (not subject.exact)
        version = name.partition("(")[2].rstrip(")")
        bad = [check for check in CHECKS if row[check] == "NO"]
        defects += [f"{subject.text} {version}: {check}: {subject.paper}" for check in bad]
    untried = [
        f"{package}:{rule}: not tried: {why}"
        for package, rules in UNTRIED.items()
        for rule, why in rules.items()
    ]
    told = block[end : len(block) - len(untried)]
    stated = [
        ": ".join([*defect.split(": ")[:2], paper.removeprefix("  definition: ")])
        for defect, paper in zip(told[::2], told[1::2], strict=True)
    ]
    assert sorted(stated) == sorted(defects)
    assert block[len(block) - len(untried) :] == untried
