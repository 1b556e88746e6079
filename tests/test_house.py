"""The house keeps its own rules."""

import ast
import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedbench.core import registry
from fedbench.experiment.fingerprint import READERS

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedbench", "attacks/fedbench_attacks", "defenses/fedbench_defenses")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in FILES]

# Who may import whom: a module may import modules of its own row and of the rows above it.
ROWS = [
    [
        "errors",
        "files",
        "settings",
        "rng",
        "allocator",
        "layout",
        "order",
        "blocks",
        "tiles",
        "answers",
        "seal",
    ],
    ["wire", "integer_codes", "network", "convolution", "rotation", "lloyd_max"],
    ["payload"],
    ["blame", "hooks"],
    ["api"],
    [
        "training",
        "recorded",
        "lockstep",
        "together",
        "forked",
        "choice",
        "executors",
        "threat",
        "effect",
        "protocols",
        "privacy",
        "tasks",
        "fedbench_attacks",
        "fedbench_defenses",
    ],
    ["registry", "identity", "isolation", "plugins", "scenario", "measured", "record"],
    ["setup", "evaluate", "guarantee", "report", "testing"],
    ["run"],
    ["sweep", "leaderboard", "bench", "audit", "probes"],
    ["pictures", "cli"],
]
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row}


@dataclasses.dataclass(frozen=True)
class Module:
    """One file of the three packages, read and parsed once for all rules."""

    path: Path
    name: str
    text: str
    tree: ast.Module

    @property
    def imports(self) -> set[str]:
        """Modules that the file imports when it runs, not those for the type checker only."""
        typing_only = {
            node
            for branch in ast.walk(self.tree)
            if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
            for node in ast.walk(branch)
        }
        imported = set()
        for node in ast.walk(self.tree):
            if node in typing_only:
                continue
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                if node.module == "fedbench":
                    imported |= {f"fedbench.{alias.name}" for alias in node.names}
                else:
                    imported.add(node.module)
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        return imported


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    texts = [path.read_text() for path in FILES]
    rows = zip(FILES, NAMES, texts, strict=True)
    return [Module(path, name, text, ast.parse(text)) for path, name, text in rows]


def part(module: str) -> str | None:
    """``fedbench.payload.base`` is part of ``payload``; other people's modules are of none."""
    words = module.split(".")
    if words[0] == "fedbench":
        return words[1] if len(words) > 1 else None
    return words[0] if words[0] in RANK else None


def test_imports_run_one_way(modules: list[Module]) -> None:
    wrong = []
    for module in modules:
        dotted = re.sub("^(attacks|defenses)/", "", module.name).removesuffix(".py")
        here = part(dotted.replace("/", "."))
        if here in (None, "__init__", "__main__"):
            continue
        if here not in RANK:
            wrong.append(f"{here} has no place in the house: give it a row here")
            continue
        for imported in sorted(filter(None, map(part, module.imports))):
            if imported not in RANK or RANK[imported] > RANK[here]:
                wrong.append(f"{module.name} imports {imported}")
    assert wrong == []


def test_what_a_run_cannot_import_does_not_change_its_id() -> None:
    after = {name for row in ROWS[ROWS.index(["run"]) + 1 :] for name in row}
    assert set(READERS) == after


def test_the_engine_knows_no_attack_and_no_defense_by_name(modules: list[Module]) -> None:
    names = {n for kind in ("attack", "defense") for n in registry.names(kind)} - {"none", "mean"}
    classes = {
        registry.plugin(k, n).__name__
        for k in ("attack", "defense")
        for n in names
        if n in registry.names(k)
    }
    for module in modules:
        if not module.name.startswith("fedbench/"):
            continue
        plugins = [m for m in module.imports if m.startswith(("fedbench_attacks", "fedbench_def"))]
        assert not plugins, module.name
        used = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
        assert not used & classes, module.name


def test_files_are_short_and_none_is_a_drawer(modules: list[Module]) -> None:
    lines = {module.name: len(module.text.splitlines()) for module in modules}
    # at 500 ask whether there are two ideas; nothing is packed to get under it
    assert {name: count for name, count in lines.items() if count > 500} == {}
    drawers = {"utils", "helpers", "common", "misc"}
    assert [module.name for module in modules if module.path.stem in drawers] == []


def dotted(node: ast.AST) -> str:
    """``torch.rand`` of the expression that reads so; what is no name is empty."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def words(module: Module) -> set[str]:
    """Names that the file's code reads or imports; not those called with a generator of theirs."""
    nodes = list(ast.walk(module.tree))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    own = {call.func for call in calls if any(k.arg == "generator" for k in call.keywords)}
    return {dotted(node) for node in nodes if node not in own} | module.imports


