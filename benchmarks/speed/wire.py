"""Time of the wire: bytes of a round's messages and back, on one thread and on several.

``python benchmarks/speed/wire.py`` prints Markdown. Clients of lenet train a step, then their
messages are encoded and decoded with 1 and with ``--threads`` threads in turns. ms: processor time
of one message on one thread, least of the turns; faster: wall time on one thread over that on
several, median and range of neighbouring turns; held: of one call, the longest time for which a
second thread of Python stood still. Where that is most of the call, it holds the interpreter's
lock, and threads cannot share it out. ``--rounds N`` plays N pairs of whole rounds of fsl instead,
whose messages one thread codes, or several; training has several in both. ``--overlap`` evaluates
a model on 2,000 samples after the wire, and in a second thread of Python during it, and prints the
processor time of each and the wall time in turn over that at a time. Needs an idle processor.
"""

from __future__ import annotations

import argparse
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from paired import short
from round_phases import Plan, pool, ready

from fedbench.executors.malloc import keep_memory
from fedbench.experiment.evaluation import models, score_models
from fedbench.experiment.stages import Training, honest_messages, send
from fedbench.payload import Payload, Rankings
from fedbench.payload.packets import code_residues, decode_residues, pack, unpack
from fedbench.run import begin, play_round

PROTOCOLS = ("fsl", "signsgd", "drive", "qsgd", "fedpm", "fedmrn", "fedavg")
TESTED = 2000  # samples of an evaluation
Work = Callable[[], object]


def sent(protocol: str, model: str, clients: int, device: str = "cpu") -> Payload:
    """Messages of clients that have trained one step."""
    setup = ready(protocol, model, Plan(clients, samples=8), device, "loop")
    state = begin(setup)
    ids = setup.sample(0)
    _, broadcast = send(setup, state.server, ids, 0)
    rows = [broadcast.take([row]) for row in range(len(broadcast))]
    protocol_ = setup.plugins.protocol
    trees = [protocol_.receive(setup.shared, row) for row in rows]
    given = setup.clients(ids, trees, state.memories, 0)
    view = setup.view(ids, broadcast, 0)
    training = Training(range(len(ids)), ids, view, given, setup.executor.begin(given))
    idle = protocol_.idle(setup.shared, broadcast)
    return honest_messages(setup, state, training, *training.wait(), idle).messages


def seconds(work: Work, threads: int) -> tuple[float, float]:
    """Wall time and processor time of ``work`` with so many threads."""
    torch.set_num_threads(threads)
    wall = time.perf_counter()
    busy = time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - busy


def cells(work: Work, rows: int, threads: int, turns: int) -> list[str]:
    """Milliseconds of a message, how much faster several threads are, and the range."""
    work()
    pairs = [(seconds(work, 1), seconds(work, threads)) for _ in range(turns)]
    ratios = [single[0] / several[0] for single, several in pairs]
    least = min(single[1] for single, _ in pairs)
    spread = f"{short(min(ratios))}-{short(max(ratios))}"
    return [f"{1e3 * least / rows:.2f}", f"{statistics.median(ratios):.2f}", spread]


def held(call: Work, tries: int = 5) -> float:
    """Share of ``call`` for which another thread stood still, the least of some tries."""
    pause = 0.0
    state = "idle"

    def count() -> None:
        nonlocal pause
        last = time.perf_counter()
        while state != "over":
            now = time.perf_counter()
            if state == "measured":
                pause = max(pause, now - last)
            last = now

    other = threading.Thread(target=count)
    other.start()
    shares = []
    for _ in range(tries):
        pause = 0.0
        start = time.perf_counter()
        state = "measured"
        call()
        took = time.perf_counter() - start
        time.sleep(0.01)
        state = "idle"
        shares.append(min(pause / took, 1.0))
    state = "over"
    other.join()
    return min(shares)


def calls(count: int) -> dict[str, Work]:
    """Calls of which the wire is made, on so many numbers."""
    ranks = np.arange(count, dtype=np.int32)
    packed, _ = pack(ranks, 25)
    bits = ranks % 3 == 0
    threes = ranks % 3
    coded, _ = code_residues(threes, 3)
    packet = type("Bytes", (), {"data": coded.tobytes()})()
    return {
        "pack": lambda: pack(ranks, 25),
        "unpack": lambda: unpack(packed, count, 25),
        "packbits": lambda: np.packbits(bits),
        "bincount": lambda: np.bincount(threes),
        "tobytes": lambda: ranks.tobytes(),
        "constriction, coding": lambda: code_residues(threes, 3),
        "constriction, and decoding": lambda: decode_residues(packet, count, 3),
    }


