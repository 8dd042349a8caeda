"""Who loads beside others: in their pauses, and with a share of the time where somebody waits for it."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from partita.engine import pacing
from partita.engine.instance import Instance
from partita.engine.pacing import Pacer
from partita.machines.leases import CoreLeases
from partita.system.clock import SystemClock

BUSY, LOADING = 1, 2
PERIODS = 4
LIMIT_S = 30.0


class Loading:
    """An instance as far as a pacer sees it; notes the cores that it may run on."""

    number = LOADING
    spec = SimpleNamespace(cores=(0,))

    def __init__(self) -> None:
        self.turns: list[tuple[int, ...]] = []
        self.is_back = self.listens = False
        self.tries = 0

    def yield_to(self, free: Collection[int]) -> bool:
        self.turns.append(tuple(free))
        return True

    def step_back(self) -> None:
        self.is_back = True

    def step_forward(self) -> bool:
        self.tries += 1
        self.is_back = not self.listens
        return self.listens

    def go_home(self) -> None:
        self.turns.append((0,))


def test_what_is_waited_for_takes_time_from_cores_that_are_never_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pacing, "PERIOD_S", 0.01)

    async def main() -> None:
        with beside_a_busy_one(is_urgent=True) as (_, instance):
            await until(lambda: (0,) in instance.turns)

    asyncio.run(main())


def test_what_can_wait_takes_none_until_it_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pacing, "PERIOD_S", 0.01)

    async def main() -> None:
        with beside_a_busy_one(is_urgent=False) as (pacer, instance):
            await asyncio.sleep(PERIODS * pacing.PERIOD_S)  # longer is as good
            assert (0,) not in instance.turns
            pacer.hurry()
            await until(lambda: (0,) in instance.turns)

    asyncio.run(main())


@contextmanager
def beside_a_busy_one(*, is_urgent: bool) -> Iterator[tuple[Pacer, Loading]]:
    leases, instance = CoreLeases(), Loading()
    leases.register(BUSY, (0,), lambda: None)
    leases.lease(BUSY)
    pacer = made(leases, instance, is_urgent=is_urgent)
    pacer.start()
    yield pacer, instance
    pacer.stop()
    leases.release(BUSY)


def test_what_can_wait_loads_as_soon_as_a_core_is_free() -> None:
    async def main() -> None:
        leases, instance = CoreLeases(), Loading()
        leases.register(BUSY, (0,), lambda: None)
        leases.lease(BUSY)
        pacer = made(leases, instance, is_urgent=False)
        pacer.start()
        assert not instance.turns[-1]
        leases.release(BUSY)
        await until(lambda: instance.turns[-1] == (0,))
        pacer.stop()

    asyncio.run(main())


def test_it_is_held_back_until_it_can_be_stopped() -> None:
    async def main() -> None:
        instance = Loading()
        pacer = made(CoreLeases(), instance, is_urgent=True)
        pacer.start()
        await until(lambda: instance.tries == 2)
        assert instance.is_back
        instance.listens = True
        await until(lambda: not instance.is_back)
        pacer.stop()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0)


def made(leases: CoreLeases, instance: Loading, *, is_urgent: bool) -> Pacer:
    return Pacer(
        cast("Instance", cast("Any", instance)),
        leases,
        loop=asyncio.get_running_loop(),
        clock=SystemClock(),
        is_urgent=is_urgent,
    )
