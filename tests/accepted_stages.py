"""Stages of an acceptance run that end in all the ways that a stage can end."""

import os
import subprocess
import sys

from gpu_stages import Job, Note


def finds(job: Job, note: Note) -> None:
    note("device", job.device)


def raises(job: Job, note: Note) -> None:
    note("before", 1)
    raise RuntimeError("the device is lost")


def dies(job: Job, note: Note) -> None:
    note("before", 2)
    os._exit(3)


def starts_another(job: Job, note: Note) -> None:
    waits = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note("child", waits.pid)
    waits.wait()
