"""Changes of plan with real workers: nothing is lost or mixed up, and every fault has its row."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import dedent

import pytest

from partita.core.errors import SwitchFailed
from partita.core.plan import InstanceSpec, Plan
from partita.engine.instance import ModelLaunch
from partita.engine.service import Service, ServiceState
from partita.engine.switching import Outcome
from partita.machines.dispatcher import Policy
from partita.machines.handover import Stage
from partita.planning.varied_choices import executed_by
from tests.engine_driver import (
    EXIT,
    HANG,
    HOLD,
    RAISE,
    TRICKY,
    add,
    all_errors,
    ask,
    engine,
    executed,
    gate_reached,
    make_gate,
    python_model,
    run,
    until,
    xy,
)

LOAD = """
    def load(self, context):
        how = os.path.join(FOLDER, "load")
        fault = open(how).read() if os.path.exists(how) else ""
        if fault == "raises":
            raise ValueError("no such weights")
        if fault == "out of memory":
            raise MemoryError()
        if fault == "exits":
            os._exit(7)
        if fault == "hangs":
            time.sleep(3600)
        if fault == "gives other outputs":
            self.outputs = {"z": {"shape": [-1, 2], "datatype": "FP32"}}
"""


def spec(*cores: int, batch: int = 4) -> InstanceSpec:
    return InstanceSpec(threads=len(cores), batch=batch, cores=cores)


def plan(*specs: InstanceSpec) -> Plan:
    return Plan(instances=specs, cores=2, batch=sum(s.batch for s in specs))


CORES = sorted(os.sched_getaffinity(0))
A, B = CORES[0], CORES[-1]
FAT = plan(spec(A, B))
THIN = plan(spec(A), spec(B))
ONE = plan(spec(A))
WIDER = plan(spec(A, B, batch=16))

THINK_S = 0.01
"""What a client waits between two requests: the cores have slack to load on."""

needs_two_cores = pytest.mark.skipif(len(CORES) < 2, reason="an instance with two cores needs two")
pytestmark = [pytest.mark.process, needs_two_cores]


def model(folder: Path) -> ModelLaunch:
    """`Tricky`, with a file `load` in the folder that says how loading fails from then on."""
    folder.mkdir(exist_ok=True)
    constants = f"RAISE, EXIT, HANG, HOLD = {RAISE}, {EXIT}, {HANG}, {HOLD}\n"
    return python_model(folder, constants + dedent(TRICKY) + LOAD, "Tricky")


class Asking:
    """Clients that ask all the time, each request with numbers of its own, and check every answer."""

    def __init__(self, service: Service, clients: int = 8) -> None:
        self._service = service
        self._clients = clients
        self._next = 1
        self._ends = False
        self.answered = 0
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> "Asking":
        self._tasks = [asyncio.create_task(self._client(k)) for k in range(self._clients)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._ends = True
        await asyncio.gather(*self._tasks)

    async def _client(self, number: int) -> None:
        while not self._ends:
            size = 1 + (number + self._next) % 9
            values = range(self._next, self._next + size)
            self._next += size
            (y,) = await ask(self._service, xy(*values)).result()
            assert y[:, 0].tolist() == [2 * value + 1 for value in values]
            self.answered += 1
            await asyncio.sleep(THINK_S)

    async def more(self, answers: int) -> None:
        """Wait until so many more were answered."""
        wanted = self.answered + answers
        await until(lambda: self.answered >= wanted)


def live(service: Service) -> dict[InstanceSpec, int]:
    """Return the plan's instances that take part, with how many there are."""
    found: dict[InstanceSpec, int] = {}
    for number, instance in service.member.instances.items():
        if service.member.dispatcher.has_instance(number):
            found[instance.spec] = found.get(instance.spec, 0) + 1
    return found


def is_just(service: Service, plan: Plan) -> bool:
    """Whether the plan's instances are there and ready, and no process besides."""
    member = service.member
    return (
        sorted(i.spec for i in member.instances.values()) == sorted(plan.instances)
        and member.ready_instances == len(plan.instances)
        and service.plan is plan
    )


