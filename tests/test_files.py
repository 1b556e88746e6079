"""Files are written whole, where they are meant to be, or not at all."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fedbench.core.errors import ConfigError
from fedbench.core.files import parsed_toml, read_limited, replaced, writable, write_atomically


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


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
def test_a_write_that_is_interrupted_leaves_the_old_file_and_nothing_else(
    error: type[BaseException], tmp_path: Path
) -> None:
    path = tmp_path / "record.json"
    write_atomically(path, b"old")

    def write() -> None:
        with replaced(path) as temporary:
            temporary.write_bytes(b"half of the n")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_bytes() == b"old"
    assert [each.name for each in tmp_path.iterdir()] == ["record.json"]


def test_bytes_reach_the_disk_before_the_name_and_the_name_before_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened = []
    rename = os.replace

    def note(handle: int) -> None:
        happened.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")

    def note_rename(old: str, new: Path) -> None:
        happened.append("rename")
        rename(old, new)

    monkeypatch.setattr(os, "fsync", note)
    monkeypatch.setattr(os, "replace", note_rename)
    write_atomically(tmp_path / "record.json", b"new")
    assert happened == ["file", "rename", "folder"]


def test_a_folder_is_tried_and_left_as_absent_as_it_was(tmp_path: Path) -> None:
    writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []


def test_a_foreign_file_may_be_as_large_as_the_limit_and_no_larger(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(b"x" * 2048)
    assert read_limited(path, 2048) == b"x" * 2048
    with pytest.raises(ConfigError, match=r"trace.csv must have at most 1 KiB, got more$"):
        read_limited(path, 2047)


def test_a_key_of_toml_may_have_32_parts_and_no_more() -> None:
    for parts in (32, 33):
        key = ".".join("a" * parts).encode()
        if parts == 32:
            assert list(parsed_toml(key + b" = 1", "x.toml")) == ["a"]
            continue
        with pytest.raises(ConfigError, match=r"x.toml must have keys of at most 32 parts"):
            parsed_toml(key + b" = 1", "x.toml")
