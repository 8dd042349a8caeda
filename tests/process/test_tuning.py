"""Tuning beside traffic with real processes: turns on the cores, a plan at the end, nothing lost or left."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from partita.adaptation import Adaptation
from partita.core.profile import Profile, ProfilePoint
from partita.embedded import Server
from partita.engine.engine import Deployment, Engine
from partita.engine.guest import Guest
from partita.engine.instance import ModelLaunch
from partita.engine.measuring import Measuring, MeasuringFailed
from partita.engine.service import Service, ServiceSettings
from partita.engine.tuning_report import TuningReport, TuningState
from partita.machines.dispatcher import BatchingRules
from partita.machines.leases import CoreLeases
from partita.machines.tuning_pace import Mode, PaceRules
from partita.profiling.store import encode
from partita.settings import ServerSettings, Settings
from partita.sources import ModelSource
from partita.system.addresses import Address
from partita.system.clock import SystemClock
from partita.system.processes import Bystander
from partita.tuning import Tuning
from partita.wire.tuning import Go
from tests import models
from tests.engine_driver import add, ask, engine, plan, run, tricky, until, workers_among, xy

pytestmark = [pytest.mark.process, pytest.mark.alone]
CORES = sorted(os.sched_getaffinity(0))[:2]
LIMIT_S = 90.0


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@contextmanager
def sleeper() -> Iterator[Bystander]:
    with subprocess.Popen(["sleep", "60"]) as process:
        bystander = Bystander(process.pid)
        try:
            yield bystander
        finally:
            bystander.close()
            process.kill()


class Table:
    """Leases with one instance that serves, and a guest."""

    def __init__(self) -> None:
        self.leases = CoreLeases()
        self.woken = 0
        self.leases.register(1, (0, 1), self._wake)
        self.guest = Guest(2, self.leases, loop=asyncio.get_running_loop(), clock=SystemClock())

    def _wake(self) -> None:
        self.woken += 1


def test_a_guest_is_stopped_while_others_execute_and_begins_when_the_cores_are_free() -> None:
    async def main() -> None:
        table, begun = Table(), asyncio.Event()
        with sleeper() as process:
            table.leases.lease(1)
            table.guest.begin(process, (0,), begun.set, Mode.YIELD)
            await asyncio.sleep(0)
            assert not begun.is_set()
            table.leases.release(1)
            await asyncio.wait_for(begun.wait(), LIMIT_S)
            for _ in range(3):
                table.leases.lease(1)
                await until(lambda: state_of(process.pid) == "T")
                table.leases.release(1)
                await until(lambda: state_of(process.pid) != "T")
            table.guest.use(Mode.WAIT)
            await until(lambda: state_of(process.pid) == "T")
            table.guest.use(Mode.YIELD)
            await until(lambda: state_of(process.pid) != "T")
            turn = table.guest.end()
            assert (turn.stops, turn.held) == (4, False)
            assert min(turn.ran_s, turn.waited_s, turn.stopped_s) > 0
            assert not table.guest.is_busy
            table.leases.check()

    run(main)


def test_a_guest_that_holds_the_cores_has_them_in_turn_and_alone() -> None:
    async def main() -> None:
        table, begun = Table(), asyncio.Event()
        with sleeper() as process:
            table.leases.lease(1)
            table.guest.begin(process, (0, 1), begun.set, Mode.HOLD)
            table.leases.release(1)
            assert not table.leases.can_lease(1), "the guest came first"
            table.leases.wait((1,))
            await asyncio.wait_for(begun.wait(), LIMIT_S)
            table.leases.check()
            assert table.leases.executing_cores() == [0, 1]
            assert not table.leases.can_lease(1)
            table.guest.use(Mode.WAIT)
            assert state_of(process.pid) != "T", "what it holds it keeps"
            turn = table.guest.end()
            assert (turn.held, turn.stops) == (True, 0)
            assert table.woken
            assert table.leases.can_lease(1)
            assert table.leases.executing_cores() == []
            table.leases.check()

    run(main)


def test_a_guest_that_never_ends_gives_the_cores_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.engine.guest.HOLD_LIMIT_S", 0.0)

    async def main() -> None:
        table, begun = Table(), asyncio.Event()
        with sleeper() as process:
            table.guest.begin(process, (0, 1), begun.set, Mode.HOLD)
            await asyncio.wait_for(begun.wait(), LIMIT_S)
            table.guest.use(Mode.HOLD)
            assert table.leases.can_lease(1)
            table.leases.lease(1)
            await until(lambda: state_of(process.pid) == "T")
            table.guest.end()
            await until(lambda: state_of(process.pid) != "T")
            table.leases.check()

    run(main)


def test_a_process_that_is_active_from_the_start_is_stopped_at_once_where_it_may_not() -> None:
    async def main() -> None:
        table = Table()
        with sleeper() as process:
            table.guest.begin(process, (0,), None, Mode.WAIT)
            await until(lambda: state_of(process.pid) == "T")
            table.guest.use(Mode.YIELD)
            await until(lambda: state_of(process.pid) != "T")
            assert table.guest.end().stops == 1

    run(main)


LATE = """
import os, socket, sys
from partita.system.channels import Channel
from partita.wire.tuning import Measured, Want, encode

