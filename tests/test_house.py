"""The house keeps its own rules."""

import ast
import dataclasses
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fedbench.cli import options as opt
from fedbench.core import registry
from fedbench.experiment.scenario import READERS

ROOT = Path(__file__).parents[1]
PACKAGES = ("fedbench", "attacks/fedbench_attacks", "defenses/fedbench_defenses")
FILES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in FILES]
SCRIPTS = [  # not what is in environments such as benchmarks/speed/.venv-pfl
    path
    for folder in ("benchmarks", "examples")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
]

# Rooms from the ground up: a module imports modules of its own room and of the rooms before it.
# Attacks, defenses and protocols stand beside each other.
ROOMS = (
    *("core", "payload", "models", "api", "data", "executors", "privacy"),
    *("protocols", "fedbench_attacks", "fedbench_defenses", "peers"),
    *("adversary", "isolation", "experiment", "run", "testing", "audits", "probes"),
    *("functional", "results", "sweeps", "tables", "figures", "analysis"),
    *("tracking", "leaderboard", "reproduce", "deployment", "verify", "public", "cli"),
)
PLUGINS = {"protocols", "fedbench_attacks", "fedbench_defenses"}
UPWARD = {  # the only imports that go up, each with its reason
    # `--attack all` stands for the ensemble of the leaderboard's newest rules.
    ("fedbench.sweeps.ensemble", "fedbench.leaderboard.rules"),
}


@dataclasses.dataclass(frozen=True)
class Module:
    """One file of the packages or of the scripts, read and parsed once for all rules."""

    name: str
    text: str
    tree: ast.Module

    @property
    def dotted(self) -> str:
        """Name under which the file is imported."""
        name = re.sub("^(attacks|defenses)/", "", self.name).removesuffix(".py")
        return name.replace("/", ".").removesuffix(".__init__")

    @property
    def imports(self) -> set[str]:
        """Modules that the file imports: at once, inside functions, or for the type checker."""
        imported = set()
        inside = self.name.endswith("__init__.py")
        package = self.dotted if inside else self.dotted.rpartition(".")[0]
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom):
                above = package.split(".")[: 1 - node.level or None] if node.level else []
                module = ".".join([*above, *filter(None, [node.module])])
                names = {f"{module}.{alias.name}" for alias in node.names}
                imported |= {name if name in MODULES else module for name in names}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        return imported

    @property
    def summaries(self) -> list[str]:
        """First paragraphs of its docstrings, a line each."""
        kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, kinds)]
        docs = [ast.get_docstring(node) for node in nodes]
        return [" ".join(doc.strip().split("\n\n")[0].split()) for doc in docs if doc]

    @property
    def packed(self) -> list[str]:
        """Assignments of several values that do not look alike, but for swaps."""
        nodes = [node for node in ast.walk(self.tree) if isinstance(node, ast.Assign)]
        return [ast.unparse(node) for node in nodes if is_packed(node)]


def is_packed(node: ast.Assign) -> bool:
    """``a, b = x.min(), 3`` is, ``low, high = x.min(), x.max()`` and ``a, b = b, a`` are not."""
    target = node.targets[0]
    if not isinstance(target, ast.Tuple) or not isinstance(node.value, ast.Tuple):
        return False
    values = [ast.unparse(value) for value in node.value.elts]
    if {ast.unparse(name) for name in target.elts} <= set(values):
        return False
    shapes = {re.sub(r"(?<!\w)[A-Za-z_]\w*|\d+(\.\d+)?", "_", value) for value in values}
    return len(shapes) > 1


def parsed(paths: list[Path]) -> list[Module]:
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    texts = [path.read_text() for path in paths]
    return [Module(*row, ast.parse(row[1])) for row in zip(names, texts, strict=True)]


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return parsed(FILES)


@pytest.fixture(scope="module")
def scripts() -> list[Module]:
    assert {path.relative_to(ROOT).parts[0] for path in SCRIPTS} == {"benchmarks", "examples"}
    return parsed(SCRIPTS)


