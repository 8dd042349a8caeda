"""What a server looks like after a long time, in a few minutes: ``python -m benchmarks.endurance``.

Workers killed every second under load, models loaded and unloaded again and again, requests of random sizes
by the hundred thousand, and twenty times more load than can be carried. Answers are checked and memory is
watched, in every process.
"""

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.figures import Figure, options, report
from benchmarks.in_process import BUSY, CORES, FIRST, LAST, MIB, Client, plan, python, serving
from benchmarks.switches import overload
from partita.core.errors import RequestError
from partita.engine.deployment import Deployment
from partita.engine.request import Buffer, Layout, Request, Shapes
from partita.engine.service import Service, ServiceSettings
from partita.machines.dispatcher import BatchingRules
from partita.system.memory import resident_bytes

MOST_ITEMS = 17


async def killed(folder: Path, *, quick: bool) -> list[Figure]:
    """One worker is killed every second."""
    seconds, cost_s = (4 if quick else 60), 0.004
    rng = np.random.default_rng(0)
    async with serving(python(folder, BUSY, cost_s), plan((FIRST,), (LAST,), batch=4)) as (_, service):
        client = Client(service, np.zeros((1, 2), np.int64), numbered=True)
        load = asyncio.create_task(client.run(0.3 / cost_s, 3600, forgive_s=0.5))
        statistics, noticed, untrue = service.statistics, [], 0
        for _ in range(seconds):
            began_s = time.monotonic()
            alive = [i.pid for i in service.member.instances.values() if i.is_ready and i.pid is not None]
            if alive:  # else both are on their way back
                deaths = statistics.worker_deaths
                os.kill(int(rng.choice(alive)), signal.SIGKILL)
                while statistics.worker_deaths == deaths:
                    await asyncio.sleep(0.001)
                noticed.append(time.monotonic() - began_s)
            while time.monotonic() < began_s + 1.0:
                untrue += service.is_ready != (service.member.ready_instances > 0)
                await asyncio.sleep(0.002)
        last_s = time.monotonic()
        while service.member.ready_instances < 2 and time.monotonic() < last_s + 10.0:
            untrue += service.is_ready != (service.member.ready_instances > 0)
            await asyncio.sleep(0.002)
        back_s, respawned = time.monotonic() - last_s, service.member.ready_instances == 2
        load.cancel()
        while statistics.in_flight():
            await asyncio.sleep(0.01)
        lost = client.failed - statistics.double_deaths + client.mixed_up + client.refused
    return [
        Figure(
            name=f"a worker killed every second for {seconds} s, {len(noticed)} times",
            figure=f"{lost} lost, {statistics.double_deaths} double deaths of {len(client.answers)}"
            + (f"; stood still for {client.stalled_s:.1f} s" if client.stalled_s else ""),
            bar="0 lost but counted double deaths",
            passed=lost == 0 and statistics.worker_deaths >= len(noticed),
        ),
        Figure(
            name="  noticed after, at most",
            figure=f"{1000 * max(noticed):.0f} ms",
            bar="≤ 1 s",
            passed=max(noticed) <= 1.0,
        ),
        Figure(
            name="  both ready again",
            figure=f"{1 + back_s:.1f} s after the last, readiness untrue {untrue} times",
            bar="readiness true to fact",
            passed=untrue == 0 and respawned,
        ),
    ]


async def cycles(folder: Path, *, quick: bool) -> list[Figure]:
    """Models are loaded and unloaded beside one that stays."""
    count, warm = (8, 3) if quick else (200, 40)
    async with serving(python(folder, BUSY, 0.001), plan((FIRST,))) as (engine, service):
        other = Deployment(
            name="other",
            version="1",
            launch=python(folder, BUSY, 0.001, "other"),
            settings=ServiceSettings(rules=BatchingRules()),
            plan=plan((LAST,)),
        )
        watch = Watch(service)
        for number in range(count):
            added = engine.add(other)
            await added.until_ready()
            client = Client(added, np.zeros((1, 2), np.int64), numbered=True)
            for _ in range(10):
                client.ask(time.monotonic())
            while added.statistics.in_flight():
                await asyncio.sleep(0.001)
            await engine.remove("other", 5.0)
            if number >= warm:
                watch.look()
    return [
        Figure(
            name=f"{count} times loaded and unloaded: memory of {name}",
            figure=f"{slope / MIB:+.3f} MiB a cycle",
            bar="< 0.1",
            passed=slope < 0.1 * MIB,
        )
        for name, slope in watch.slopes().items()
    ]


