"""Ensembles against what they could cost at best, on two cores; one part at a time or all.

equal    n equal members, items/s ÷ a plain loop over onnxruntime that runs them one after another
sleep    latency that n members add to one, where each sleeps 10 ms
offline  one ResNet-50 over an array, items/s ÷ a plain loop with the same cores and batch
change   building 8 workers ÷ changing one of them, seconds
greedy   four different networks: the greedy search's allocation ÷ its start, and ÷ three static ones

    python -m benchmarks.ensembles --quick equal sleep
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median

import numpy as np
import onnx
import onnxruntime as ort
import uvloop

from benchmarks import ort_loop
from benchmarks.compare import Comparison, alternate, median_interval
from benchmarks.figures import Figure, load_average, options, report
from benchmarks.models import Network, model_path
from benchmarks.ort_loop import Shape
from partita.allocating import AllocateSettings, allocate
from partita.allocation_file import Allocation
from partita.core.allocation import AllocationMatrix
from partita.core.devices import Device
from partita.embedded import Server, prepare
from partita.engine.engine import Engine
from partita.engine.service import ServiceSettings
from partita.ensemble_bench import EnsembleBench
from partita.ensemble_deploy import deployment_of, safe_allocation
from partita.machines.dispatcher import BatchingRules
from partita.offline import for_this_alone, predict_with
from partita.settings import ModelSettings, ServerSettings, Settings
from partita.sources import ModelSource, find_models
from partita.system.cpus import allowed_cpus
from partita.system.devices import core_groups

MEMBERS = 4
SEGMENT = 128
SHARE, OFFLINE_SHARE = 0.9, 0.97
SLEEP_MS = 10.0
ADDED_MS = 1.0 + 0.1 * SLEEP_MS
SLEEPERS = (2, 4, 8)
CHANGE_RATIO = 5
UNBOUNDED = 1 << 20

SLEEPER = """
import time

class Sleeper:
    inputs = {"x": {"shape": [-1, 4], "datatype": "FP32"}}
    outputs = {"y": {"shape": [-1, 4], "datatype": "FP32"}}

    def infer(self, batch):
        time.sleep(0.010)
        return {"y": batch["x"]}