channel = Channel(socket.socket(fileno=int(sys.argv[-1])))
channel.receive()
channel.send(encode(Measured(points=1, elapsed_s=0.0, left_s=1.0)))
channel.receive()
channel.send(encode(Want(pid=os.getpid(), cores=(CORE,), is_active=True)))
channel.receive()
"""
"""A measuring process that asks for a turn when it is told to."""


def measuring_of(made: Engine, service: Service, report: TuningReport) -> Measuring:
    return Measuring(
        service,
        99,
        made.leases,
        PaceRules(max_slowdown=100.0),
        report,
        loop=asyncio.get_running_loop(),
        clock=SystemClock(),
        spawner=made._spawner,
    )


def test_a_turn_that_is_asked_for_while_measuring_ends_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn would be nobody's to end: who leases the cores next would stop a process that is let go of."""
    script = tmp_path / "late.py"
    script.write_text(LATE.replace("CORE", str(CORES[0])))
    monkeypatch.setattr("partita.engine.measuring.MEASURING_ARGV", (sys.executable, str(script)))
    launch = tricky(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, plan(1, cores=[(CORES[0],)]))
            await service.until_ready()
            report = TuningReport(budget_s=1.0, left_s=1.0)
            measuring = measuring_of(made, service, report)
            task = asyncio.create_task(measuring.run(b""))
            await until(lambda: report.points)
            channel = measuring._channel
            assert channel is not None
            asyncio.get_running_loop().remove_reader(channel.fileno())  # it comes after the last look
            measuring._send(Go())
            poller = select.poll()
            poller.register(channel.fileno(), select.POLLIN)
            assert poller.poll(1000 * LIMIT_S), "it asks for a turn, which is not read yet"
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            assert task.cancelled()
            assert not measuring._guest.is_busy
            (y,) = await ask(service, xy(3)).result()
            assert y[0, 0] == 7

    run(main)


KNOWS = """
import socket, sys
from partita.system.channels import Channel
from partita.wire.tuning import Measured, encode

channel = Channel(socket.socket(fileno=int(sys.argv[-1])))
channel.receive()
channel.send(encode(Measured(points=POINTS, elapsed_s=0.0, left_s=1.0, profile=PROFILE)))
channel.receive()
"""
"""A measuring process that says what it knows, and never ends."""


@pytest.mark.parametrize("known", [b"", b"all that is known"])
def test_measuring_that_never_ends_is_over_when_its_time_is_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bytes
) -> None:
    script = tmp_path / "knows.py"
    script.write_text(KNOWS.replace("PROFILE", repr(known)).replace("POINTS", "3"))
    monkeypatch.setattr("partita.engine.measuring.MEASURING_ARGV", (sys.executable, str(script)))
    launch = tricky(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, plan(1, cores=[(CORES[0],)]))
            await service.until_ready()
            report = TuningReport(budget_s=1000.0, left_s=1.0)
            measuring = measuring_of(made, service, report)
            task = asyncio.create_task(measuring.run(b""))
            await until(lambda: report.points)
            measuring._ends_s = 0.0
            if known:
                assert await asyncio.wait_for(task, LIMIT_S) == known
            else:
                with pytest.raises(MeasuringFailed, match="no time"):
                    await asyncio.wait_for(task, LIMIT_S)
            assert not measuring._guest.is_busy
            (y,) = await ask(service, xy(3)).result()
            assert y[0, 0] == 7

    run(main)