MODULES = {Module(name, "", ast.Module([], [])).dotted for name in NAMES}


def room(module: str) -> str | None:
    """``fedbench.payload.base`` is in ``payload``; other people's modules are in no room."""
    words = module.split(".")
    if words[0] == "fedbench":
        return words[1] if len(words) > 1 else None
    return words[0] if words[0] in ROOMS else None


def test_imports_go_down_through_the_rooms(modules: list[Module]) -> None:
    wrong = []
    for module in modules:
        here = room(module.dotted)
        if here in (None, "__main__"):
            continue
        assert here in ROOMS, f"{here} has no place in the house: give it one in ROOMS"
        for imported in sorted(module.imports):
            there = room(imported)
            up = there is not None and ROOMS.index(there) > ROOMS.index(here)
            if up and not {here, there} <= PLUGINS and (module.dotted, imported) not in UPWARD:
                wrong.append(f"{module.dotted} imports {imported}")
    assert wrong == []
    assert len(UPWARD) <= 2


def test_the_table_of_folders_is_that_of_the_imports() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    section = page.split("\n## Folders\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    rooms = [name for cell in cells for name in re.findall(r"`(\w+)(?:/|\.py)`", cell)]
    assert rooms == [name for name in ROOMS if not name.startswith("fedbench_")]


def test_imports_go_in_no_circle(modules: list[Module]) -> None:
    graph = {module.dotted: module.imports & MODULES - {module.dotted} for module in modules}
    while ends := {name for name, imported in graph.items() if not imported & graph.keys()}:
        for name in ends:
            del graph[name]
    assert graph == {}


RIDDLES = {
    "one",
    "found",
    "said",
    "known",
    "told",
}  # names that say what happened, not what is held
FIELDS = {("fedbench/payload/scalars.py", "known")}  # what both ends of a message agree on


def test_names_say_what_they_hold(modules: list[Module], scripts: list[Module]) -> None:
    riddles = [
        (module.name, node.lineno, node.id)
        for module in modules + scripts
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in RIDDLES
        if (module.name, node.id) not in FIELDS
    ]
    assert riddles == []


def rules_of_text(module: Module) -> list[int]:
    """Lines on which a text is named ``rule``."""
    lines = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.arg) and node.arg == "rule" and node.annotation is not None:
            lines += [node.lineno] * ("str" in map(dotted, ast.walk(node.annotation)))
        elif isinstance(node, ast.Assign) and "rule" in map(dotted, node.targets):
            lines += [node.lineno] * isinstance(node.value, ast.Constant | ast.JoinedStr)
    return lines


def test_a_rule_is_a_defense_and_no_text(modules: list[Module]) -> None:
    named = [(module.name, line) for module in modules for line in rules_of_text(module)]
    board = "fedbench/leaderboard/"  # its rules are what an entry must satisfy
    assert [place for place in named if not place[0].startswith(board)] == []


NO_BEGINNING = re.compile(
    r"(Of|Who|Whose|Whom|Which|That|Those|As|What|About|Above|After|Against|Among|At|Before|Behind"
    r"|Below|Between|Beyond|By|During|For|From|In|Into|Near|On|Onto|Over|Per|Since|Through|To"
    r"|Towards?|Under|Until|Up|Upon|Via|With|Within|Without)\b"
)


def is_plain(summary: str) -> bool:
    """Whether a docstring's first line is a phrase with a verb or a subject, of four words."""
    words = [word for word in summary.split() if re.search("[A-Za-z]", word)]
    return len(words) >= 4 and not NO_BEGINNING.match(summary)


def test_docstrings_begin_in_plain_english(modules: list[Module], scripts: list[Module]) -> None:
    files = modules + scripts
    riddles = [(m.name, text) for m in files for text in m.summaries if not is_plain(text)]
    assert riddles == []
    examples = ("Kind of a column.", "Of a column, all of it.", "Its own row.")
    assert [is_plain(text) for text in examples] == [True, False, False]


def test_an_assignment_has_one_value(modules: list[Module], scripts: list[Module]) -> None:
    packed = [(module.name, line) for module in modules for line in module.packed]
    assert len(packed) <= 2, packed  # of a sorting network, whose right sides are the old values
    assert [(script.name, line) for script in scripts for line in script.packed] == []
    example = Module("", "", ast.parse("a, b = x.min(), 3\na, b = x.min(), y.max()"))
    assert example.packed == ["a, b = (x.min(), 3)"]


def test_what_a_run_cannot_import_does_not_change_its_id() -> None:
    assert set(READERS) == set(ROOMS[ROOMS.index("run") + 1 :])


def test_the_engine_knows_no_attack_and_no_defense_by_name(modules: list[Module]) -> None:
    kinds = ("attack", "defense")
    plugins = {registry.plugin(kind, name) for kind in kinds for name in registry.names(kind)}
    classes = {plugin.__name__ for plugin in plugins} - {"NoAttack", "Mean"}
    for module in modules:
        if module.name.startswith("fedbench/"):
            assert not any(name.startswith("fedbench_") for name in module.imports), module.name
            used = {node.id for node in ast.walk(module.tree) if isinstance(node, ast.Name)}
            assert not used & classes, module.name


def test_files_are_short_none_is_a_drawer_and_the_root_has_three(modules: list[Module]) -> None:
    root = [name for name in NAMES if re.fullmatch(r"fedbench/\w+\.py", name)]
    assert root == ["fedbench/__init__.py", "fedbench/__main__.py", "fedbench/run.py"]
    lines = {module.name: len(module.text.splitlines()) for module in modules}
    # at 500 ask whether there are two ideas; nothing is packed to get under it
    assert {name: count for name, count in lines.items() if count > 500} == {}
    drawers = ("/utils.py", "/helpers.py", "/common.py", "/misc.py")
    assert [name for name in NAMES if name.endswith(drawers)] == []


def test_one_file_asks_what_kind_of_device_it_is(modules: list[Module]) -> None:
    asks = re.compile(r"\.type\s*[!=]=\s*[\"']")
    assert [m.name for m in modules if asks.search(m.text)] == ["fedbench/core/devices.py"]


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
    example = Module("", "", ast.parse(bad))
    assert {word for word in words(example) if FORBIDDEN.fullmatch(word)} == {
        *("pickle", "torch.rand", "np.random.seed", "random.seed", "eval")
    }


def test_torchvision_is_imported_in_one_file_inside_functions(modules: list[Module]) -> None:
    anywhere = re.compile(r'^\s*(import|from) torchvision|import_module\(f?"torchvision', re.M)
    (user,) = (module for module in modules if anywhere.search(module.text))
    assert user.name == "fedbench/data/archives.py"
    assert not re.search(r"^(import|from) torchvision", user.text, re.M)


def test_everything_that_is_built_in_is_registered_and_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for kind in registry.KINDS:
        declared = set(project["entry-points"][f"fedbench.{kind}s"])
        assert declared <= set(registry.names(kind)), "run: pip install -e ."
    for folder, kind in zip(PACKAGES[1:], ("attack", "defense"), strict=True):
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
        docs = "\n".join(base.__doc__ or "" for base in cls.__mro__)
        first = (cls.__doc__ or "").strip().splitlines()[0]
        assert first.endswith("."), f"{name}: {first}"
        for field in dataclasses.fields(cls):
            assert re.search(rf"^\s+{field.name}: ", docs, re.M), f"{name}.{field.name}"
        if kind in ("attack", "defense", "protocol") and name != "none":
            assert "References:" in docs, f"{name} has no paper"