FORBIDDEN = re.compile(
    r"torch\.(rand|randn|randint|randperm|bernoulli|manual_seed|normal)"
    r"|(np|numpy)\.random\.(rand|randn|seed|choice|normal|shuffle|default_rng)"
    r"|random\.(random|shuffle|choice|seed|sample)"
    r"|(.*\.)?pickle(\..*)?|eval"
)


def test_nothing_draws_from_a_global_generator(modules: list[Module]) -> None:
    used = {(m.name, word) for m in modules for word in words(m) if FORBIDDEN.fullmatch(word)}
    assert used == set()
    bad = "import pickle\nx = torch.rand(3) + np.random.seed(1)\nrandom.seed(eval('2'))"
    bad += "\ntorch.randn(3, generator=mine)"
    example = Module(Path(), "", "", ast.parse(bad))
    assert {word for word in words(example) if FORBIDDEN.fullmatch(word)} == {
        *("pickle", "torch.rand", "np.random.seed", "random.seed", "eval")
    }


def test_torchvision_is_imported_in_one_file_inside_functions(modules: list[Module]) -> None:
    users = {
        module.name: module.text
        for module in modules
        if re.search(r"^\s*(import|from) torchvision", module.text, re.M)
        or 'import_module("torchvision' in module.text
    }
    assert list(users) == ["fedbench/data/torchvision_data.py"]
    assert not any(re.search(r"^(import|from) torchvision", x, re.M) for x in users.values())


def test_everything_that_is_built_in_is_registered_and_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for kind in registry.KINDS:
        declared = set(project["entry-points"][f"fedbench.{kind}s"])
        assert declared <= set(registry.names(kind)), "run: pip install -e ."
    for folder, kind in (
        ("attacks/fedbench_attacks", "attack"),
        ("defenses/fedbench_defenses", "defense"),
    ):
        modules = {registry.plugin(kind, name).__module__ for name in registry.names(kind)}
        for path in (ROOT / folder).glob("*.py"):
            text = path.read_text()
            offered = re.search(rf"^class \w+\(({kind.title()}|Crafted)\b", text, re.M)
            if offered and "@abstractmethod" not in text:
                assert f"{path.parent.name}.{path.stem}" in modules, path


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_plugin_says_what_it_does_and_documents_each_parameter(kind: str) -> None:
    for name in registry.names(kind):
        cls = registry.plugin(kind, name)
        docs = " ".join(base.__doc__ or "" for base in cls.__mro__)
        first = (cls.__doc__ or "").strip().splitlines()[0]
        assert first.endswith("."), f"{name}: {first}"
        for field in dataclasses.fields(cls):
            assert re.search(
                rf"^\s+{field.name}: ", "\n".join(base.__doc__ or "" for base in cls.__mro__), re.M
            ), f"{name}.{field.name}"
        if kind in ("attack", "defense", "protocol") and name != "none":
            assert "References:" in docs, f"{name} has no paper"


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import sys\n"
        "import fedbench.cli as cli\n"
        "from fedbench.cli import leaderboard, plot, results, sweep\n"
        "assert cli.app\n"
        "heavy = {'torch', 'pydantic', 'matplotlib', 'numpy', 'sklearn', 'scipy', 'opacus'}\n"
        "heavy |= {'ray', 'jinja2'}\n"
        "heavy &= set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_edge_of_a_long_parametrisation_is_one_of_its_cases(
    edges_that_are_no_cases: list[str],
) -> None:
    assert edges_that_are_no_cases == []


def test_ci_runs_every_part_of_the_tests_and_lets_none_fail() -> None:
    parts = re.findall(r"^(test[\w-]*):", (ROOT / "Makefile").read_text(), re.M)
    script = (ROOT / ".ci" / "run").read_text()
    (played,) = re.findall(r"^for part in (.*); do$", script, re.M)
    apart = {"test-lowest", "test-cluster"}  # the first installs a torch of its own
    assert set(played.split()) == set(parts) - apart
    assert "make test-cluster ||" in script  # played, but its verdict depends on the load
    assert '\n  make "$part"\n' in script  # no `|| true`, no time limit
    assert script.splitlines()[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in script


def test_no_machine_path_is_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".cff", ".yml", ""} and path.is_file():
            assert not re.search(r"/(work|farm|root)/", path.read_text()), name
