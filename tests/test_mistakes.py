"""What a user, or somebody's file, can get wrong: one line, exit code 2, nothing left behind."""

from __future__ import annotations

import os
import resource
import shlex
from pathlib import Path

import pytest

from fedbench.cli import main
from fedbench.core.errors import MAX_LINE, one_line
from fedbench.core.files import parsed_toml, read_limited, writable

LONG = "z" * 2000
NINES = "9" * 5000
ESCAPE = "\x1b[31m"

# What is typed, and words of the answer; {name} is one of `places`. test_frozen.py and
# test_scenario.py have more of it.
TYPED: list[tuple[str, str]] = [
    ("attack -p fedavg:=1", "--protocol 'fedavg:=1' must read name:param=value"),
    ("attack -a alie:z", "--attack 'alie:z' must read name:param=value"),
    ("attack -p fedavg:lr=1_000", "fedavg:lr must be a number, got '1_000'"),
    (f"attack -p fedavg:lr={NINES}", "must be a finite number"),
    (f"attack -p {ESCAPE}", "--protocol must be one printable line, got '\\x1b[31m'"),
    (f"attack -p {LONG}", "see fedbench list protocols"),
    (
        f"attack -d trimmed-mean:f={NINES}",
        "--defense trimmed-mean:f: unable to parse input string as an integer, exceeded",
    ),
    ("attack -a installed:x=1", "--attack installed must stand alone"),
    (f"attack -a strongest:budget={NINES}", "with N in 1 .. 999999"),
    (f"attack --seeds {'1' * 26}", "--seeds must be integers in 0 .. 2**63 - 1"),
    ("attack --seeds 9223372036854775808", "in 0 .. 2**63 - 1"),
    ("attack --seeds ''", "distinct integers like 0,1,2"),
    (f"attack --preset {LONG}", "--preset must be one of"),
    ("attack --clients 99999999999", "--clients must be < 2**31"),
    ("attack --defense-draw 9223372036854775808", "in 0 .. 2**63 - 1"),
    ("attack -p feddrop --model cnn4 --dry-run", "feddrop needs a model whose layers follow one"),
    ("attack --delta 1e-320", "--delta must be in [1e-100, 1)"),
    ("attack --chunk 99999999999999999999", "--chunk must be <= 65536"),
    (
        "attack --clients 1000000 --per-round 900000 --partition virtual -p fedavg -d krum",
        "of 900000 clients), but defense krum compares all pairs of them; use --defense median",
    ),
    ("attack --workers 99999999999", "--workers must be <= 65536"),
    (f"attack --out {LONG}", "--out must be a folder that can be written"),
    ("attack --out 'out\x00'", "embedded null"),
    ("attack --out ''", "--out must be a path, got ''; use . for the current folder"),
    ("sweep {good} --out ''", "--out must be a path, got ''"),
    ("results {empty} --out ''", "--out must be a path, got ''"),
    ("results {empty} --format csv --out {empty}", "--out must be a file, not a folder, got '"),
    (
        "attack --availability 'trace:file=odd\nline.csv'",
        "--availability must be one printable line, got 'trace:file=odd\\nline.csv'",
    ),
    (
        "attack --availability trace:file=a,b.csv",
        "--availability 'trace:file=a,b.csv' must read name:param=value,param=value, got 'b.csv'",
    ),
    (
        "leaderboard rank {empty} --view equal-bits --bits inf",
        "--bits must be a finite number > 0, got inf",
    ),
    ("attack --clients ten", "--clients must be a whole number, got 'ten'"),
    ("attack --lr many", "--lr must be a number, got 'many'"),
    ("attack -p fedavg:lr=big", "--protocol fedavg:lr must be a number, got 'big'"),
    ("attack -p qsgd:error_feedback=maybe", "must be true or false, got 'maybe'"),
    (f"attack --rounds {ESCAPE}", "--rounds must be a whole number, got '\\x1b[31m'"),
    (f"{ESCAPE}", "\\x1b[31m"),
    (f"list {LONG}", "kind must be one of protocols"),
    ("list attacks --into /dev/zero", "must have at most 16 MiB"),
    (f"show {LONG}", "is not an installed plug-in"),
    ("show fedavg --kind ''", "kind must be one of"),
    (f"privacy -m mask-gaussian --dim {'1' + '0' * 29}", "--dim must be <= 2147483647"),
    ("privacy -m mask-gaussian --dim 2000000000 --rounds 1000", "--dim must be"),
    ("bench defenses", "No such command 'defenses'; see fedbench bench --help"),
    ("attack -h", "No such option: -h; see fedbench attack --help"),
    ("attack --epoch 3", "(Possible options: --epochs)"),
    ("probe membership -p nosuch", "--protocol 'nosuch' is not installed"),
    ("probe membership --clients 0", "--clients must be >= 1"),
    ("probe inversion --threads 99999", "--threads must be <= 1024"),
    (f"results {{empty}} --sort {LONG}", "--sort must name a field"),
    ("results {zero}", "STORE must be a folder of records"),
    ("plot /dev/zero", "must be a file, a folder or an archive"),
    ("plot /dev/null", "must be a file, a folder or an archive"),
    ("plot {empty} --out x.PNG", "folder for pictures, got 'x.PNG'; write --out . --format png"),
    ("plot {fifo}", "must be a file, a folder or an archive"),
    (f"plot {'nowhere' + ESCAPE}", "nowhere\\x1b[31m cannot be read"),
    ("sweep /dev/zero", "must have at most 1 MiB"),
    ("sweep {good} --device cuda", "--device cuda needs a CUDA device, got none"),
    ("sweep {good} --executor recorded", "--executor recorded must have --device cuda"),
    ("reproduce fedpm-figure3-bits --engine rai", "--engine must be local or ray, got 'rai'"),
    ("reproduce fedpm-figure3-bits --address auto", "--address must be left out without --engine"),
    ("attack --defense trimmed-mean:g=1", "has no parameter 'g'; parameters: f"),
    ("attack -p fedavg -a rank-reversal:x=1", "rank-reversal has no parameter 'x'"),
    ("attack --seeds '\xb2'", "--seeds must be distinct integers"),
    ("attack --chunk 0", "--chunk must be >= 1, got 0"),
    ("attack --device tpu", "--device must be auto, cpu, cuda or mps, got 'tpu'"),
    ("attack -a ALIE", "--attack 'ALIE' is not installed; did you mean 'alie'?"),
    ("attack -a alie,ipm", "'alie,ipm' is not installed; for several repeat the option, each with"),
    ("attack -d 'nnm + krum'", "'nnm + krum' is not installed; a chain is written nnm+krum"),
    ("attack -d nnm,krum", "'nnm,krum' is not installed; a chain is written nnm+krum"),
    ("attack -d nnm,mutli-krum", "'nnm,mutli-krum' is not installed; did you mean"),
    ("attack -d krum,median", "'krum,median' is not installed; for several repeat the option"),
    (
        "attack --dataset digits,mnist",
        "--dataset 'digits,mnist' is not installed; name one of them",
    ),
    ("privacy -m dp-sgd,dp-fedavg", "'dp-sgd,dp-fedavg' is not installed; name one of them"),
    ("attack --dataset minst", "--dataset 'minst' is not installed; did you mean 'mnist'?"),
    ("attack -p fedavg -a pixel:target=10 --attack-from 99", "Pixel.target must be a label from"),
    ("attack -p fedavg -a pixel:size=9 --dry-run", "Pixel.size must be <= 8, the image's shorter"),
    ("attack --model conv10", "conv10 needs images of at least 32 x 32"),
    ("attack --clients 400 -p fedavg", "ask for fewer clients"),
    ("attack --workers -1", "--workers must be >= 0, got -1"),
    (
        "attack --executor magic",
        "--executor must be auto, loop, stacked, padded, recorded, ray or ray:padded",
    ),
    ("attack --executor recorded --device cpu", "--executor recorded must have --device cuda"),
    ("privacy -m mask-gaussian --delta 1", "--delta must be in [1e-100, 1), got 1.0"),
    ("privacy -m mask-gaussian:c=0.5", "MaskGaussian.c must be in (0, 1/2), got 0.5"),
    ("privacy -m mask-gaussian:sigma=-0.1", "MaskGaussian.sigma must be in [0, 1e6), got -0.1"),
    ("privacy -m mask-sampling:clip=0", "MaskSampling.clip must be None or > 0, got 0.0"),
    ("privacy -m dp-fedavg --per-round 200", "a sampling rate above 1"),
    ("privacy -m dp-fedavg --adjacency swap", "--adjacency must be replace-one, zero-out"),
    ("privacy -m dp-fedavg --rounds 0", "--rounds must be >= 1, got 0"),
    ("privacy -m dp-fedavg --sees all", "--sees must be messages, sum, hidden-sum or model"),
    ("privacy -m dp-fedavg --target-epsilon -1", "--target-epsilon must be > 0, got -1.0"),
    ("privacy -m none", "makes no claim that could be priced"),
    ("privacy -m laplace", "'laplace' is not installed"),
    ("privacy -p fedavg", "makes no claim that could be priced"),
    (
        "privacy -m dp-fedavg -p skellam",
        "--mechanism and --protocol must be one of the two, got 'dp-fedavg' and 'skellam'; leave",
    ),
    ("privacy -m dp-fedavg --format xml", "--format must be table or json"),
    ("privacy -m mask-sampling --adjacency add-remove", "use replace-one or zero-out"),
    ("audit -m noisy-sign --delta 1", "--delta must"),
    ("audit -m noisy-sign --releases 10", "--releases must"),
    ("audit -m noisy-sign --dim 0", "--dim must"),
    ("audit -m noisy-sign --confidence 1", "--confidence must"),
    ("audit -m noisy-sign --method magic", "--method must"),
    ("audit -m noisy-sign --method one-run --canaries 1", "--canaries must"),
    ("audit -m noisy-sign --method one-run --canaries 321", "--canaries must"),
    ("audit -m noisy-sign --format xml", "--format must"),
    ("audit -m noisy-sign --threads 0", "--threads must"),
    ("audit -m noisy-sign --adjacency add-remove", "--adjacency add-remove"),
    ("audit -m noisy-sign --adjacency none", "--adjacency"),
    ("audit -m noisy-sign --protocol fedavg", "noisy-sign needs"),
    ("audit -m noisy-sign --rounds 0", "--rounds must"),
    ("audit -m none", "claims nothing"),
    ("probe membership --shadows 7", "--shadows must be even and >= 6, got 7"),
    ("probe membership -p fedagv", "did you mean 'fedavg'?"),
    ("probe membership -p fedavg -m mask-sampling", "mask-sampling needs a protocol"),
    ("probe membership --clients 1000", "needs at least 3 samples"),
    ("probe membership --threads 0", "--threads must be >= 1, got 0"),
    ("probe membership --seeds a", "--seeds must be distinct integers"),
    ("probe membership --delta 2", "--delta must be in [1e-100, 1)"),
    ("probe inversion --images 0", "--images must be >= 1, got 0"),
    ("probe inversion --steps 0", "--steps must be >= 1, got 0"),
    ("probe inversion -p feddrop", "inversion"),
    ("probe inversion --dataset digits --batch-size 11", "--batch-size must be"),
]

