"""Partita's plan with OpenVINO against OpenVINO's own hints, on the same cores and load, A B A B.

The load is one aggregate batch at a time. A is Partita's plan for it. B is a process with nothing but
OpenVINO, which gets the batch as its hint has it: LATENCY as one request, THROUGHPUT divided over as many
requests at once as OpenVINO says are best. Its items lie in its own memory already. Both times are those
that the processes at work tell: from when the first begins until the last item is there.

    python -m benchmarks.openvino_hints --quick
    python -m benchmarks.openvino_hints --models resnet50 --batches 1,8
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import exp, log
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from benchmarks.compare import MIN_ALTERNATIONS, Comparison, alternate
from benchmarks.figures import Figure, load_average, options, report
from benchmarks.models import model_path
from benchmarks.race import BURST, Race
from benchmarks.runtimes import CACHE
from partita.core.plan import Plan
from partita.launching import launch_of
from partita.planning.optimizer import Optimizer
from partita.planning.placement import place
from partita.profiles import Measuring, measured
from partita.sources import find_models
from partita.system.cpus import read_topology, select_cores

HINTS = ("LATENCY", "THROUGHPUT")
MODELS = ("depthwise", "big_dense", "lstm", "resnet50")
BATCHES = (1, 4, 16)
LEAST = 0.97

CHILD = """
import os, sys, time
cores, path = [int(c) for c in sys.argv[1].split(",")], sys.argv[2]
os.sched_setaffinity(0, cores)
sys.modules.setdefault("openvino_telemetry", None)
import numpy as np
import openvino as ov
core = ov.Core()
compiled, requests = {}, {}
for hint in ("LATENCY", "THROUGHPUT"):
    settings = {"PERFORMANCE_HINT": hint, "INFERENCE_NUM_THREADS": len(cores)}
    settings["INFERENCE_PRECISION_HINT"] = "f32"
    compiled[hint] = core.compile_model(core.read_model(path), "CPU", settings)
    count = compiled[hint].get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") if hint == "THROUGHPUT" else 1
    requests[hint] = [compiled[hint].create_infer_request() for _ in range(count)]
shape = [axis.get_length() for axis in list(compiled["LATENCY"].inputs[0].get_partial_shape())[1:]]
items = np.random.default_rng(0).standard_normal((64, *shape), np.float32)
print("ready", flush=True)
for line in sys.stdin:
    begun_ns = time.perf_counter_ns()
    hint, batch = line.split()
    batch = int(batch)
    running = requests[hint][:batch]
    edges = [batch * k // len(running) for k in range(len(running) + 1)]
    for request, start, stop in zip(running, edges, edges[1:]):
        request.set_input_tensor(ov.Tensor(items[start:stop]))
        request.start_async()
    for request in running:
        request.wait()
        request.get_output_tensor().data.copy()
    print(time.perf_counter_ns() - begun_ns, flush=True)
"""


class Bare:
    """A process with OpenVINO and nothing else, pinned to the cores."""

    def __init__(self, path: Path, cores: Sequence[int]) -> None:
        argv = [sys.executable, "-c", CHILD, ",".join(map(str, cores)), str(path)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._line() == "ready"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def turn_ms(self, hint: str, batch: int, *, burst: int = BURST) -> float:
        """Return the milliseconds of one batch, the least of a turn but for its first."""
        return min([self._batch_ms(hint, batch) for _ in range(burst)][burst > 1 :])

    def _batch_ms(self, hint: str, batch: int) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{hint} {batch}\n")
        self._process.stdin.flush()
        return int(self._line()) / 1e6

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


def contest(name: str, batches: Sequence[int], *, budget_s: float, alternations: int) -> list[Comparison]:
    """Return one comparison for each batch size and hint: how many times as fast the plan is."""
    topology = read_topology()
    cores = select_cores(topology, None)
    path = model_path(name)
    (found,) = find_models(path)
    settings = msgspec.structs.replace(found.settings, runtime="openvino", max_batch=max(batches))
    source = replace(found, runtime="openvino", settings=settings)
    profile = measured(source, cores, topology, Measuring(budget_s=budget_s))
    optimizer = Optimizer(profile, sockets=tuple(map(len, topology.by_socket(cores))))
    compared = []
    with Race(path, largest=max(batches), launch=launch_of(source)) as race, Bare(path, cores) as bare:
        for batch in batches:
            plan = place(optimizer.plan(len(cores), batch), topology, cores=cores)
            for hint in HINTS:
                compared.append(
                    _compared(f"{name}, B = {batch}, {hint}", race, plan, bare, hint, alternations)
                )
                print(f"{compared[-1]}  plan {plan}", flush=True)
    return compared


def _compared(name: str, race: Race, plan: Plan, bare: Bare, hint: str, alternations: int) -> Comparison:
    return alternate(
        lambda: race.turn_ms(plan),
        lambda: bare.turn_ms(hint, plan.batch),
        alternations,
        name=name,
        unit="ms",
    )


def figures_of(compared: Sequence[Comparison]) -> list[Figure]:
    """Return one figure for each comparison, and the mean for each hint."""
    figures = [
        Figure(
            name=f"{one.name}: hint ÷ plan",
            figure=f"{one.ratio:.2f} [{one.low:.2f}, {one.high:.2f}]",
            bar=f"not wholly below {LEAST:g}",
            passed=one.high >= LEAST,
            details={"plan_ms": one.a, "hint_ms": one.b},
        )
        for one in compared
    ]
    for hint in HINTS:
        ratios = [one.ratio for one in compared if one.name.endswith(hint)]
        mean = exp(sum(map(log, ratios)) / len(ratios))
        figures.append(
            Figure(name=f"geometric mean, {hint}", figure=f"{mean:.2f}", bar="≥ 1", passed=mean >= 1.0)
        )
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "openvino_hints")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)), metavar="B,B,…")
    parser.add_argument("--budget", type=float, default=None, help="seconds for each model's profile")
    given = parser.parse_args(argv)
    os.environ["PARTITA_CACHE_DIR"] = str(CACHE / "hints")
    print(load_average(), flush=True)
    batches = [int(text) for text in given.batches.split(",")]
    compared = []
    for name in given.models.split(","):
        compared += contest(
            name,
            batches,
            budget_s=given.budget or (8.0 if given.quick else 40.0),
            alternations=MIN_ALTERNATIONS if given.quick else 2 * MIN_ALTERNATIONS,
        )
    return report("openvino_hints", figures_of(compared), given.json)


if __name__ == "__main__":
    sys.exit(main())
