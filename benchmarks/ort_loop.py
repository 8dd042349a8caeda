"""ONNX Runtime in a loop and nothing around it: what a server is held against.

    python -m benchmarks.ort_loop MODEL THREADS BATCH [CORE]

Reads one number of seconds a line, runs for so long, and writes one line of JSON: items and seconds of the
run, and the median time of a call. The parent's `Loop` drives several such processes at once.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median
from time import perf_counter

import numpy as np

from partita.system.parent import die_with_parent


@dataclass(frozen=True, slots=True)
class Shape:
    """So many processes, each with so many threads and items a call."""

    processes: int
    threads: int
    batch: int

    def __str__(self) -> str:
        return f"{self.processes} x {self.threads} threads, batch {self.batch}"


@dataclass(frozen=True, slots=True)
class Run:
    """Items a second of all processes together, and the median time of a call."""

    items_per_s: float
    p50_ms: float


class Loop:
    """Processes of one shape, loaded and asleep until `run`."""

    def __init__(self, shape: Shape, processes: Sequence["subprocess.Popen[str]"]) -> None:
        self.shape = shape
        self._processes = processes

    def run(self, seconds: float) -> Run:
        """Run all of them at once."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{seconds}\n")
            process.stdin.flush()
        found = []
        for process in self._processes:
            assert process.stdout is not None
            found.append(json.loads(process.stdout.readline()))
        return Run(
            sum(one["items"] / one["seconds"] for one in found), median(one["p50_ms"] for one in found)
        )


@contextmanager
def turns(path: Path, shape: Shape, loops: int = 2) -> Iterator[Callable[[float], Run]]:
    """Yield a run of one of several equal loops, each in its turn.

    Two processes that run the same loop differ by some percent for as long as they live; a comparison with
    one of them holds that difference too.
    """
    with ExitStack() as stack:
        found = cycle([stack.enter_context(loop(path, shape)) for _ in range(loops)])
        yield lambda seconds: next(found).run(seconds)


@contextmanager
def loop(path: Path, shape: Shape) -> Iterator[Loop]:
    """Start the processes of a shape; they end with the block."""
    with ExitStack() as stack:
        processes = []
        for number in range(shape.processes):
            argv = [
                sys.executable,
                "-m",
                "benchmarks.ort_loop",
                str(path),
                str(shape.threads),
                str(shape.batch),
            ]
            if shape.processes > 1:
                argv.append(str(sorted(os.sched_getaffinity(0))[number]))
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=partial(die_with_parent, os.getpid()),  # noqa: PLW1509 no thread of ours runs yet
            )
            stack.enter_context(process)
            stack.callback(process.terminate)
            processes.append(process)
        found = Loop(shape, processes)
        found.run(0.0)  # loaded and warm
        yield found


def main(argv: Sequence[str]) -> int:
    path, threads, batch, *core = argv
    if core:
        os.sched_setaffinity(0, {int(core[0])})
    import onnxruntime as ort

    settings = ort.SessionOptions()
    settings.intra_op_num_threads = int(threads)
    settings.inter_op_num_threads = 1
    session = ort.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    (taken,) = session.get_inputs()
    items = np.ones((int(batch), *taken.shape[1:]), np.float32)
    feed = {taken.name: items}
    for _ in range(3):
        session.run(None, feed)
    for line in sys.stdin:
        times: list[float] = []
        begun = now = perf_counter()
        end = begun + float(line)
        while not times or now < end:
            session.run(None, feed)
            times.append(perf_counter() - now)
            now += times[-1]
        document = {"items": len(times) * len(items), "seconds": now - begun, "p50_ms": median(times) * 1e3}
        print(json.dumps(document), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
