"""Writer of the stub file and of the tables in the docs: ``python -m fedbench.functional``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from fedbench.functional.catalogue import stub, table

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "functional.md"
MARK = "<!-- written by python -m fedbench.functional -->\n"


def main() -> None:
    """Write both files anew, and have ruff lay the stub out."""
    path = HERE / "__init__.pyi"
    path.write_text(stub())
    subprocess.run([sys.executable, "-m", "ruff", "format", "-q", path], check=True)
    if PAGE.exists():
        head = PAGE.read_text().partition(MARK)[0]
        PAGE.write_text(head + MARK + "\n" + table())


if __name__ == "__main__":
    main()
