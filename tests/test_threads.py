"""Threads over rows: the same bytes and rejections for any number of them, and no more of them."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedbench.core.errors import IllegalPayloadError
from fedbench.core.threads import each
from fedbench.payload import (
    GatedVectors,
    Payload,
    PrunedVectors,
    Rankings,
    Spec,
    TopRankings,
    identical,
    ranking,
)
from fedbench.payload.packets import BitString, Packet, join
from fedbench.payload.sparse import Alive
from fedbench.testing.contracts import example_payloads

TASKS = Path("/proc/self/task")
ALPHABETS = example_payloads(n=7)
NAMES = [f"{i}-{type(payload).__name__}" for i, payload in enumerate(ALPHABETS)]


@pytest.fixture(autouse=True)
def threads_of_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("fedbench.core.threads.MIN_ROW_SECONDS", 0.0)  # these rows are short
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def spoiled(packets: list[Packet]) -> list[Packet]:
    """Cut the third message, and lengthen the last one."""
    out = list(packets)
    out[2] = Packet.raw(packets[2].data[:-1])
    out[-1] = Packet.raw(packets[-1].data + b"\1\2\3\4")
    return out


@pytest.mark.parametrize("payload", ALPHABETS, ids=NAMES)
def test_bytes_and_rejections_do_not_depend_on_threads(payload: Payload) -> None:
    alone = [packet for row in range(7) for packet in payload.take([row]).encode()]
    accepted_by = set()
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        packets = payload.encode()
        assert packets == alone, f"{threads} threads"
        received, accepted = payload.decode(spoiled(packets), payload.spec)
        assert received is not None
        expected = payload.take(accepted.nonzero()[:, 0])
        if "remembered" in vars(payload):  # does not travel
            expected = expected.put(range(len(expected)), received)
            received = expected.put(range(len(expected)), received)
        assert identical(received, expected), f"{threads} threads"
        accepted_by.add(tuple(accepted.tolist()))
        assert torch.get_num_threads() == threads
    assert accepted_by == {(True, True, False, True, True, True, False)}


@pytest.mark.parametrize("payload", ALPHABETS, ids=NAMES)
def test_threads_share_out_the_rows_of_rankings_alone(payload: Payload) -> None:
    seen: set[int] = set()

    class Watched(type(payload)):  # type: ignore[misc]
        """The same messages, which note the threads that code them."""

        def parts(self) -> list[BitString]:
            seen.add(threading.get_ident())
            return list(super().parts())

        @classmethod
        def decode_row(cls, packet: Packet, spec: Spec) -> Payload:
            seen.add(threading.get_ident())
            row: Payload = super().decode_row(packet, spec)
            return row

    torch.set_num_threads(3)
    shared = isinstance(payload, Rankings | TopRankings)
    packets = Watched(**vars(payload)).encode()
    assert (len(seen) > 1) == shared
    seen.clear()
    Watched.decode(packets, payload.spec)
    assert (len(seen) > 1) == shared


def test_the_first_row_that_raises_is_the_one_whose_error_comes() -> None:
    def work(row: int) -> int:
        if row in (3, 8):
            raise IllegalPayloadError(f"row {row}")
        return row

    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        with pytest.raises(IllegalPayloadError, match="row 3"):
            each(work, range(20))
        assert torch.get_num_threads() == threads
        assert each(work, [1, 9, 4]) == [1, 9, 4]
        assert each(work, []) == []


def test_there_are_as_many_threads_as_torch_may_use_and_one_is_the_caller_s_own() -> None:
    here = threading.get_ident()
    for threads, rows, expected in ((1, 7, 0), (3, 7, 3), (3, 3, 2), (3, 2, 0), (3, 1, 0)):
        torch.set_num_threads(threads)
        gate = threading.Barrier(max(expected, 1))  # opens only if so many work at a time

        def work(row: int, gate: threading.Barrier = gate) -> tuple[int, int]:
            if row:
                gate.wait(timeout=60)
            return threading.get_ident(), torch.get_num_threads()

        before = threading.active_count()
        first, *others = each(work, range(rows))
        assert first == (here, threads)
        idents = {ident for ident, _ in others}
        if expected:
            assert len(idents - {here}) == len(idents) == expected
            assert {number for _, number in others} == {1}
        else:
            assert idents <= {here}
        assert threading.active_count() == before
        assert torch.get_num_threads() == threads


def test_rows_that_are_short_are_all_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    monkeypatch.setattr("fedbench.core.threads.MIN_ROW_SECONDS", 1e6)
    assert set(each(lambda _: threading.get_ident(), range(5))) == {threading.get_ident()}


@pytest.mark.skipif(not TASKS.exists(), reason="only Linux lists the threads of a process")
def test_no_alphabet_starts_threads_of_its_own_in_each_thread() -> None:
    d = 100_000  # torch shares out what has more than 32768 numbers
    x = torch.linspace(-1, 1, 4 * d).reshape(4, d)
    gates = GatedVectors(x[:, :100] > -2, x, x[:, :0], (((100, d // 100), ((0, 0, 1),)),))
    pruned = PrunedVectors(x > 2, x, x[:, :0], d // 4, Alive())
    payloads = [Rankings(ranking(x, (d,)), (d,)), gates, pruned.nearest(torch.cat([x, x], dim=1))]
    torch.set_num_threads(3)
    assert x.exp().isfinite().all()  # the caller's own threads are there now
    before = len(os.listdir(TASKS))
    for payload in payloads:

        def there_and_back(row: int, payload: Payload = payload) -> int:
            own = type(payload)(
                **vars(payload)
                | {name: value[row : row + 1] for name, value in payload.travelling().items()}
            )
            packet = join(own.parts())
            assert identical(own.decode_row(packet, own.spec), own)
            return len(os.listdir(TASKS))

        assert before < max(each(there_and_back, range(4))) <= before + 3