async def sizes(folder: Path, *, quick: bool) -> list[Figure]:
    """Requests of random sizes."""
    count, each = (20_000, 1000) if quick else (100_000, 1000)
    async with serving(python(folder, BUSY, 0.0), plan((FIRST,), (LAST,), batch=16)) as (_, service):
        watch, asking = Watch(service), Asking(service)
        for number in range(count // each):
            await asking.ask(each)
            if number >= count // each // 4:
                watch.look()
    lost = asking.lost
    return [
        Figure(
            name=f"{count} requests of random sizes: memory of {name}",
            figure=f"{10_000 / each * slope / MIB:+.3f} MiB per 10,000, {lost} lost or wrong",
            bar="< 1, 0 lost",
            passed=10_000 / each * slope < MIB and lost == 0,
        )
        for name, slope in watch.slopes().items()
    ]


class Watch:
    """The memory of the head and of a service's workers, looked at again and again."""

    def __init__(self, service: Service) -> None:
        pids = [i.pid for i in service.member.instances.values() if i.pid is not None]
        self._pids = {"the head": os.getpid(), **{f"worker {k}": pid for k, pid in enumerate(pids, 1)}}
        self._seen: dict[str, list[int]] = {name: [] for name in self._pids}

    def look(self) -> None:
        for name, pid in self._pids.items():
            self._seen[name].append(resident_bytes(pid) or 0)

    def slopes(self) -> dict[str, float]:
        """Return the growth of each process from one look to the next, bytes."""
        return {
            name: float(np.polyfit(np.arange(len(seen)), seen, 1)[0]) for name, seen in self._seen.items()
        }


class Asking:
    """Requests of 1 to 17 items, 32 at a time, each with numbers of its own; every answer is checked."""

    def __init__(self, service: Service) -> None:
        self.lost = 0
        self._service = service
        self._rng = np.random.default_rng(0)
        self._layout = Layout("endurance", (16,))
        self._next = 1
        self._left = self._open = 0
        self._changed = asyncio.Event()

    async def ask(self, count: int) -> None:
        self._left = count
        while self._left or self._open:
            while self._left and self._open < 32:
                self._left -= 1
                self._submit()
            self._changed.clear()
            if self._open:
                await self._changed.wait()

    def _submit(self) -> None:
        size = int(self._rng.integers(1, MOST_ITEMS + 1))
        x = np.arange(self._next, self._next + 2 * size, dtype=np.int64).reshape(size, 2)
        self._next += 2 * size
        try:
            self._service.submit([x.tobytes()], size, self._layout, self, (3 * x + 1).tobytes())
        except RequestError:
            self.lost += 1
        else:
            self._open += 1

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:  # noqa: ARG002
        self._open -= 1
        self.lost += bytes(outputs[0]) != request.context
        self._changed.set()

    def failed(self, request: Request, error: RequestError) -> None:  # noqa: ARG002
        self._open -= 1
        self.lost += 1
        self._changed.set()


PARTS: dict[str, Callable[..., Any]] = {
    "killed": killed,
    "cycles": cycles,
    "sizes": sizes,
    "overload": overload,
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "endurance")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    given = parser.parse_args(argv)
    if unknown := set(given.parts) - PARTS.keys():
        parser.error(f"no part named {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if len(CORES) < 2:
        return report(
            "endurance", [Figure(name="endurance", figure="", bar="2 cores", passed=None)], given.json
        )
    figures: list[Figure] = []
    for name in given.parts or PARTS:
        print(f"{name} …", file=sys.stderr)
        with tempfile.TemporaryDirectory() as folder:
            figures += uvloop.run(PARTS[name](Path(folder), quick=given.quick))
    return report("endurance", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
