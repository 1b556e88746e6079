"""The house keeps its own rules."""

import ast
import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedbench import registry
from fedbench.identity import READERS

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedbench", "attacks/fedbench_attacks", "defenses/fedbench_defenses")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in FILES]
CODE = list(zip(FILES, NAMES, strict=True))

# Who may import whom: a module may import modules of its own row and of the rows above it.
ROWS = [
    ["errors", "files", "rng", "allocator", "layout", "order", "blocks", "tiles", "answers"],
    ["wire", "integer_codes", "network", "convolution", "rotation", "lloyd_max"],
    ["payload"],
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
    ["registry", "identity", "plugins", "scenario", "measured", "record"],
    ["setup", "evaluate", "guarantee", "report", "testing"],
    ["run"],
    ["sweep", "leaderboard", "bench", "audit", "probes"],
    ["pictures", "cli"],
]
RANK = {name: rank for rank, row in enumerate(ROWS) for name in row}


def imports(path: Path) -> set[str]:
    """Modules that a file imports when it runs, not those for the type checker only."""
    found = set()
    tree = ast.parse(path.read_text())
    typing_only = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.dump(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            if node.module == "fedbench":
                found |= {f"fedbench.{alias.name}" for alias in node.names}
            else:
                found.add(node.module)
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def part(module: str) -> str | None:
    """``fedbench.payload.base`` is part of ``payload``; other people's modules are of none."""
    words = module.split(".")
    if words[0] == "fedbench":
        return words[1] if len(words) > 1 else None
    return words[0] if words[0] in RANK else None


@pytest.mark.parametrize(("path", "name"), CODE, ids=NAMES)
def test_imports_run_one_way(path: Path, name: str) -> None:
    module = name.removeprefix("attacks/").removeprefix("defenses/").removesuffix(".py")
    here = part(module.replace("/", "."))
    if here in (None, "__init__", "__main__"):
        return
    assert here in RANK, f"{here} has no place in the house: give it a row here"
    for imported in sorted(filter(None, map(part, imports(path)))):
        assert imported in RANK, imported
        assert RANK[imported] <= RANK[here], f"{name} imports {imported}"


def test_what_a_run_cannot_import_does_not_change_its_id() -> None:
    after = {name for row in ROWS[ROWS.index(["run"]) + 1 :] for name in row}
    assert set(READERS) == after


def test_the_engine_knows_no_attack_and_no_defense_by_name() -> None:
    names = {n for kind in ("attack", "defense") for n in registry.names(kind)} - {"none", "mean"}
    classes = {
        registry.plugin(k, n).__name__
        for k in ("attack", "defense")
        for n in names
        if n in registry.names(k)
    }
    for path in (ROOT / "fedbench").rglob("*.py"):
        assert not any("fedbench_attacks" in m or "fedbench_defenses" in m for m in imports(path))
        code = ast.parse(path.read_text())
        used = {node.id for node in ast.walk(code) if isinstance(node, ast.Name)}
        assert not used & classes, path


@pytest.mark.parametrize(("path", "name"), CODE, ids=NAMES)
def test_files_are_short_and_none_is_a_drawer(path: Path, name: str) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= 500  # at 500 ask whether there are two ideas; nothing is packed to get under it
    assert path.stem not in {"utils", "helpers", "common", "misc"}


@pytest.mark.parametrize(("path", "name"), CODE, ids=NAMES)
def test_nothing_draws_from_a_global_generator(path: Path, name: str) -> None:
    text = path.read_text()
    forbidden = (
        r"torch\.(rand|randn|randint|randperm|bernoulli|manual_seed|normal)\(",
        r"np\.random\.(rand|randn|seed|choice|normal|shuffle|default_rng)\b",
        r"\brandom\.(random|shuffle|choice|seed|sample)\(",
        r"\bpickle\b(?!s)",
        r"(?<![\w.])eval\(",
    )
    code = "\n".join(line for line in text.splitlines() if "allow_pickle=False" not in line)
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            code = code.replace(node.value, "")
    for pattern in forbidden:
        assert not re.search(pattern, code), f"{name}: {pattern}"


def test_torchvision_is_imported_in_one_file_inside_functions() -> None:
    users = [
        name
        for path, name in zip(FILES, NAMES, strict=True)
        if re.search(r"^\s*(import|from) torchvision", path.read_text(), re.M)
        or 'import_module("torchvision' in path.read_text()
    ]
    assert users == ["fedbench/tasks/torchvision_data.py"]
    assert not re.search(r"^(import|from) torchvision", (ROOT / users[0]).read_text(), re.M)


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


def test_no_machine_path_is_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".cff", ".yml", ""} and path.is_file():
            assert not re.search(r"/(work|farm|root)/", path.read_text()), name