async def settled(service: Service, plan: Plan) -> None:
    """Wait until nothing but this plan is left, and check every law."""
    await until(lambda: is_just(service, plan))
    assert service.member.switcher is not None
    service.member.switcher.handover.check()
    service.check()


@pytest.mark.parametrize("policy", list(Policy))
def test_plans_change_under_load_and_no_request_is_lost_or_mixed_up(tmp_path: Path, policy: Policy) -> None:
    launch = model(tmp_path)
    seen: list[int] = []

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, FAT, policy=policy, batch_timeout_s=0.001)
            await service.until_ready()
            lease = made.leases.lease

            def counted(instance: int) -> None:
                lease(instance)
                made.leases.check()
                seen.append(len(made.leases.executing_cores()))

            made.leases.lease = counted  # type: ignore[method-assign]
            async with Asking(service) as clients:
                for target in (THIN, ONE, THIN, WIDER, plan(spec(A, batch=2), spec(B, batch=7)), FAT):
                    await clients.more(20)
                    switch = service.switch(target)
                    await switch.until_finished()
                    assert switch.outcome is Outcome.FINISHED
                    await clients.more(20)
                    await settled(service, target)
                    assert live(service) == {s: target.instances.count(s) for s in target.instances}
            assert service.statistics.failures == 0
            assert service.statistics.worker_deaths == 0
        assert max(seen) == 2, "never more threads than cores"

    run(main)


def test_a_change_of_runtime_is_a_handover_like_any_other(tmp_path: Path) -> None:
    launch = replace(model(tmp_path / "own"), variants={"other": model(tmp_path / "other")})
    both = ((FAT, "other"), (THIN, "other"), (THIN, ""), (WIDER, "other"), (FAT, ""))

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, FAT)
            await service.until_ready()
            async with Asking(service) as clients:
                for specs, runtime in both:
                    target = executed_by(specs, runtime)
                    await service.switch(target).until_finished()
                    await settled(service, target)
                    serving, resting = ("other", "own") if runtime else ("own", "other")
                    before = len(executed(tmp_path / serving)), len(executed(tmp_path / resting))
                    await clients.more(20)
                    assert len(executed(tmp_path / serving)) > before[0]
                    assert len(executed(tmp_path / resting)) == before[1]
            assert service.statistics.failures == 0
            assert service.statistics.worker_deaths == 0

    run(main)


def test_where_only_b_changes_no_worker_is_touched(tmp_path: Path) -> None:
    launch = model(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, plan(spec(A, batch=1)))
            await service.until_ready()
            (before,) = (i.pid for i in service.member.instances.values())
            switch = service.switch(plan(spec(A, batch=8)))
            assert switch.outcome is Outcome.FINISHED, "at once"
            make_gate(tmp_path)
            held = ask(service, xy(1, what=HOLD))
            gate = await gate_reached(tmp_path)
            asked = [ask(service, xy(n)) for n in range(2, 10)]
            os.close(gate)
            assert await all_errors([held, *asked]) == [None] * 9
            assert [2, 3, 4, 5, 6, 7, 8, 9] in executed(tmp_path), "in one batch of the new size"
            (after,) = (i.pid for i in service.member.instances.values())
            assert before == after

    run(main)


def test_an_instance_of_both_plans_keeps_its_worker_and_the_others_go(tmp_path: Path) -> None:
    launch = model(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, ONE)
            await service.until_ready()
            (pid,) = (i.pid for i in service.member.instances.values())
            await service.switch(THIN).until_finished()
            pids = [i.pid for i in service.member.instances.values()]
            assert len(pids) == 2
            assert pid in pids
            await service.switch(ONE).until_finished()
            await settled(service, ONE)
            assert [i.pid for i in service.member.instances.values()] == [pid]

    run(main)


