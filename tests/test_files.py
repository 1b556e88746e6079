"""Files are written whole, where they are meant to be, or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.core.errors import ConfigError
from fedbench.core.files import write_atomically


def test_a_link_stays_and_the_file_that_it_leads_to_is_written(tmp_path: Path) -> None:
    real = tmp_path / "elsewhere" / "real.csv"
    real.parent.mkdir()
    real.write_bytes(b"old")
    link = tmp_path / "link.csv"
    link.symlink_to(real)
    write_atomically(link, b"new")
    assert link.is_symlink()
    assert real.read_bytes() == b"new"
    assert [path.name for path in real.parent.iterdir()] == ["real.csv"]


def test_a_device_a_pipe_or_a_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(ConfigError, match="pipe must be a file, got a device or a pipe; choose"):
        write_atomically(pipe, b"new")
    with pytest.raises(ConfigError, match="folder must be a file, got a folder; choose"):
        write_atomically(folder, b"new")
    assert pipe.is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]


@pytest.mark.parametrize(("umask", "mode"), [("022", 0o644), ("077", 0o600), ("002", 0o664)])
def test_who_may_read_a_file_is_what_the_users_umask_says(
    umask: str, mode: int, tmp_path: Path
) -> None:
    code = "from pathlib import Path; from fedbench.core.files import write_atomically; "
    code += f"write_atomically(Path({str(tmp_path / 'file')!r}), b'x')"
    # A shell sets the umask of the process alone; here other threads would have it, too.
    command = f'umask {umask}; exec {sys.executable} -c "$0"'
    subprocess.run(["sh", "-c", command, code], check=True, timeout=60)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode
