"""Change plans under load, and hold what clients see to the bars: ``python -m benchmarks.switches``.

The real engine with real workers, asked in its own process at a constant rate, so that latencies are those of
the engine and not of a protocol. Every answer is checked where the model makes that possible.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.compare import Comparison
from benchmarks.figures import Figure, options, report
from benchmarks.in_process import BUSY, CORES, FIRST, LAST, MIB, Client, capacity, plan, python, serving
from benchmarks.models import model_path
from partita.core.plan import Plan
from partita.engine.deployment import Deployment
from partita.engine.instance import ModelLaunch
from partita.engine.service import Service, ServiceSettings, ServiceState
from partita.engine.switching import Switch
from partita.machines.dispatcher import BatchingRules
from partita.machines.handover import Stage
from partita.system.memory import resident_bytes

SLEEPS = BUSY.replace('SECONDS * len(batch["x"])', "SECONDS").replace("pass", "time.sleep(0.001)")
CRASHES = """
import os

class Busy:
    inputs = {"x": {"shape": [-1, 2], "datatype": "INT64"}}

    def load(self, context):
        os._exit(9)

    def infer(self, batch):
        return batch
"""


FAT, THIN = plan((FIRST, LAST)), plan((FIRST,), (LAST,))


def resnet() -> ModelLaunch:
    return ModelLaunch(name="resnet50", path=str(model_path("resnet50")), runtime="onnxruntime")


def worker_bytes(service: Service) -> int:
    pids = [i.pid for i in service.member.instances.values() if i.pid is not None]
    return sum(resident_bytes(pid) or 0 for pid in [os.getpid(), *pids])


# --- the figures ----------------------------------------------------------------------------------


async def random_switches(folder: Path, *, quick: bool) -> list[Figure]:
    """50 random changes of ⟨i, t, b⟩ at 70 % load."""
    count, cost_s = (10 if quick else 50), 0.002
    rng = np.random.default_rng(0)
    layouts = [((FIRST, LAST),), ((FIRST,), (LAST,)), ((FIRST,),), ((LAST,),)]
    async with serving(python(folder, BUSY, cost_s), FAT) as (engine, service):
        seen: list[int] = []
        lease = engine.leases.lease

        def counted(instance: int) -> None:
            lease(instance)
            engine.leases.check()
            seen.append(len(engine.leases.executing_cores()))

        engine.leases.lease = counted  # type: ignore[method-assign]
        client = Client(service, np.zeros((1, 2), np.int64), numbered=True)
        before = worker_bytes(service)
        load = asyncio.create_task(client.run(0.7 / cost_s, 3600))
        took: list[float] = []
        for _ in range(count):
            target = plan(*layouts[rng.integers(len(layouts))], batch=int(rng.choice([1, 2, 4, 8])))
            switch = service.switch(target)
            await switch.until_finished()
            assert switch.finished_s is not None
            took.append(switch.finished_s - switch.asked_s)
        await service.switch(FAT).until_finished()
        load.cancel()
        while service.statistics.in_flight() or len(service.member.instances) > 1:
            await asyncio.sleep(0.01)
        grown = (worker_bytes(service) - before) / MIB
        answered = len(client.answers)
    return [
        Figure(
            name=f"{count} random switches at 70 % load",
            figure=f"{client.failed + client.refused} failed, {client.mixed_up} mixed up of {answered}",
            bar="0 failed, 0 mixed up",
            passed=client.lost == 0,
            details={"longest_s": round(max(took), 2), "mean_s": round(float(np.mean(took)), 2)},
        ),
        Figure(
            name="cores executing at once, at most",
            figure=f"{max(seen)} of {len(CORES)}",
            bar=f"≤ {len(CORES)}",
            passed=max(seen) <= len(CORES),
        ),
        Figure(name="memory after them", figure=f"{grown:+.1f} MiB", bar="≤ +10 MiB", passed=grown <= 10),
    ]


async def forced(_: Path, *, quick: bool) -> list[Figure]:
    """Cold and warm switches of a ResNet-50 at half its load."""
    window_s, rounds = (5.0, 3) if quick else (8.0, 6)
    item = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    figures: list[Figure] = []
    async with serving(resnet(), FAT) as (_engine, service):
        client = Client(service, item)
        rate = 0.5 * await capacity(service, client, 4.0)
        load = asyncio.create_task(client.run(rate, 3600))
        await asyncio.sleep(1.0)
        switches = {target: ColdSwitches() for target in (THIN, FAT)}
        for _turn in range(rounds):
            for target, found in switches.items():
                await found.add(service, client, target, window_s)
        for found in switches.values():
            figures += found.figures()
        switcher = service.member.switcher
        assert switcher is not None
        switcher.keep_warm([FAT, THIN], 1 << 40)
        while len(switcher.handover.numbers(Stage.ASLEEP)) < 2:
            await asyncio.sleep(0.05)
        figures.append(await _warm(service, client))
        load.cancel()
    return figures


class ColdSwitches:
    """Cold switches in one direction: a single one meets too few requests for a percentile."""

    def __init__(self) -> None:
        self.name = ""
        self.took_s: list[float] = []
        self.before_ms: list[float] = []
        self.during_ms: list[float] = []
        self.lost = 0

    async def add(self, service: Service, client: Client, target: Plan, window_s: float) -> None:
        lost, from_s = client.lost, time.monotonic()
        await asyncio.sleep(window_s)
        at_s = time.monotonic()
        self.before_ms += client.took_ms(from_s, at_s)
        switch = service.switch(target)
        await switch.until_finished()
        assert switch.finished_s is not None
        await asyncio.sleep(0.5)
        self.during_ms += client.took_ms(at_s, at_s + max(1.0, switch.finished_s - at_s))
        self.took_s.append(switch.finished_s - switch.asked_s)
        self.name = f"{switch.before} → {target}"
        self.lost += client.lost - lost

    def figures(self) -> list[Figure]:
        before_ms, during_ms = (float(np.percentile(one, 99)) for one in (self.before_ms, self.during_ms))
        ratio, longest_s = during_ms / before_ms, max(self.took_s)
        return [
            Figure(
                name=f"{len(self.took_s)} cold switches {self.name}, the longest",
                figure=f"{longest_s:.2f} s",
                bar="≤ 3 s",
                passed=longest_s <= 3.0,
                details={"took_s": self.took_s},
            ),
            Figure(
                name="  p99 during them ÷ before them",
                figure=f"{ratio:.2f} ({during_ms:.0f} ÷ {before_ms:.0f} ms, of {len(self.during_ms)} and "
                f"{len(self.before_ms)} answers), {self.lost} failed",
                bar="≤ 1.5, 0 failed",
                passed=ratio <= 1.5 and self.lost == 0,
                details={"before_ms": self.before_ms, "during_ms": self.during_ms},
            ),
        ]


async def _warm(service: Service, client: Client) -> Figure:
    lost, times = client.lost, []
    for target in (THIN, FAT) * 5:
        await asyncio.sleep(0.3)
        began = time.monotonic()
        switch: Switch = service.switch(target)
        await switch.until_accepting()
        times.append(1000 * (time.monotonic() - began))
        await switch.until_finished()
    return Figure(
        name="10 warm switches, the longest until accepting",
        figure=f"{max(times):.2f} ms, {client.lost - lost} failed",
        bar="≤ 50 ms, 0 failed",
        passed=max(times) <= 50 and client.lost == lost,
    )


async def overload(folder: Path, *, quick: bool) -> list[Figure]:
    """20 × the capacity of a model with a fixed service time."""
    seconds, cost_s, batch = (5.0 if quick else 60.0), 0.02, 8
    queue, deadline_s = 64, 1.0
    one = plan((FIRST,), batch=batch)
    async with serving(python(folder, SLEEPS, cost_s, "sleeps"), one, queue=queue, deadline_s=deadline_s) as (
        _,
        service,
    ):
        client = Client(service, np.zeros((1, 2), np.int64), numbered=True)
        able = batch / cost_s
        began = time.monotonic()
        await client.run(20 * able, seconds)
        goodput = len([1 for due, _ in client.answers if due < began + seconds]) / seconds
        longest_s = max(took for _, took in client.answers)
    return [
        Figure(
            name="20 × overload: goodput",
            figure=f"{goodput / able:.0%} of capacity, {client.refused} refused, {client.failed} failed",
            bar="≥ 90 %",
            passed=goodput >= 0.9 * able and client.mixed_up == 0 and client.failed == 0,
        ),
        Figure(
            name="  longest accepted request",
            figure=f"{1000 * longest_s:.0f} ms",
            bar=f"≤ {1000 * deadline_s:.0f} ms (its deadline)",
            passed=longest_s <= deadline_s,
        ),
    ]


async def crashing(folder: Path, *, quick: bool) -> list[Figure]:
    """A model that always crashes while loading, beside a good one: without it and with it, in turns."""
    turns, seconds, cost_s = (4, 4.0, 0.004) if quick else (10, 5.0, 0.004)
    alone: list[float] = []
    beside: list[float] = []
    took: list[float] = []
    pooled: tuple[list[float], list[float]] = ([], [])
    async with serving(python(folder, BUSY, cost_s), plan((FIRST,))) as (engine, service):
        client = Client(service, np.zeros((1, 2), np.int64), numbered=True)
        load = asyncio.create_task(client.run(0.3 / cost_s, 3600))
        crashes = Deployment(
            name="crashes",
            version="1",
            launch=python(folder, CRASHES, 0.0, "crashes"),
            settings=ServiceSettings(rules=BatchingRules()),
            plan=plan((LAST,)),
        )
        await asyncio.sleep(0.5)
        for _ in range(turns):
            at_s = time.monotonic()
            await asyncio.sleep(seconds)
            alone.append(client.p99_ms(at_s, at_s + seconds))
            pooled[0].extend(client.took_ms(at_s, at_s + seconds))
            at_s = time.monotonic()
            bad = engine.add(crashes)
            while bad.state is not ServiceState.FAILED and time.monotonic() < at_s + 60:
                await asyncio.sleep(0.02)
            took.append(time.monotonic() - at_s)
            await asyncio.sleep(max(0.0, seconds - took[-1]))
            until_s = time.monotonic()
            beside.append(client.p99_ms(at_s, until_s))
            pooled[1].extend(client.took_ms(at_s, until_s))
            state, reason = bad.state, bad.failure
            await engine.remove("crashes", 5.0)
        load.cancel()
        while service.statistics.in_flight():
            await asyncio.sleep(0.01)
    shown = Comparison.of("p99", alone, beside, unit="ms")
    before_ms, during_ms = (float(np.percentile(one, 99)) for one in pooled)
    ratio = during_ms / before_ms
    return [
        Figure(
            name=f"a model that crashes at load, {turns} times",
            figure=f"{state.value} after {max(took):.1f} s at most: {reason}",
            bar="failed, with the reason",
            passed=state is ServiceState.FAILED and bool(reason),
        ),
        Figure(
            name="  p99 of the one beside it, during ÷ before",
            figure=f"{ratio:.2f} ({during_ms:.2f} ÷ {before_ms:.2f} ms of all turns together; turn by turn "
            f"{shown.ratio:.2f} [{shown.low:.2f}, {shown.high:.2f}]), {client.lost} failed",
            bar="≤ 1.2, 0 failed",
            passed=ratio <= 1.2 and client.lost == 0,
            details={"alone_ms": alone, "beside_ms": beside},
        ),
    ]


PARTS: dict[str, Callable[..., Any]] = {
    "random": random_switches,
    "forced": forced,
    "overload": overload,
    "crashing": crashing,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "switches")
    parser.add_argument("--only", choices=sorted(PARTS), help="one part of it")
    given = parser.parse_args(argv)
    if len(CORES) < 2:
        return report(
            "switches", [Figure(name="switches", figure="", bar="2 cores", passed=None)], given.json
        )
    figures: list[Figure] = []
    for name, part in PARTS.items():
        if given.only in (None, name):
            print(f"{name} …", file=sys.stderr)
            with tempfile.TemporaryDirectory() as folder:
                figures += uvloop.run(part(Path(folder), quick=given.quick))
    return report("switches", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
