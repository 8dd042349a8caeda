"""Bounded queue and memory, deadlines, cancelling and draining, each with a batch held in the worker."""

import asyncio
import os
import time
from pathlib import Path

import pytest

from partita.core.errors import (
    DeadlineExceeded,
    PayloadTooLarge,
    QueueFull,
    ShuttingDown,
)
from partita.engine.service import ServiceState
from tests.engine_driver import (
    HANG,
    HOLD,
    add,
    all_errors,
    ask,
    engine,
    executed,
    gate_reached,
    make_gate,
    plan,
    run,
    served,
    tricky,
    until,
    xy,
)

pytestmark = pytest.mark.process


def test_a_full_queue_refuses_at_once_and_takes_again_when_there_is_room(tmp_path: Path) -> None:
    launch = tricky(tmp_path)
    make_gate(tmp_path)

    async def main() -> None:
        async with served(launch, 1, max_queue_items=3) as service:
            asked = [ask(service, xy(1, what=HOLD))]
            gate = await gate_reached(tmp_path)
            asked += [ask(service, xy(2))]
            await until(lambda: service.member.dispatcher.queue.items == 0)  # sent ahead
            asked += [ask(service, xy(3)), ask(service, xy(4, 5))]
            with pytest.raises(QueueFull, match=r"full \(3 items\)"):
                ask(service, xy(6))
            with pytest.raises(PayloadTooLarge, match="queue_size = 3"):
                ask(service, xy(6, 7, 8, 9))
            assert service.statistics.refused == {"queue_full": 1, "payload_too_large": 1}
            service.check()
            os.close(gate)
            assert await all_errors(asked) == [None] * 4
            await ask(service, xy(6)).result()
        assert sorted(v for b in executed(tmp_path) for v in b) == [1, 2, 3, 4, 5, 6]

    run(main)


def test_full_item_memory_refuses_at_once_and_takes_nothing(tmp_path: Path) -> None:
    launch = tricky(tmp_path)
    make_gate(tmp_path)

    async def main() -> None:
        async with served(launch, 1, arena_bytes=4096, max_queue_items=10_000) as service:
            asked = [ask(service, xy(1, what=HOLD))]
            gate = await gate_reached(tmp_path)
            asked += [ask(service, xy(n)) for n in range(2, 65)]  # a cache line each where no extent fits
            with pytest.raises(QueueFull, match="item memory"):
                ask(service, xy(65))
            service.check()
            os.close(gate)
            assert set(await all_errors(asked)) == {None}

    run(main)


def test_a_deadline_while_queued_and_while_running(tmp_path: Path) -> None:
    launch = tricky(tmp_path)
    make_gate(tmp_path)

    async def main() -> None:
        async with served(launch, 1) as service:
            running = ask(service, xy(1, what=HOLD), deadline_s=0.15)
            ahead, patient = ask(service, xy(2)), ask(service, xy(3))
            queued = ask(service, xy(4), deadline_s=0.1)
            gate = await gate_reached(tmp_path)
            for one in (queued, running):
                assert isinstance(await one.error(), DeadlineExceeded)
            service.check()
            assert service.arena.owned_items() == 3, "what executes still needs its items"
            os.close(gate)
            await ahead.result()
            await patient.result()
            assert service.statistics.failed == {"deadline_exceeded": 2}
        assert executed(tmp_path) == [[1], [2], [3]]

    run(main)


def test_a_deadline_of_the_service_and_of_its_queue(tmp_path: Path) -> None:
    launch = tricky(tmp_path)
    make_gate(tmp_path)

    async def main() -> None:
        async with served(launch, 1, deadline_s=1.0, queue_timeout_s=0.1) as service:
            running, ahead = ask(service, xy(1, what=HOLD)), ask(service, xy(2), deadline_s=20.0)
            queued = ask(service, xy(3))
            gate = await gate_reached(tmp_path)
            assert "queue longer than 0.1 s" in str(await queued.error())
            assert not running.future.done()
            assert "deadline passed" in str(await running.error())
            os.close(gate)
            await ahead.result()

    run(main)


def test_cancelled_while_queued_is_never_executed_and_while_running_is_thrown_away(tmp_path: Path) -> None:
    launch = tricky(tmp_path)
    make_gate(tmp_path)

    async def main() -> None:
        async with served(launch, 2) as service:
            running = [ask(service, xy(1, what=HOLD)), ask(service, xy(2))]
            gate = await gate_reached(tmp_path)
            queued = [ask(service, xy(n)) for n in range(3, 8)]
            for one in (running[0], queued[2], queued[4]):
                assert one.request is not None
                service.cancel(one.request)
                service.cancel(one.request)
            service.check()
            os.close(gate)
            kept = [running[1], queued[0], queued[1], queued[3]]
            assert await all_errors(kept) == [None] * 4
            await until(lambda: service.arena.owned_items() == 0)
            assert service.statistics.cancelled == 3
            assert [a.outcomes for a in (running[0], queued[2], queued[4])] == [0, 0, 0]
        values = {v for batch in executed(tmp_path) for v in batch}
        assert {1, 2, 3, 4, 6} <= values
        assert 7 not in values
        assert 5 not in values

    run(main)


def test_draining_answers_what_was_accepted_and_refuses_the_rest(tmp_path: Path) -> None:
    launch = tricky(tmp_path)
    make_gate(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, plan(2, 2))
            await service.until_ready()
            asked = [ask(service, xy(1, what=HOLD)), *(ask(service, xy(n)) for n in range(2, 40))]
            gate = await gate_reached(tmp_path)
            stopping = asyncio.create_task(made.stop(10.0))
            await until(lambda: service.state is ServiceState.DRAINING)
            with pytest.raises(ShuttingDown):
                ask(service, xy(99))
            os.close(gate)
            assert await all_errors(asked) == [None] * 39
            await stopping
            assert all(i.is_gone for i in service.member.instances.values())
            assert str(service.state) == "stopped"

    run(main)


def test_what_is_not_done_within_the_grace_period_fails_and_no_worker_stays(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, plan(1))
            await service.until_ready()
            asked = [ask(service, xy(1, what=HANG)), ask(service, xy(2)), ask(service, xy(3))]
            await until(lambda: executed(tmp_path) == [[1]])
            began_s = time.monotonic()
            await made.stop(0.1)
            assert time.monotonic() - began_s < 4.0, "only who has nothing to do is waited for"
            assert await all_errors(asked) == ["shutting_down"] * 3

    run(main)