# Sweeps, and words of the answer.
SWEEPS: dict[str, tuple[bytes, str]] = {
    "no grid": (b"grid = []", "must have one [scenario] and [[grid]] tables"),
    "grid of numbers": (b"grid = 3", "must have one [scenario] and [[grid]] tables"),
    "empty axis": (b"[[grid]]\nattack = []", "grid 1: attack must have a value, got []"),
    "empty parameter": (
        b'[[grid]]\nattack = {name = "dyn-opt", via = []}',
        "grid 1: dyn-opt.via must have a value, got []",
    ),
    "names in one text": (
        b'[[grid]]\nattack = "alie,ipm"',
        "--attack 'alie,ipm' is not installed; for several write a list of names",
    ),
    "empty file": (b"", "must have a table [scenario] or [[grid]], got an empty file"),
    "nested lists": (b"a = " + b"[" * 5000 + b"]" * 5000, "less nested tables and lists"),
    "nested tables": (b"a = " + b"{a = " * 5000 + b"1" + b"}" * 5000, "less nested"),
    "nested keys": (b"a" + b".a" * 20_000 + b" = 1", "keys of at most 32 parts"),
    "5000 digits": (b"[scenario]\nclients = " + NINES.encode(), "must be TOML"),
    "4000 digits": (b"seeds = [" + b"9" * 4000 + b"]", "integers of at most 64 bits"),
    "long hexadecimal": (b"[scenario]\nclients = 0x" + b"f" * 9000, "at most 64 bits"),
    "seed above 2**63": (b"seeds = [9223372036854775808]", "at most 64 bits"),
    "negative seed": (b"seeds = [-1]", "distinct integers in 0 .. 2**63 - 1"),
    "not a number": (
        b"[scenario]\nmalicious = nan",
        "sweep.toml: --malicious must be in [0, 1), got nan",
    ),
    "binary": (bytes(range(256)), "must be TOML"),
    "long key": (LONG.encode() + b" = 1", "known: title, seeds, scenario, grid"),
    "key with an escape": (b'"\\u001b[31m" = 1', "is no part of a sweep"),
    "title with an escape": (b'title = "\\u001b[31m"', "title must be one printable line"),
    "title that is none": (b"title = 1", "title must be one printable line, got 1"),
    "long list": (b"[[grid]]\nattack = [" + b"[" * 90 + b"]" * 90 + b"]", "must be a name"),
    "too many cells": (
        b"[[grid]]\n" + b"\n".join(
            name + b" = " + str(list(range(1, 40))).encode()
            for name in (b"clients", b"rounds", b"epochs", b"eval_every")
        ),
        "a grid must mean at most 100000 combinations, got 2313441",
    ),
    "too many variants": (
        b'[[grid]]\nprotocol = {name = "fedavg", lr = %(x)b, momentum = %(x)b}'
        % {b"x": str(list(range(400))).encode()},
        "fedavg must mean at most 100000 variants, got 160000",
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own to type commands in, with nothing in it."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """What commands are pointed at."""
    paths = {name: tmp_path / name for name in ("empty", "fifo", "binary.json", "good.toml")}
    paths["empty"].mkdir()
    os.mkfifo(paths["fifo"])  # who opens it waits for ever
    paths["binary.json"].write_bytes(bytes(range(256)))
    paths["good.toml"].write_text("seeds = [0]\n[scenario]\nclients = 4\nper_round = 2\n")
    return {"zero": "/dev/zero"} | {name.partition(".")[0]: str(p) for name, p in paths.items()}


def mistake(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    """The one short line on stderr of a command that ends with 2."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    shown = capsys.readouterr()
    assert end.value.code == 2, shown
    (line,) = shown.err.splitlines()
    assert line.startswith("fedbench: ")
    assert line.isprintable()
    assert len(line) <= MAX_LINE
    assert "\x1b" not in shown.out
    return line


def test_a_mistake_is_one_short_line_and_leaves_nothing(
    capsys: pytest.CaptureFixture[str], places: dict[str, str], elsewhere: Path
) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for typed, words in TYPED:
        arguments = [places.get(text.strip("{}"), text) for text in shlex.split(typed)]
        assert words in mistake(capsys, arguments), typed
        assert list(elsewhere.iterdir()) == [], typed
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 1 << 20  # KiB: torch and what it loads, and not /dev/zero


def test_a_hostile_sweep_is_one_short_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, elsewhere: Path
) -> None:
    path = tmp_path / "sweep.toml"
    for what, (text, words) in SWEEPS.items():
        path.write_bytes(text)
        assert words in mistake(capsys, ["sweep", str(path)]), what
        assert list(elsewhere.iterdir()) == [], what


def test_a_line_keeps_its_subject_and_its_remedy() -> None:
    line = one_line(f"--{'x' * 500} must be y, got {'word ' * 200}; use z")
    assert len(line) == MAX_LINE
    assert line.startswith("--xxx")
    assert line.endswith("; use z")
    assert one_line("a\u202eb\udcff\tc\n") == "a\\u202eb\\udcff c"


def test_looking_whether_a_folder_can_be_written_leaves_it_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for folder in (tmp_path / "there", tmp_path / "new" / "deep"):
        writable(folder)
    assert not (tmp_path / "new").exists()
    assert list((tmp_path / "there").iterdir()) == []


def test_toml_and_files_keep_to_their_limits(tmp_path: Path) -> None:
    assert parsed_toml(b"a = [1.5, 2.5]\nb = -9223372036854775808", "x")["a"] == [1.5, 2.5]
    assert len(parsed_toml(b"a" + b".a" * 31 + b" = 1", "x")) == 1
    path = tmp_path / "file"
    path.write_bytes(b"1234")
    assert read_limited(path, 4) == b"1234"
