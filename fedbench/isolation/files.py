"""Files, sockets and programs that an isolated process may open: code, and what comes with it.

Test data lie in files that anybody can read, and a plug-in that reads them knows the answers. An
audit hook of Python sees what Python opens. It holds code that does not know of it: what machine
code opens is not seen (a plug-in's own, ctypes, ``torch.from_file``), and a plug-in can change the
functions of this module.
"""

import os
import sys
from importlib.machinery import all_suffixes
from pathlib import Path

CODE = (*all_suffixes(), ".pth", ".dll", ".dylib")
METADATA = ("METADATA", "PKG-INFO", "entry_points.txt", "RECORD", "direct_url.json")
PLACES = ("/sys", "/dev", "/usr/share/zoneinfo", sys.prefix, sys.base_prefix)
# What data lie in, wherever they are: packages bring data sets along.
DATA = (
    *(".npz", ".npy", ".csv", ".tsv", ".gz", ".bz2", ".xz", ".zip", ".tar", ".parquet", ".arrow"),
    *(".feather", ".h5", ".hdf5", ".pt", ".ckpt", ".safetensors", ".pkl", ".pickle", ".jsonl"),
    *(".bin", ".idx", ".mat", ".arff", ".data", "-ubyte"),
)
# What of the processes a library may ask; the memory of another one holds the test data.
PROCESSES = ("/proc/self/maps", "/proc/self/status", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat")
# What leads out of the process beside opening files, or gives data another name.
REFUSED = (
    *("os.link", "os.symlink", "os.rename", "shutil.copyfile", "shutil.move", "sqlite3.connect"),
    *("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto", "subprocess.Popen"),
    *("os.exec", "os.posix_spawn", "os.spawn", "os.system"),
)


def open_no_data() -> None:
    """Refuse, from now on and in every thread and fork, to open what may be data.

    What is refused raises `PermissionError` where it was tried.
    """
    sys.dont_write_bytecode = True
    sys.addaudithook(_refuse)


def may_open(path: object) -> bool:
    """Tell whether a path is that of code, or of a package or the system and not that of data.

    >>> may_open("/lib/module.py"), may_open("/data/labels.txt"), may_open("/dev/null")
    (True, False, True)
    >>> may_open(sys.prefix + "/lib/x/style.css"), may_open(sys.prefix + "/lib/x/digits.csv.gz")
    (True, False)
    """
    if isinstance(path, int):  # an open file
        return True
    text = os.fsdecode(path) if isinstance(path, bytes | str | os.PathLike) else ""
    real = Path(os.path.realpath(text))
    within = any(real.is_relative_to(os.path.realpath(folder)) for folder in PLACES)
    return (
        text in PROCESSES
        or real.name.endswith(CODE)
        or real.name in METADATA
        or (within and not real.name.lower().endswith(DATA))
    )


def _refuse(event: str, arguments: tuple[object, ...]) -> None:
    """Raise `PermissionError` for what an isolated process may not do."""
    if event in REFUSED:
        raise PermissionError(f"an isolated plug-in must compute only, got {event}")
    if event != "open":
        return
    path, mode, flags = arguments
    made = os.O_CREAT | os.O_EXCL
    new = isinstance(flags, int) and flags & made == made  # a file that is made now has no data
    if new:
        return
    legal = type(path) in (str, bytes, int) and may_open(path)  # another type may have two names
    if mode is None and isinstance(path, str | bytes):  # `os.open`, maybe within some `dir_fd`
        legal = legal and os.path.isabs(path)
    if not legal:
        raise PermissionError(f"an isolated plug-in must open no data, got {path!r}")