"""


def two_devices() -> tuple[Device, ...]:
    """Return two core groups of one CPU each."""
    first, second = sorted(allowed_cpus())[:2]
    return core_groups([(first,), (second,)])


def ensemble(
    folder: Path,
    paths: Sequence[Path | str],
    settings: Settings | None = None,
    batch_sizes: Sequence[int] = (8, 16, 32, 64, 128),
) -> ModelSource:
    """Write an ensemble of these members and return it."""
    members = "".join(f'[[member]]\nname = "m{k}"\npath = "{path}"\n' for k, path in enumerate(paths))
    file = folder / "all.toml"
    file.write_text(f"segment = {SEGMENT}\nbatch_sizes = {list(batch_sizes)}\n{members}")
    (source,) = find_models(file, settings)
    return source


def ratio_text(one: Comparison, unit: str) -> str:
    """Return a ratio with its interval, and the medians that it comes from."""
    medians = f"{median(one.b):,.0f} and {median(one.a):,.0f} {unit}"
    return f"{one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}] ({medians})"


# --- equal members --------------------------------------------------------------------------------


def mlp(folder: Path, hidden: int) -> Path:
    """Write a 64 → hidden → 10 perceptron."""
    net = Network(seed=hidden)
    value = net.dense(net.relu(net.dense("x", 64, hidden)), hidden, 10)
    path = folder / f"mlp{hidden}.onnx"
    onnx.save(net.model(path.stem, item=(64,), output=value, classes=10), path)
    return path


def plain_loop(path: Path, item: tuple[int, ...]) -> Callable[[float], float]:
    """Return what runs the members one after another over segments, and takes their mean: items a second."""
    settings = ort.SessionOptions()
    settings.intra_op_num_threads, settings.inter_op_num_threads = 2, 1
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # we do not run all the time
    sessions = [ort.InferenceSession(str(path), settings) for _ in range(MEMBERS)]
    feed = {"x": np.ones((SEGMENT, *item), np.float32)}

    def run(seconds: float) -> float:
        begun, items = time.perf_counter(), 0
        while time.perf_counter() - begun < seconds:
            mean = sessions[0].run(None, feed)[0]
            for session in sessions[1:]:
                mean = mean + session.run(None, feed)[0]
            mean /= MEMBERS
            items += SEGMENT
        return items / (time.perf_counter() - begun)

    return run


@contextmanager
def everywhere(source: ModelSource) -> Iterator[Server]:
    """Serve an ensemble with an instance of every member on each of two cores."""
    names = tuple(f"m{k}" for k in range(MEMBERS))
    matrix = AllocationMatrix(((SEGMENT,) * MEMBERS,) * 2)
    given = Allocation(devices=two_devices(), models=names, matrix=matrix)
    settings = Settings(server=ServerSettings(tune="never", adapt=False), model={"all": ModelSettings()})
    with Server([for_this_alone(replace(source, allocation=given))], settings=settings) as server:
        yield server


def equal(hidden: int | None, *, pairs: int, seconds: float) -> Figure:
    """Compare an ensemble of equal members, asked for an array, with the plain loop over them.

    The members are perceptrons of so many hidden units, or small convolutional networks.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = model_path("tiny_cnn") if hidden is None else mlp(Path(folder), hidden)
        item = (3, 32, 32) if hidden is None else (64,)
        plain = plain_loop(path, item)
        items = SEGMENT * max(1, round(plain(seconds) * seconds / SEGMENT))
        x = np.ones((items, *item), np.float32)
        with everywhere(ensemble(Path(folder), [path] * MEMBERS)) as server:

            def ours() -> float:
                begun = time.perf_counter()
                predict_with(server, "all", x)
                return items / (time.perf_counter() - begun)

            found = alternate(lambda: plain(seconds), ours, pairs, unit="items/s")
    small = hidden is not None and hidden < 1000
    kind = "tiny_cnn" if hidden is None else f"{hidden} units"
    return Figure(
        name=f"{MEMBERS} equal members, {kind}, ÷ plain loop",
        figure=ratio_text(found, "items/s"),
        bar="" if small else f">= {SHARE}",
        passed=None if small else found.ratio >= SHARE,
        details={"loop": found.a, "partita": found.b},
    )


# --- members that sleep ---------------------------------------------------------------------------


def sleeping(members: int, *, requests: int) -> float:
    """Return the median latency of a request to so many members that sleep, ms."""

    async def ask(source: ModelSource) -> float:
        engine = Engine(asyncio.get_running_loop())
        allocation = safe_allocation(source.ensemble, two_devices()[:1])  # type: ignore[arg-type]
        deployment = deployment_of(source, ServiceSettings(rules=BatchingRules()), allocation)
        # On no core in particular: who sleeps needs none, and leases would have them sleep in turns.
        instances = tuple(replace(one, cores=()) for one in deployment.plan.instances)
        service = engine.add(replace(deployment, plan=replace(deployment.plan, instances=instances)))
        try:
            await service.until_ready()
            template, buffers = prepare(service.signature, np.ones((1, 4), np.float32))
            times = []
            for _ in range(requests):
                waiter = _Waiter()
                begun = time.perf_counter()
                service.submit(buffers, 1, template.layout, waiter)
                await waiter.done.wait()
                times.append((time.perf_counter() - begun) * 1e3)
            return median(times)
        finally:
            await engine.stop(1.0)

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sleeper.py").write_text(SLEEPER)
        return uvloop.run(ask(ensemble(Path(folder), ["sleeper.py"] * members)))


class _Waiter:
    """The engine's `Sink` for one request."""

    def __init__(self) -> None:
        self.done = asyncio.Event()

    def answered(self, *_: object) -> None:
        self.done.set()

    def failed(self, _: object, error: Exception) -> None:
        raise error