def rounds(model: str, clients: int, threads: int, pairs: int) -> str:
    """Play pairs of rounds of fsl; return how much faster one is whose rows threads share out."""
    torch.set_num_threads(threads)
    setup = ready("fsl", model, Plan(clients, samples=20), "cpu", "loop")
    state = begin(setup)
    shared_out = Rankings.shared_out
    took: dict[bool, list[float]] = {False: [], True: []}
    play_round(setup, state, 0)
    for step in range(1, 2 * pairs + 1):
        several = step % 4 in (0, 1)  # the first of a pair in turns
        Rankings.shared_out = several
        start = time.perf_counter()
        play_round(setup, state, step)
        took[several].append(time.perf_counter() - start)
    Rankings.shared_out = shared_out
    ratios = [single / shared for single, shared in zip(took[False], took[True], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return (
        f"{pairs} pairs of rounds of fsl: {middle:.3f} times as fast with {threads} threads, "
        f"quartiles {low:.3f} and {high:.3f}; least {min(took[False]):.2f} and "
        f"{min(took[True]):.2f} s"
    )


def overlap(protocol: str, model: str, clients: int, threads: int, turns: int) -> list[str]:
    """Milliseconds of wire and evaluation, and how much faster than in turn they are at a time."""
    torch.set_num_threads(1)
    payload = sent(protocol, model, clients)
    setup = ready(protocol, model, Plan(clients), "cpu", "loop")
    server = begin(setup).server
    data = pool(model, TESTED)

    def wire() -> None:
        payload.decode(payload.encode(), payload.spec)

    def evaluation() -> None:
        answering = models(setup, server, 0)
        score_models(setup.shared.network, answering, data, [torch.arange(TESTED)])

    def in_turn() -> None:
        wire()
        evaluation()

    def at_a_time() -> None:
        evaluated = other.submit(evaluation)
        wire()
        evaluated.result()

    def elsewhere() -> None:
        other.submit(evaluation).result()

    alone = partial(torch.set_num_threads, 1)
    works = {wire: 1, evaluation: 1, elsewhere: 1, at_a_time: 1, in_turn: 1}
    with ThreadPoolExecutor(1, initializer=alone) as other:
        at_a_time()
        took = []
        for _ in range(turns):
            turn = [seconds(work, many) for work, many in works.items()]
            took.append([*turn, seconds(in_turn, threads)])
    row = [f"{1e3 * min(turn[work][1] for turn in took):.0f}" for work in range(3)]
    for way in (4, 5):
        ratios = [turn[way][0] / turn[3][0] for turn in took]
        row += [f"{statistics.median(ratios):.2f}", f"{short(min(ratios))}-{short(max(ratios))}"]
    return row


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="lenet")
    parser.add_argument("-p", "--protocol", action="append", help=f"default: {PROTOCOLS}")
    parser.add_argument("--clients", type=int, default=25)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--count", type=int, default=10_000_000, help="numbers of a call")
    parser.add_argument("--rounds", type=int, help="pairs of whole rounds to play instead")
    parser.add_argument("--overlap", action="store_true", help="evaluate meanwhile instead")
    given = parser.parse_args(words)
    keep_memory()
    if given.rounds:
        print(rounds(given.model, given.clients, given.threads, given.rounds))
        return
    if given.overlap:
        ways = f"at a time | range | than with {given.threads} threads | range"
        print(f"| protocol | wire, ms | evaluation, ms | in the other thread, ms | {ways} |")
        print("| :-- |" + " --: |" * 7)
        for protocol in given.protocol or ("fsl", "qsgd", "fedpm"):
            row = overlap(protocol, given.model, given.clients, given.threads, given.turns)
            print("| " + " | ".join([protocol, *row]) + " |", flush=True)
        return
    print("| protocol | encode, ms | faster | range | decode, ms | faster | range |")
    print("| :-- |" + " --: |" * 6)
    for protocol in given.protocol or PROTOCOLS:
        torch.set_num_threads(1)
        payload = sent(protocol, given.model, given.clients)
        packets = payload.encode()
        back = partial(payload.decode, packets, payload.spec)
        row = [protocol]
        for work in (payload.encode, back):
            row += cells(work, given.clients, given.threads, given.turns)
        print("| " + " | ".join(row) + " |", flush=True)
    torch.set_num_threads(1)
    print("\n| call | held, % |\n| :-- | --: |")
    for name, call in calls(given.count).items():
        print(f"| {name} | {100 * held(call):.0f} |", flush=True)


if __name__ == "__main__":
    main()