def test_a_warm_plan_takes_over_at_once_and_the_old_one_falls_asleep(tmp_path: Path) -> None:
    launch = model(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, FAT)
            await service.until_ready()
            switcher = service.member.switcher
            assert switcher is not None
            assert not switcher.is_loaded(THIN)
            switcher.keep_warm([FAT, THIN], 1 << 40)
            await until(lambda: len(switcher.handover.numbers(Stage.ASLEEP)) == 2)
            pids = {i.pid for i in service.member.instances.values()}
            async with Asking(service) as clients:
                for target in (THIN, FAT) * 5:
                    await clients.more(5)
                    switch = service.switch(target)
                    assert switch.outcome is Outcome.ACCEPTING, "in the same turn of the loop"
                    assert switch.loads == 0
                    assert switcher.is_loaded(FAT)
                    assert switcher.is_loaded(THIN)
                    await switch.until_finished()
            assert {i.pid for i in service.member.instances.values()} == pids
            switcher.keep_warm([], 0)
            await settled(service, FAT)

    run(main)


def test_a_second_change_while_the_first_loads_is_what_counts(tmp_path: Path) -> None:
    launch = model(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, FAT)
            await service.until_ready()
            async with Asking(service) as clients:
                first, second = service.switch(THIN), service.switch(ONE)
                assert first.outcome is Outcome.SUPERSEDED
                with pytest.raises(SwitchFailed, match="another plan"):
                    await first.until_accepting()
                await second.until_finished()
                await clients.more(10)
            await settled(service, ONE)

    run(main)


def test_a_model_that_is_stopped_in_the_middle_of_a_switch_loses_nothing_and_ends(tmp_path: Path) -> None:
    launch = model(tmp_path)

    async def main() -> None:
        make_gate(tmp_path)
        async with engine() as made:
            service = add(made, launch, FAT)
            await service.until_ready()
            held = ask(service, xy(1, what=HOLD))
            gate = await gate_reached(tmp_path)
            waiting = [ask(service, xy(n)) for n in range(2, 9)]
            switch = service.switch(THIN)
            stopping = asyncio.create_task(made.stop(20))
            await until(lambda: switch.outcome is Outcome.FAILED)
            assert service.state is ServiceState.DRAINING
            os.close(gate)
            assert await all_errors([held, *waiting]) == [None] * 8
            await stopping
            late = service.switch(FAT)
            assert late.outcome is Outcome.FAILED

    run(main)


# --- the fault table ------------------------------------------------------------------------------


async def kill(service: Service, stage: Stage) -> None:
    """Kill a worker in this stage."""
    assert service.member.switcher is not None
    number = service.member.switcher.handover.numbers(stage)[0]
    pid = service.member.instances[number].pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


LOADING = ("raises", "exits", "out of memory", "gives other outputs", "is killed", "hangs")