def sleepers(*, requests: int) -> list[Figure]:
    """Return a figure for each number of members."""
    alone = sleeping(1, requests=requests)
    figures = []
    for members in SLEEPERS:
        taken = sleeping(members, requests=requests)
        figures.append(
            Figure(
                name=f"{members} members that sleep {SLEEP_MS:g} ms",
                figure=f"{taken - alone:+.2f} ms ({taken:.2f} and {alone:.2f} ms)",
                bar=f"<= {ADDED_MS:g} ms",
                passed=taken - alone <= ADDED_MS,
            )
        )
    return figures


# --- offline --------------------------------------------------------------------------------------


@contextmanager
def offline_server(batch: int) -> Iterator[Server]:
    """Serve ResNet-50 as an ensemble of one, one instance of two cores."""
    cpus = tuple(sorted(allowed_cpus())[:2])
    with tempfile.TemporaryDirectory() as folder:
        source = ensemble(Path(folder), [model_path("resnet50")])
        matrix = AllocationMatrix(((batch,),))
        given = Allocation(devices=core_groups([cpus]), models=("m0",), matrix=matrix)
        settings = Settings(server=ServerSettings(tune="never"), model={"all": ModelSettings()})
        with Server([replace(source, allocation=given)], cores="0-1", settings=settings) as server:
            yield server


def offline(*, pairs: int, batch: int, items: int) -> Figure:
    """Compare `partita predict` with the plain loop over ResNet-50."""
    x = np.random.default_rng(0).standard_normal((items, 3, 224, 224), dtype=np.float32)
    shape = Shape(1, 2, batch)
    with ort_loop.turns(model_path("resnet50"), shape) as plain, offline_server(batch) as server:

        def ours() -> float:
            begun = time.perf_counter()
            predict_with(server, "all", x, segment=batch)
            return items / (time.perf_counter() - begun)

        seconds = items / plain(1.0).items_per_s
        found = alternate(lambda: plain(seconds).items_per_s, ours, pairs, unit="items/s")
    return Figure(
        name=f"offline, ResNet-50, batch {batch} ÷ plain loop",
        figure=f"{found.ratio:.3f} [{found.low:.3f}, {found.high:.3f}] "
        f"({median(found.b):.1f} and {median(found.a):.1f} items/s)",
        bar=f">= {OFFLINE_SHARE}",
        passed=found.ratio >= OFFLINE_SHARE,
        details={"loop": found.a, "partita": found.b},
    )


# --- changing one worker --------------------------------------------------------------------------


def change() -> Figure:
    """Compare building an ensemble of four networks on two devices with going to a neighbour of it."""
    with tempfile.TemporaryDirectory() as folder:
        source = ensemble(Path(folder), different(Path(folder)))
        begun = time.perf_counter()
        with EnsembleBench(source, two_devices(), measure_s=0.1) as bench:
            built_s = time.perf_counter() - begun
            everywhere = AllocationMatrix(((32,) * MEMBERS,) * 2)
            for model in range(MEMBERS):
                for neighbour in (everywhere.with_element(1, model, 0), everywhere):
                    bench(neighbour)
            changed_s = bench.constructions_s[1:]
    return Figure(
        name="building 8 workers ÷ changing one",
        figure=f"{built_s / max(changed_s):,.0f} ({built_s:.2f} s and at most {1e3 * max(changed_s):.2f} ms)",
        bar=f">= {CHANGE_RATIO}",
        passed=built_s >= CHANGE_RATIO * max(changed_s),
        details={"built_s": built_s, "changed_s": changed_s},
    )


# --- the greedy search ----------------------------------------------------------------------------


