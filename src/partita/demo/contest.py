"""Runs several plans for the same batch in turn, each with all of its instances, and measures them.

Profiles are taken alone; what counts is how long a whole batch takes when all instances work at once.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.errors import RequestError
from partita.core.plan import InstanceSpec, Plan
from partita.engine.engine import Deployment, Engine
from partita.engine.instance import ModelLaunch
from partita.engine.request import Buffer, Layout, Request, Shapes
from partita.engine.service import Service, ServiceSettings
from partita.machines.dispatcher import BatchingRules, Policy

_REST_S = 0.002
"""Between two plans' turns, so that the threads of one no longer spin when the next begins."""
_LEAST_ROUNDS = 6
_WARM_UPS = 2
_BURST = 3
"""Batches in a turn; the first wakes the workers up and is not counted."""


@dataclass(frozen=True, slots=True)
class Times:
    """Median times of one plan, milliseconds, from every other turn each.

    The plan that is chosen by `first` is shown by `again`: the least of several noisy times is too good
    to be true.
    """

    first: float
    again: float


def measure(
    path: Path, plans: Sequence[Plan], items: NDArray[np.float32], *, cores: Sequence[int], seconds: float
) -> list[Times]:
    """Return how long one batch takes each plan, measured in turns for about `seconds`.

    `items` (B, n) are one batch; `cores` are the logical CPUs that every plan may use.
    """
    with asyncio.Runner() as runner:
        return runner.run(_contest(path, plans, items, cores, seconds))


def fat(cores: int, batch: int) -> Plan:
    """Return ⟨1, T, B⟩."""
    return Plan(instances=(InstanceSpec(threads=cores, batch=batch),), cores=cores, batch=batch)


def one_thread_per_core(cores: int, batch: int) -> Plan:
    """Return ⟨T, 1, B/T⟩; where B is no multiple of T some instances get one item more."""
    bounds = [round(batch * k / cores) for k in range(cores + 1)]
    shares = [stop - start for start, stop in pairwise(bounds) if stop > start]
    return Plan(
        instances=tuple(InstanceSpec(threads=1, batch=share) for share in shares), cores=cores, batch=batch
    )


def placed(plan: Plan, cores: Sequence[int]) -> Plan:
    """Return the plan with the CPUs handed out in order."""
    left = iter(cores)
    instances = tuple(one.placed(next(left) for _ in range(one.threads)) for one in plan.instances)
    return Plan(instances=instances, cores=plan.cores, batch=plan.batch, objective=plan.objective)


async def _contest(
    path: Path,
    plans: Sequence[Plan],
    items: NDArray[np.float32],
    cores: Sequence[int],
    seconds: float,
) -> list[Times]:
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        services = [await stack.enter_async_context(running(path, placed(plan, cores))) for plan in plans]
        times: list[list[float]] = [[] for _ in plans]  # of each turn
        for service in services:
            for _ in range(_WARM_UPS):
                await answer(service, items)
        end_s = loop.time() + seconds
        rounds = 0
        while rounds < _LEAST_ROUNDS or loop.time() < end_s:
            for service, measured in zip(services, times, strict=True):
                await asyncio.sleep(_REST_S)
                turn = [await answer(service, items) for _ in range(_BURST)]
                measured.append(fmean(turn[1:]))
            rounds += 1
        return [Times(median(one[::2]) * 1e3, median(one[1::2]) * 1e3) for one in times]


@asynccontextmanager
async def running(path: Path, plan: Plan, *, timeout_s: float = 1.0) -> Any:
    """Run one plan in an engine of its own, so that it owns its cores, as a server's only plan does."""
    engine = Engine(asyncio.get_running_loop())
    rules = BatchingRules(policy=Policy.AGGREGATE, batch_timeout_s=timeout_s, max_queue_items=2 * plan.batch)
    service = engine.add(
        Deployment(
            name=path.stem,
            version="1",
            launch=ModelLaunch(name=path.stem, path=str(path), runtime="onnxruntime"),
            settings=ServiceSettings(rules=rules, arena_bytes=1 << 26),
            plan=plan,
        )
    )
    try:
        await service.until_ready()
        yield service
    finally:
        await engine.stop(grace_s=5.0)


async def answer(service: Service, items: NDArray[np.float32]) -> float:
    """Have one batch answered; returns the seconds that it took."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    row_bytes = items[0].nbytes
    start_s = loop.time()
    service.submit([items.data.cast("B")], len(items), Layout("items", (row_bytes,)), _Waiting(future))
    await future
    return loop.time() - start_s


class _Waiting:
    """Tells a future how a request ended."""

    def __init__(self, future: "asyncio.Future[None]") -> None:
        self._future = future

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:  # noqa: ARG002
        self._future.set_result(None)

    def failed(self, request: Request, error: RequestError) -> None:  # noqa: ARG002
        self._future.set_exception(error)
