"""A model in the real engine, asked from the same process: benchmarks of it and of no protocol."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np

from partita.core.errors import RequestError
from partita.core.plan import InstanceSpec, Plan
from partita.engine.deployment import Deployment
from partita.engine.engine import Engine
from partita.engine.instance import ModelLaunch
from partita.engine.request import Buffer, Layout, Request, Shapes
from partita.engine.service import Service, ServiceSettings
from partita.machines.dispatcher import BatchingRules

CORES = sorted(os.sched_getaffinity(0))
MIB = 1 << 20
PAUSE_S = 0.001
"""From an answer to the next request where as much is asked as can be answered: a client shares the process.
Without it the fastest models would be asked more than that process can do."""


BUSY = """
import time
import numpy as np

class Busy:
    inputs = {"x": {"shape": [-1, 2], "datatype": "INT64"}}
    outputs = {"y": {"shape": [-1, 2], "datatype": "INT64"}}

    def infer(self, batch):
        until = time.perf_counter() + SECONDS * len(batch["x"])
        y = 3 * batch["x"] + 1
        while time.perf_counter() < until:
            pass
        return {"y": y}
"""


class Client:
    """Asks at a constant rate, whatever comes back, and notes when each request was due and what it took."""

    def __init__(self, service: Service, item: np.ndarray[Any, Any], *, numbered: bool = False) -> None:
        self._service = service
        self._item = item
        self._numbered = numbered
        self._layout = Layout("switches", (item.nbytes,))
        self._next = 1
        self.answers: list[tuple[float, float]] = []
        """(due, latency), seconds."""
        self.refused = self.failed = self.mixed_up = 0
        self.asks_again = False
        """Whether each answer is followed by another request."""
        self.stalled_s = 0.0
        """How long this process stood still, in pieces of `forgive_s` or more."""

    def ask(self, due_s: float) -> None:
        item = self._item
        if self._numbered:
            item = np.array([[self._next, -self._next]], np.int64)
            self._next += 1
        try:
            self._service.submit([item.tobytes()], 1, self._layout, _Sink(self, item, due_s))
        except RequestError:
            self.refused += 1

    def ask_now(self) -> None:
        self.ask(time.monotonic())

    async def run(self, rate: float, seconds: float, *, forgive_s: float = float("inf")) -> None:
        """Ask at this rate for so long, then wait for what is still to come.

        Where it is late by more than `forgive_s` it does not catch up: then this process had been stopped.
        """
        began, asked = time.monotonic(), 0
        while (now := time.monotonic()) < began + seconds:
            if (late := now - (began + asked / rate)) > forgive_s:
                began += late
                self.stalled_s += late
            while (due := began + asked / rate) <= now:
                self.ask(due)
                asked += 1
            await asyncio.sleep(max(0.0005, began + asked / rate - time.monotonic()))
        while self._service.statistics.in_flight():
            await asyncio.sleep(0.005)

    def took_ms(self, from_s: float, until_s: float) -> list[float]:
        return [1000 * took for due, took in self.answers if from_s <= due < until_s]

    def p99_ms(self, from_s: float, until_s: float) -> float:
        return float(np.percentile(self.took_ms(from_s, until_s), 99))

    @property
    def lost(self) -> int:
        return self.failed + self.mixed_up + self.refused


class _Sink:
    def __init__(self, client: Client, item: np.ndarray[Any, Any], due_s: float) -> None:
        self._client, self._item, self._due_s = client, item, due_s

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:  # noqa: ARG002
        client = self._client
        client.answers.append((self._due_s, time.monotonic() - self._due_s))
        if client._numbered and bytes(outputs[0]) != (3 * self._item + 1).tobytes():
            client.mixed_up += 1
        if client.asks_again:
            asyncio.get_running_loop().call_later(PAUSE_S, client.ask_now)

    def failed(self, request: Request, error: RequestError) -> None:  # noqa: ARG002
        self._client.failed += 1


def plan(*cores: tuple[int, ...], batch: int = 1) -> Plan:
    specs = tuple(InstanceSpec(threads=len(c), batch=batch, cores=c) for c in cores)
    return Plan(instances=specs, cores=len(CORES), batch=batch * len(cores))


FIRST, LAST = CORES[0], CORES[-1]


@asynccontextmanager
async def serving(
    launch: ModelLaunch, first: Plan, *, queue: int = 1024, deadline_s: float | None = None
) -> AsyncIterator[tuple[Engine, Service]]:
    engine = Engine(asyncio.get_running_loop())
    settings = ServiceSettings(rules=BatchingRules(max_queue_items=queue), deadline_s=deadline_s)
    try:
        service = engine.add(
            Deployment(name=launch.name, version="1", launch=launch, settings=settings, plan=first)
        )
        await service.until_ready()
        yield engine, service
        engine.check()
    finally:
        await engine.stop(10.0)


def python(folder: Path, source: str, seconds: float, name: str = "busy") -> ModelLaunch:
    file = folder / f"{name}.py"
    file.write_text(f"SECONDS = {seconds}\n{source}")
    return ModelLaunch(name=name, path=f"{file}:Busy", runtime="python")


async def capacity(service: Service, client: Client, seconds: float) -> float:
    """Return the answers per second with a few requests always waiting."""
    begun, before = time.monotonic(), len(client.answers)
    client.asks_again = True
    for _ in range(4):
        client.ask(begun)
    await asyncio.sleep(seconds)
    client.asks_again = False
    done, took_s = len(client.answers) - before, time.monotonic() - begun
    while service.statistics.in_flight():
        await asyncio.sleep(0.005)
    return done / took_s
