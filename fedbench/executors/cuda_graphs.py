"""A local step as a CUDA graph: one call for all of its kernels, step after step.

A step is some hundreds of small kernels, which take longer to launch than to run. It is recorded
once for each launch of clients, on the memory of that launch, so that no recording outlives what
Python decided when it was made.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field

import torch

Work = Callable[[], None]
MIN_RECORDED_STEPS = 3  # steps that are worth a recording: one is taken before it


@contextmanager
def waits_are_errors() -> Iterator[None]:
    """Raise `RuntimeError` where the processor would wait for the device, as a capture would."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


@dataclass(eq=False)
class CudaGraphs:
    """Recorder of work as CUDA graphs, which share one pool of memory and one stream.

    The last one is kept until the next one is there, since a pool ends with the last of its graphs.
    Torch gives freed memory only to the stream that had it: with a stream for each recording 30 of
    them would fill 30 times the memory of one.

    References:
        https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs, constraints and "Graph
        memory management".
    """

    last: torch.cuda.CUDAGraph | None = field(default=None, repr=False)
    beside: torch.cuda.Stream | None = field(default=None, repr=False)

    def __call__(self, work: Work) -> Work:
        """Record what the work would do, without doing it; return its replay."""
        graph = torch.cuda.CUDAGraph()
        pool = None if self.last is None else self.last.pool()
        here = torch.cuda.current_stream()
        if self.beside is None:
            self.beside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        beside = self.beside
        beside.wait_stream(here)
        with torch.cuda.stream(beside):  # the default stream cannot be recorded
            graph.capture_begin(pool=pool)
            try:
                work()
            except BaseException:
                with suppress(RuntimeError):  # or stream and pool would go on to be recorded
                    graph.capture_end()
                raise
            graph.capture_end()
        here.wait_stream(beside)
        self.last = graph
        return graph.replay


@dataclass(eq=False)
class GraphReplay:
    """Player of work that is recorded as a CUDA graph and replayed.

    The work runs once as written, and every wait for the device is an error there, as it would be
    in a recording: then a warning says so, and this and all later work runs as written.
    """

    record: Callable[[Work], Work] = field(default_factory=CudaGraphs)
    strict: Callable[[], AbstractContextManager[object]] = waits_are_errors
    works: bool = True

    def __call__(self, work: Work, times: int) -> None:
        """Do the work so many times: the same kernels on the same memory each time."""
        again = work
        if self.works and times >= MIN_RECORDED_STEPS:
            try:
                with self.strict():
                    work()
            except RuntimeError as error:
                self.works = False
                reason = str(error).partition("\n")[0]
                text = f"steps are no longer recorded: {reason}"
                warnings.warn(text, RuntimeWarning, stacklevel=2)
            else:
                times -= 1
                again = self.record(work)
        for _ in range(times):
            again()
