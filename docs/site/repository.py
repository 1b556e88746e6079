"""Hook of MkDocs: pages from outside of docs/, and links that work in the repository, too."""

import os
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
OUTSIDE = {  # page of the site: file of the repository
    "attacks.md": "attacks/README.md",
    "defenses.md": "defenses/README.md",
    "leaderboards.md": "leaderboards/README.md",
    "contributing.md": "CONTRIBUTING.md",
    "changelog.md": "CHANGELOG.md",
}
_LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_CODE = re.compile(r"(```.*?```)", re.DOTALL)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace a folder of the navigation by its pages, so that a new page needs no entry."""
    folder = Path(config.docs_dir)
    for entry in config.nav or []:
        for title, place in list(entry.items()):
            if isinstance(place, str) and place.endswith("/"):
                first = [f"{place[:-1]}.md"] if (folder / f"{place[:-1]}.md").exists() else []
                pages = sorted(
                    path.relative_to(folder).as_posix() for path in (folder / place).glob("*.md")
                )
                entry[title] = first + pages
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside of docs/."""
    for page, source in OUTSIDE.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    files.append(File.generated(config, "site.css", abs_src_path=str(ROOT / "docs/site/site.css")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files of the repository at their pages; without one they become plain text."""
    here = page.file.src_uri
    source = ROOT / OUTSIDE.get(here, f"docs/{here}")
    pages = {(ROOT / path).as_posix(): page for page, path in OUTSIDE.items()}
    pages[(ROOT / "README.md").as_posix()] = "index.md"

    def resolved(match: re.Match[str]) -> str:
        text, target = match.groups()
        name, hash, anchor = target.partition("#")
        if not name or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = Path(os.path.normpath(source.parent / name))
        inside = os.path.relpath(path, ROOT / "docs")
        there = pages.get(path.as_posix(), inside)
        if there is not None and there in files.src_uris:
            return f"[{text}]({os.path.relpath(there, os.path.dirname(here) or '.')}{hash}{anchor})"
        if not path.exists():
            return match[0]  # MkDocs says that it leads nowhere
        place = f"{config.repo_url}/blob/main/{path.relative_to(ROOT)}"
        return f"[{text}]({place})" if config.repo_url else text

    parts = _CODE.split(markdown)
    return "".join(part if k % 2 else _LINK.sub(resolved, part) for k, part in enumerate(parts))
