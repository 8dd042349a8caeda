"""The fault table: every moment of a request and of a switch × every manner of an item's execution.

What clients see is the code of the error; the neighbours of a bad item are answered, and afterwards the plan
is in force with all of its workers. Other rows: how loading fails, and workers that are killed and clients
that go away at each moment of a switch (test_engine_switching); without a switch (test_engine_failures); the
head's signals (e2e/test_serve); a full disk (unit/test_profile_store).
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest

from partita.engine.instance import ModelLaunch
from partita.engine.service import ServiceState
from partita.engine.switching import Outcome
from tests.engine_driver import (
    EXIT,
    HANG,
    HOLD,
    RAISE,
    SOCKETS,
    TRICKY,
    add,
    all_errors,
    ask,
    engine,
    gate_reached,
    make_gate,
    python_model,
    run,
    xy,
)
from tests.process.test_engine_switching import FAT, THIN, Asking, needs_two_cores, settled

pytestmark = [pytest.mark.process, needs_two_cores]

FEWER_ROWS, MORE_ROWS, NO_ARRAYS, OTHER_NAMES, NO_MEMORY, JUNK = 11, 12, 13, 14, 15, 16

FAULTY = (
    SOCKETS
    + """

class Faulty(Tricky):
    def infer(self, batch):
        outputs = super().infer(batch)
        what = set(batch["x"][:, 1].astype(int).tolist())
        if FEWER_ROWS in what:
            return {"y": outputs["y"][1:]}
        if MORE_ROWS in what:
            return {"y": np.concatenate([outputs["y"]] * 2)}
        if NO_ARRAYS in what:
            return {"y": "nothing of the kind"}
        if OTHER_NAMES in what:
            return {"z": outputs["y"]}
        if NO_MEMORY in what:
            raise MemoryError()
        if JUNK in what:
            for fd in sockets():
                os.write(fd, b"junk junk junk")
            os._exit(3)
        return outputs
"""
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What an item does to the execution that it is in, and what its client is told."""

    manner: str
    what: int
    code: str


RAISES = (
    Row(manner="raises", what=RAISE, code="inference_failed"),
    Row(manner="gives fewer rows", what=FEWER_ROWS, code="inference_failed"),
    Row(manner="gives more rows", what=MORE_ROWS, code="inference_failed"),
    Row(manner="gives no arrays", what=NO_ARRAYS, code="inference_failed"),
    Row(manner="gives other outputs", what=OTHER_NAMES, code="inference_failed"),
    Row(manner="has no memory", what=NO_MEMORY, code="inference_failed"),
)
DIES = (
    Row(manner="exits", what=EXIT, code="worker_died"),
    Row(manner="writes garbage to its channel", what=JUNK, code="worker_died"),
)
HANGS = (Row(manner="hangs", what=HANG, code="worker_died"),)
TOGETHER = (RAISES, DIES, HANGS)
"""Rows whose items come at once: each fails alone all the same."""

STAYS, LOADS, DRAINS = "while the plan stays", "while the new set loads", "while the old one drains"


def faulty(folder: Path) -> ModelLaunch:
    names = ["RAISE", "EXIT", "HANG", "HOLD", "FEWER_ROWS", "MORE_ROWS", "NO_ARRAYS", "OTHER_NAMES"]
    names += ["NO_MEMORY", "JUNK"]
    constants = "".join(f"{name} = {globals()[name]}\n" for name in names)
    return python_model(folder, constants + dedent(TRICKY) + FAULTY, "Faulty")


@pytest.mark.parametrize("moment", [STAYS, LOADS, DRAINS])
def test_a_bad_item_costs_only_its_own_request(tmp_path: Path, moment: str) -> None:
    launch = faulty(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, FAT, execution_limit_s=2.0)
            await service.until_ready()
            expected: dict[str, int] = {}
            async with Asking(service) as clients:
                plan = FAT
                for rows in TOGETHER:
                    if moment != STAYS:
                        plan = THIN if plan is FAT else FAT
                        switch = service.switch(plan)
                    if moment == DRAINS:
                        await switch.until_accepting()
                    bad = {row.manner: ask(service, xy(7, what=row.what)) for row in rows}
                    for row in rows:
                        assert (await bad[row.manner].error()).code == row.code, row.manner
                        expected[row.code] = expected.get(row.code, 0) + 1
                    await clients.more(20)
                    if moment != STAYS:
                        await switch.until_finished()
                    await settled(service, plan)
            assert service.statistics.failed == expected, "and no neighbour's request"
            assert service.statistics.double_deaths == expected["worker_died"], "tried once more, no oftener"
            assert service.state is ServiceState.READY

    run(main)


def test_a_head_that_is_told_twice_to_end_in_the_middle_of_a_switch(tmp_path: Path) -> None:
    """The first time what is in hand may be finished; the second time nothing is waited for."""
    launch = faulty(tmp_path)

    async def main() -> None:
        make_gate(tmp_path)
        async with engine() as made:
            service = add(made, launch, FAT)
            await service.until_ready()
            held = ask(service, xy(1, what=HOLD))
            await gate_reached(tmp_path)  # and it is never let go
            waiting = ask(service, xy(2))
            switch = service.switch(THIN)
            stopping = asyncio.create_task(made.stop(60))
            while switch.outcome is Outcome.UNDER_WAY:
                await asyncio.sleep(0.002)
            assert switch.outcome is Outcome.FAILED
            assert service.state is ServiceState.DRAINING
            await made.stop(0)
            await stopping
            assert await all_errors([held, waiting]) == ["shutting_down"] * 2
            assert not service.member.instances

    run(main)
