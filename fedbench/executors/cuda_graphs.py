"""A local step as a CUDA graph: one call for all of its kernels, step after step.

A step is some hundreds of small kernels, which take longer to launch than to run. It is recorded
once for each launch of clients, on the memory of that launch, so that no recording outlives what
Python decided when it was made.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import torch

FEWEST = 4  # steps that are worth a recording: one is taken before it


@dataclass(eq=False)
class CudaGraphs:
    """Takes steps by replaying the second one of them.

    The first one runs as written, and every wait for the device is an error in it, as it would be
    in a recording: then a warning says so, and these and all later steps run as written. All graphs
    share one pool of memory, which lives as long as one of them: so the last one is kept until the
    next one is recorded.

    References:
        https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs, constraints and "Graph
        memory management".
    """

    works: bool = True
    last: torch.cuda.CUDAGraph | None = field(default=None, repr=False)

    @cached_property
    def pool(self) -> tuple[int, int]:
        """Handle of the memory that the graphs share."""
        return torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], None], times: int) -> None:
        """Do the work so many times: it must be the same kernels on the same memory each time."""
        replay = work
        if self.works and times >= FEWEST:
            if self._waits(work):
                self.works = False
            else:
                times -= 1
                replay = self._recorded(work)
        for _ in range(times):
            replay()

    def _waits(self, work: Callable[[], None]) -> bool:
        """Do the work once; return whether it stopped because it waits for the device."""
        before = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("error")
        try:
            work()
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            text = f"steps are no longer recorded: {reason}"
            warnings.warn(text, RuntimeWarning, stacklevel=2)
            return True
        finally:
            torch.cuda.set_sync_debug_mode(before)
        return False

    def _recorded(self, work: Callable[[], None]) -> Callable[[], None]:
        """Record what the work would do, without doing it; return its replay."""
        graph = torch.cuda.CUDAGraph()
        here = torch.cuda.current_stream()
        beside = torch.cuda.Stream()
        beside.wait_stream(here)
        with torch.cuda.stream(beside):  # the default stream cannot be recorded
            graph.capture_begin(pool=self.pool)
            work()
            graph.capture_end()
        here.wait_stream(beside)
        self.last = graph
        return graph.replay