def test_a_plan_that_does_not_load_changes_nothing_however_it_fails(tmp_path: Path) -> None:
    launch = model(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, FAT)
            await service.until_ready()
            pids = {i.pid for i in service.member.instances.values()}
            counts = service.member.switcher.handover.counts if service.member.switcher else None
            assert counts is not None
            async with Asking(service) as clients:
                for failures, manner in enumerate(LOADING, start=1):
                    (tmp_path / "load").write_text(manner)
                    if manner == "hangs":
                        service.member.launch = replace(launch, load_limit_s=1.0)
                    switch = service.switch(THIN)
                    if manner == "is killed":
                        await kill(service, Stage.LOADING)
                    with pytest.raises(SwitchFailed):
                        await switch.until_accepting()
                    assert switch.failure, manner
                    await clients.more(10)
                    await settled(service, FAT)
                    assert {i.pid for i in service.member.instances.values()} == pids, manner
                    assert counts.failed == failures, manner
                (tmp_path / "load").write_text("")
                service.member.launch = launch
                await service.switch(THIN).until_finished()
                await clients.more(10)
                await settled(service, THIN)
            assert service.statistics.failures == 0

    run(main)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A batch is held in execution, this happens at a moment of a switch, and so it ends."""

    moment: str
    manner: str
    what: int = HOLD
    error: str | None = None
    """What the client whose request it is sees; its neighbours are answered in any case."""


MOMENTS = ("while the new set loads", "while the old one drains")
ROWS = [
    row
    for moment in MOMENTS
    for row in (
        Row(moment=moment, manner="nothing"),
        Row(moment=moment, manner="is killed"),
        Row(moment=moment, manner="its client goes away", error="gone"),
    )
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.moment}-{row.manner}")
def test_a_worker_that_executes_and_its_request_survive_the_switch(tmp_path: Path, row: Row) -> None:
    launch = model(tmp_path)

    async def main() -> None:
        make_gate(tmp_path)
        async with engine() as made:
            service = add(made, launch, FAT)
            await service.until_ready()
            switcher = service.member.switcher
            assert switcher is not None
            held = ask(service, xy(1, what=HOLD))
            gate = await gate_reached(tmp_path)
            others = [ask(service, xy(n)) for n in range(2, 9)]
            switch = service.switch(THIN)
            if row.moment == MOMENTS[1]:
                await switch.until_accepting()
                assert switcher.handover.numbers(Stage.RETIRING)
            if row.manner == "is killed":
                stage = Stage.RETIRING if row.moment == MOMENTS[1] else Stage.ACTIVE
                await kill(service, stage)
                os.close(gate)  # before anybody else can read from it
                await until(lambda: service.statistics.worker_deaths == 1)
                gate = await gate_reached(tmp_path)  # it is executed again
            elif row.manner == "its client goes away":
                assert held.request is not None
                service.cancel(held.request)
            os.close(gate)
            await switch.until_finished()
            assert await all_errors(others) == [None] * 7
            if row.error is None:
                assert (await held.result())[0][0, 0] == 3
            await settled(service, THIN)
            assert service.statistics.failures == 0
            assert service.statistics.worker_deaths == (row.manner == "is killed")
            assert [one.outcomes for one in others] == [1] * 7

    run(main)


@pytest.mark.parametrize("stage", [Stage.ASLEEP, Stage.LOADING])
def test_a_warm_worker_that_dies_is_let_go_and_the_switch_is_cold_then(tmp_path: Path, stage: Stage) -> None:
    launch = model(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, FAT)
            await service.until_ready()
            switcher = service.member.switcher
            assert switcher is not None
            switcher.keep_warm([ONE], 1 << 40)
            await until(lambda: switcher.handover.numbers(stage))
            await kill(service, stage)
            await settled(service, FAT)
            switch = service.switch(ONE)
            assert switch.loads == 1
            await switch.until_finished()
            await settled(service, ONE)

    run(main)


HEAD = """
    import asyncio, sys, uvloop
    from pathlib import Path
    from tests.engine_driver import HOLD, add, ask, engine, gate_reached, until, xy
    from tests.process.test_engine_switching import FAT, THIN, model

    def is_stopped(instance):
        return Path(f"/proc/{instance.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    async def main():
        async with engine() as made:
            service = add(made, model(Path(sys.argv[1])), FAT)
            await service.until_ready()
            ask(service, xy(1, what=HOLD))
            await gate_reached(Path(sys.argv[1]))
            service.switch(THIN)
            await until(lambda: any(is_stopped(i) for i in service.member.instances.values()))
            print(*(i.pid for i in service.member.instances.values()), flush=True)
            await asyncio.sleep(3600)

    uvloop.run(main())
"""


def test_a_killed_head_leaves_no_worker_not_even_one_that_was_stopped_while_it_loads(tmp_path: Path) -> None:
    make_gate(tmp_path)
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", dedent(HEAD), str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdout is not None
        watched = [os.pidfd_open(int(word)) for word in head.stdout.readline().split()]
        try:
            assert len(watched) == 3
            head.kill()
            head.wait(10)
            ended = select.poll()
            for fd in watched:
                ended.register(fd, select.POLLIN)
                assert ended.poll(10_000)
                ended.unregister(fd)
        finally:
            for fd in watched:
                os.close(fd)