def wait_for(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    deadline_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


def marked(mark: str) -> list[int]:
    """Return the processes that inherited this variable, other than this one."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            try:
                if mark.encode() in (process / "environ").read_bytes():
                    found.append(int(process.name))
            except OSError:  # it has just ended, or is somebody else's
                continue
    return found


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A variable of its own in the environment of all that the test starts, and a cache of its own."""
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("OF_THIS_TEST", str(tmp_path))
    return f"OF_THIS_TEST={tmp_path}"


def serving(path: Path, budget_s: float = 10.0) -> Server:
    local = Address("127.0.0.1", 0)
    settings = ServerSettings(
        http=local, metrics=local, management=local, tune_budget_s=budget_s, tune_slowdown=100.0
    )  # what else runs on this machine is not to make it pause
    return Server([path], cores=len(CORES), tune="background", settings=Settings(server=settings), ports=True)


def state(server: Server) -> str:
    shown = server.head.adaptation.tuning("m")
    return "" if shown is None else str(shown["state"])


def test_a_model_without_a_profile_serves_at_once_and_is_tuned_beside_its_traffic(
    tmp_path: Path, mark: str
) -> None:
    path = models.mlp(tmp_path / "m.onnx")
    with serving(path) as server:
        service = server.head.engine.service("m")
        assert str(service.plan) == f"⟨1,{len(CORES)},32⟩", "the safe one"
        wrong: list[object] = []
        ends = threading.Event()

        def client(number: int) -> None:
            x = np.random.default_rng(number).random((1 + number, 64), np.float32)
            expected = server.predict("m", x)["y"]
            while not ends.is_set():
                y = server.predict("m", x)["y"]
                if not np.allclose(y, expected, rtol=1e-4):
                    wrong.append(y)
                ends.wait(0.02)

        clients = [threading.Thread(target=client, args=(number,)) for number in range(3)]
        for one in clients:
            one.start()
        try:
            wait_for(lambda: state(server) == TuningState.RUNNING)
            wait_for(lambda: state(server) in (TuningState.FINISHED, TuningState.FAILED))
        finally:
            ends.set()
            for one in clients:
                one.join()
        shown = server.head.adaptation.tuning("m")
        assert shown is not None
        assert (shown["state"], shown["points"] > 0, shown["p99_ms"] > 0) == ("finished", True, True), shown
        assert wrong == []
        assert service.statistics.failures == 0
        assert service.plan is not None
        assert service.plan.expected_ms is not None, "it comes from the profile"
        (switch,) = server.head.adaptation.switches("m")
        assert switch["reason"] == "profiled beside its traffic"
        with urllib.request.urlopen(server.url("management") + "/v2/models/m/plan") as answer:
            assert b'"tuning":{"state":"finished"' in answer.read()
        with urllib.request.urlopen(server.url("metrics") + "/metrics") as answer:
            metrics = answer.read().decode()
        assert 'partita_tuning{model="m",state="finished",version="1"} 1.0' in metrics
        assert f'partita_tuning_points{{model="m",version="1"}} {float(shown["points"])}' in metrics
        wait_for(lambda: len(workers_among(marked(mark))) == len(service.plan.instances))  # type: ignore[union-attr]
        server.head.engine.check()
    assert marked(mark) == []
    with serving(path) as server:
        assert str(server.head.engine.service("m").plan) == str(service.plan), "it is known now"
        assert server.head.engine.deployment(server.head.engine.service("m")).profile is not None


@pytest.mark.skipif(len(CORES) < 2, reason="there is nothing to divide where there is one core")
@pytest.mark.parametrize("moves", [False, True])
def test_a_division_that_takes_over_does_not_undo_that_a_model_is_tuned(
    tmp_path: Path, moves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is measured is known already here. It is best served by two thin instances, which have to load."""
    monkeypatch.setattr("partita.tuning.LOOK_S", 0.01)
    path = models.mlp(tmp_path / "m.onnx")
    profile = Profile(
        ProfilePoint(threads=threads, batch=batch, mean_ms=10.0 * batch)
        for threads in (1, 2)
        for batch in (1, 2, 4, 8, 16, 32)
    )

    async def main() -> None:
        async with engine() as made:
            adaptation = Adaptation(made, asyncio.get_running_loop(), adapts=False)
            tuning = Tuning(made, adaptation, asyncio.get_running_loop(), budget_s=1.0, rules=PaceRules())
            report: list[TuningReport] = []

            async def measured(
                service: Service, _: bytes, __: PaceRules, shown: TuningReport, ___: None
            ) -> bytes:
                report.append(shown)
                return encode(profile)

            monkeypatch.setattr(made, "measure", measured)
            launch = ModelLaunch(name="m", path=str(path), runtime="onnxruntime")
            service = made.add(
                Deployment(
                    name="m",
                    version="1",
                    launch=launch,
                    settings=ServiceSettings(rules=BatchingRules()),
                    plan=plan(8, threads=2, cores=[tuple(CORES)]),
                    cores=tuple(CORES),
                )
            )
            await service.until_ready()
            tuning.know(ModelSource(name="m", path=path, runtime="onnxruntime"))
            tuning.start()
            try:
                await until(lambda: made.deployment(service).profile is not None)
                assert report[0].is_under_way
                other = plan(4, cores=[(CORES[0],)])
                if moves:
                    made.planned_anew(service, plan=other, cores=(CORES[0],))
                    await until(lambda: not report[0].is_under_way)
                else:
                    await service.switch(other, reason="the cores are divided anew").until_accepting()
                    await until(lambda: not report[0].is_under_way)
                assert report[0].state is TuningState.FINISHED, report[0]
            finally:
                await tuning.stop()

    run(main)


def test_tuning_that_is_stopped_leaves_nothing_and_goes_on_at_the_next_start(
    tmp_path: Path, mark: str
) -> None:
    path = models.mlp(tmp_path / "m.onnx")
    with serving(path) as server:
        wait_for(lambda: (server.head.adaptation.tuning("m") or {"points": 0})["points"])
        report = server.head.engine.tunings[server.head.engine.service("m")]
    assert report.state is TuningState.STOPPED
    wait_for(lambda: marked(mark) == [])  # one that had just been started ends itself
    (kept,) = (tmp_path / "cache" / "profiles").glob("*.json")
    before = kept.read_text()
    assert '"finished"' not in before
    with serving(path, budget_s=3.0) as server:
        wait_for(lambda: state(server) in (TuningState.FINISHED, TuningState.FAILED))
        assert state(server) == TuningState.FINISHED
    assert '"finished"' in kept.read_text()
    means = [line for line in before.splitlines() if "load_s" in line]
    assert means, before


SLOW = """
import time

class Model:
    inputs = {"x": {"shape": [-1, 2], "datatype": "FP32"}}
    outputs = {"y": {"shape": [-1, 2], "datatype": "FP32"}}

    def infer(self, batch):
        time.sleep(0.02 * len(batch["x"]))
        return {"y": batch["x"]}
"""
"""One that is not measured to its end in a moment, so that whoever is to be killed is there still."""


def measuring_among(pids: list[int]) -> list[int]:
    """Return those of these processes that measure."""
    found = []
    for pid in pids:
        with suppress(OSError):  # it has just ended
            if b"partita.profiling" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def test_a_measuring_process_that_is_killed_leaves_the_model_with_its_plan(tmp_path: Path, mark: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "handler.py").write_text(SLOW)
    with serving(folder) as server:
        service = server.head.engine.service("m")
        workers = {instance.pid for instance in service.member.instances.values()}
        wait_for(lambda: (server.head.adaptation.tuning("m") or {"points": 0})["points"])
        (measuring,) = measuring_among(marked(mark))
        os.kill(measuring, signal.SIGKILL)
        wait_for(lambda: state(server) in (TuningState.FAILED, TuningState.FINISHED))
        shown = server.head.adaptation.tuning("m")
        assert shown is not None
        assert (shown["state"], "status -9" in shown["reason"]) == (TuningState.FAILED, True), shown
        wait_for(lambda: set(workers_among(marked(mark))) == workers)
        x = np.ones((1, 2), np.float32)
        assert np.array_equal(server.predict("m", x)["y"], x)
        assert next(count(service.statistics.failures)) == 0


def test_a_model_that_cannot_be_measured_is_served_on_and_says_why(tmp_path: Path, mark: str) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "handler.py").write_text(
        "import os\n"
        "class Model:\n"
        '    inputs = {"x": {"shape": [-1, 2], "datatype": "FP32"}}\n'
        '    outputs = {"y": {"shape": [-1, 2], "datatype": "FP32"}}\n'
        "    def load(self, context):\n"
        '        if os.path.exists(os.path.join(os.path.dirname(os.path.abspath(__file__)), "serves")):\n'
        '            raise ValueError("only once")\n'
        '        open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "serves"), "w")\n'
        "    def infer(self, batch):\n"
        '        return {"y": batch["x"]}\n'
    )
    with serving(folder) as server:
        wait_for(lambda: state(server) == TuningState.FAILED)
        assert "only once" in server.head.adaptation.tuning("m")["reason"]  # type: ignore[index]
        x = np.ones((1, 2), np.float32)
        assert np.array_equal(server.predict("m", x)["y"], x)
        assert server.head.adaptation.switches("m") == []
    assert marked(mark) == []


def test_measuring_that_ends_is_not_told_twice_to_end(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would leave its process, its channel and its workers' descriptors behind."""
    monkeypatch.setattr("partita.tuning.LOOK_S", 0.001)
    ended: list[int] = []
    whole = Measuring._end

    async def slow_end(measuring: Measuring) -> None:
        try:
            await asyncio.sleep(0.1)  # as one whose workers take long to die
            ended.append(1)
        finally:
            await whole(measuring)

    monkeypatch.setattr(Measuring, "_end", slow_end)
    path = models.mlp(tmp_path / "m.onnx")
    with serving(path) as server:
        wait_for(lambda: (server.head.adaptation.tuning("m") or {"points": 0})["points"])
        report = server.head.engine.tunings[server.head.engine.service("m")]
        server._call(server.head.engine.remove("m", 10.0))
        wait_for(lambda: report.state is TuningState.STOPPED)
        assert ended
    wait_for(lambda: marked(mark) == [])