def different(folder: Path) -> list[Path]:
    """Return four networks over 32 × 32 images that cost from little to much."""
    flat = Network(seed=11)
    value = flat.node("Flatten", ["x"])
    value = flat.dense(flat.relu(flat.dense(value, 3072, 256)), 256, 10)
    wide = Network(seed=12)
    hidden, taken = "x", 3
    for given, stride in ((32, 2), (64, 1), (64, 2)):
        hidden = wide.relu(wide.conv(hidden, (taken, given), kernel=3, stride=stride))
        taken = given
    made = {
        "flat": flat.model("flat", item=(3, 32, 32), output=value, classes=10),
        "wide": wide.model("wide", item=(3, 32, 32), output=wide.classify(hidden, taken, 10), classes=10),
    }
    for name, model in made.items():
        onnx.save(model, folder / f"{name}.onnx")
    return [model_path("tiny_cnn"), model_path("depthwise"), *(folder / f"{name}.onnx" for name in made)]


def statics(models: int) -> dict[str, AllocationMatrix]:
    """Return what a careful user would try on two devices."""
    halves = [[32 * (m % 2 == d) for m in range(models)] for d in range(2)]
    return {
        "everything everywhere, 32": AllocationMatrix(((32,) * models,) * 2),
        "everything everywhere, 128": AllocationMatrix(((128,) * models,) * 2),
        "one device for each, 32": AllocationMatrix.of(halves),
    }


def greedy(*, budget_s: float, rounds: int, seconds: float) -> list[Figure]:
    """Allocate, then measure the result, the start and the static allocations in turns."""
    with tempfile.TemporaryDirectory() as folder:
        source = ensemble(Path(folder), different(Path(folder)))
        found = allocate(source, two_devices(), AllocateSettings(budget_s=budget_s, measure_s=seconds / 2))
        winner, others = found.allocation.matrix, {"its start": found.start, **statics(4)}
        rates: dict[AllocationMatrix, list[float]] = {m: [] for m in (winner, *others.values())}
        with EnsembleBench(source, two_devices(), measure_s=seconds) as bench:
            for _ in range(rounds):
                for matrix, taken in rates.items():
                    taken.append(bench(matrix))
    best = max(statics(4).values(), key=lambda matrix: median(rates[matrix]))
    named = {"its start": found.start, "the best of three static ones": best}
    return [_against(name, rates[winner], rates[matrix], winner, matrix) for name, matrix in named.items()]


def _against(
    name: str, ours: list[float], theirs: list[float], winner: AllocationMatrix, other: AllocationMatrix
) -> Figure:
    ratios = sorted(a / b for a, b in zip(ours, theirs, strict=True))
    low, high, _ = median_interval(ratios)
    return Figure(
        name=f"greedy {winner} ÷ {name} {other}",
        figure=f"{median(ratios):.3f} [{low:.3f}, {high:.3f}] ({median(ours):,.0f} items/s)",
        bar="interval not below 1",
        passed=high >= 1.0,
        details={"greedy": ours, "other": theirs},
    )


PARTS = ("equal", "sleep", "offline", "change", "greedy")


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "ensembles")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args(argv)
    if unknown := [part for part in given.parts if part not in PARTS]:
        parser.error(f"no part named {', '.join(unknown)}; there are {', '.join(PARTS)}")
    if len(allowed_cpus()) < 2:
        figure = Figure(name="ensembles", figure="needs two CPUs", bar="", passed=None)
        return report("ensembles", [figure], given.json)
    quick, figures = given.quick, []
    print(load_average(), flush=True)
    for part in given.parts or PARTS:
        print(f"{part} …", flush=True)
        if part == "equal":
            pairs, seconds = (4, 0.7) if quick else (10, 1.5)
            figures += [equal(hidden, pairs=pairs, seconds=seconds) for hidden in (None, 2000, 64)]
        elif part == "sleep":
            figures += sleepers(requests=40 if quick else 200)
        elif part == "offline":
            figures.append(offline(pairs=3 if quick else 10, batch=8, items=64 if quick else 128))
        elif part == "change":
            figures.append(change())
        else:
            budget_s, rounds, seconds = (15.0, 4, 0.4) if quick else (70.0, 10, 0.8)
            figures += greedy(budget_s=budget_s, rounds=rounds, seconds=seconds)
    return report("ensembles", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