def test_help_does_not_wait_for_torch() -> None:
    heavy = "torch pydantic matplotlib numpy sklearn scipy opacus ray jinja2"
    code = (
        "import sys; from fedbench.cli import app, leaderboard, plot, results, sweep\n"
        f"heavy = set('{heavy}'.split()) & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


MISTYPED = [
    (("attack", "--protocol", "fdavg"), "--protocol 'fdavg' is not installed; did you mean"),
    (("attack", "--defense", "nnm:f=2+kum"), "--defense 'kum' is not installed; did you mean"),
    (("attack", "--defense", "num:f=2+krum"), "--prefilter 'num' is not installed; did you mean"),
    (("attack", "--adapter", "lor"), "--adapter must be none or lora, as in lora:rank=4, got"),
    (("attack", "--seeds", "x"), "--seeds must be distinct integers like 0,1,2, got 'x'"),
    (("sweep", "s.toml", "--engine", "rai"), "--engine must be local or ray, got 'rai'"),
    (("sweep", "absent.toml"), "absent.toml"),
    (("attack", "--preset", "dmo"), "--preset must be one of arsenal, "),
    (("attack", "-p", "fedavg", "--rounds", "0"), "--rounds must be >= 1, got 0"),
    (("attack", "-a", "ipm", "--malicious", "20"), "20 % are 0.2"),
    (("privacy", "-m", "dp-sdg"), "--mechanism 'dp-sdg' is not installed; did you mean 'dp-sgd'?"),
    (("audit", "-m", "noisy-sing"), "did you mean 'noisy-sign'?"),
    (("probe", "membership", "-p", "fdavg"), "did you mean 'fedavg'?"),
    (("probe", "inversion", "-p", "fdavg"), "did you mean 'fedavg'?"),
    (("export", "flower", "-p", "fdavg"), "did you mean 'fedavg'?"),
    (("leaderboard", "plan", "--track", "digits", "-p", "fdavg"), "did you mean 'fedavg'?"),
    (("plot", "absent"), "absent cannot be read: No such file or directory"),
    (
        ("leaderboard", "submit", "absent", "--name", "x", "--authors", "x", "--tried", "1"),
        "absent cannot be read: No such file or directory",
    ),
    (("leaderboard", "complete", "absent", "store"), "absent cannot be read"),
]


@pytest.mark.parametrize(("words", "line"), MISTYPED)
def test_a_mistyped_name_does_not_wait_for_torch(words: tuple[str, ...], line: str) -> None:
    code = (
        "import atexit, sys; from fedbench.cli import main\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        f"sys.argv = {['fedbench', *words]}\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 2
    assert line in done.stderr
    assert done.stdout == "False\n"


def test_spaces_around_the_links_of_a_rule_are_no_part_of_their_names() -> None:
    opt.require_installed({"defense": ["nnm +median", "bucketing:s=2 +krum"]})


@pytest.mark.slow
def test_a_run_does_not_wait_for_what_few_runs_need() -> None:
    code = (
        "import sys, torch, fedbench.run; from fedbench.payload import Rankings\n"
        "Rankings(torch.tensor([[1, 0]], dtype=torch.int32), (2,)).values()\n"
        "from fedbench.data.datasets import Digits; Digits().load(None)\n"
        "heavy = 'scipy.signal scipy.stats sklearn pandas matplotlib opacus torch._dynamo'\n"
        "imported = set(heavy.split()) & set(sys.modules)\n"
        "sys.exit(f'imported {imported}' if imported else 0)"
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
    apart = {"test-lowest", "test-cluster", "test-peers"}  # the first installs a torch of its own
    assert set(played.split()) == set(parts) - apart | {"docs"}
    assert "\naside test-cluster " in script  # played, but its verdict depends on the load
    assert "\naside test-peers " in script  # and on what other projects publish
    assert 'timeout "$left" make "$1" ||' in script
    assert '\n  make "$part"\n' in script  # no `|| true`, no time limit
    assert script.splitlines()[0] == "#!/usr/bin/env bash"
    assert "set -euo pipefail" in script


def test_no_machine_path_is_in_the_repository() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    for name in listed.stdout.split():
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".cff", ".yml", ""} and path.is_file():
            assert not re.search(r"/(work|farm|root)/", path.read_text()), name
