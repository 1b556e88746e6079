"""The pages of the documentation site say what happens: every block of code on them is run."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SITE = (ROOT / "docs" / "site" / "mkdocs.yml").read_text()
BLOCK = re.compile(r"^```(python|console|toml)(?: title=\"([\w.]+)\")?\n(.*?)^```$", re.M | re.S)
# A page that needs more says which test runs it: `<!-- tested by tests/test_x.py -->`.
ELSEWHERE = re.compile(r"<!-- tested by (tests/test_\w+\.py)")
PAGES = [
    ROOT / "docs" / "tutorial.md",
    *sorted(ROOT.glob("docs/how-to/*.md")),
    *sorted(ROOT.glob("docs/reference/*.md")),
]


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield language, file name and text of the blocks of a page that are run."""
    for language, name, text in BLOCK.findall(page.read_text()):
        if language != "toml" or name:
            yield language, name, text


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    if elsewhere := ELSEWHERE.findall(page.read_text()):
        assert all((ROOT / name).exists() for name in elsewhere)
        return
    python = []
    for language, name, text in blocks(page):
        if language == "python":
            python.append(text)
        elif language == "toml":
            (tmp_path / name).write_text(text)
        else:
            path = f"PATH={Path(sys.executable).parent}:$PATH\nset -e\n"
            run(["bash", "-c", path + text], tmp_path)
    (tmp_path / "page.py").write_text("\n".join(python))
    run([sys.executable, "page.py"], tmp_path)


def run(command: list[str], folder: Path) -> None:
    one = os.environ | {"OMP_NUM_THREADS": "1"}  # two threads of torch crawl beside other tests
    done = subprocess.run(command, cwd=folder, env=one, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_page_is_in_the_navigation() -> None:
    named = set(re.findall(r": ([\w/-]+\.md)$", SITE, re.M))
    folders = re.findall(r": ([\w-]+/)(?:  #.*)?$", SITE, re.M)
    assert folders == ["how-to/", "results/"]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.md")}
    entered = (*folders, "results.md")
    assert [page for page in pages - named if not page.startswith(entered)] == []
    outside = re.findall(r'^    "(\w+\.md)": "([\w/.]+)",$', HOOK.read_text(), re.M)
    assert named - pages == {page for page, _ in outside}
    assert all((ROOT / source).exists() for _, source in outside)


HOOK = ROOT / "docs" / "site" / "repository.py"


def test_the_site_is_strict() -> None:
    assert "\nstrict: true\n" in SITE
    for part in ("nav", "links"):
        (levels,) = re.findall(rf"^  {part}: {{(.*)}}$", SITE, re.M)
        assert {level.split(": ")[1] for level in levels.split(", ")} == {"warn"}
    (build,) = re.findall(r"^\t.*mkdocs build.*$", (ROOT / "Makefile").read_text(), re.M)
    assert "--quiet" not in build  # which would count no warning
