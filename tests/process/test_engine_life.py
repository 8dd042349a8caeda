"""Workers that cannot load, that crash while loading, and a head that is killed."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from partita.core.errors import InvalidInput, ModelNotFound, ModelUnavailable
from partita.core.plan import InstanceSpec, Plan
from partita.engine.instance import ModelLaunch
from partita.engine.service import ServiceState
from partita.machines.worker_life import RestartRules
from tests import models
from tests.engine_driver import (
    QUICK,
    add,
    ask,
    engine,
    executed,
    make_gate,
    plan,
    python_model,
    run,
    served,
    tricky,
    until,
    xy,
)

pytestmark = pytest.mark.process

CRASHES = """
    import os
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "starts"), "a") as file:
        file.write("x")
    class Crashes:
        inputs = {"x": {"shape": [-1, 2], "datatype": "FP32"}}
        def load(self, context):
            os._exit(7)
        def infer(self, batch):
            return {"y": batch["x"]}
"""


def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    file = tmp_path / "broken.onnx"
    file.write_bytes(b"this is no network")
    launch = ModelLaunch(name="broken", path=str(file), runtime="onnxruntime")

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, plan(1))
            with pytest.raises(ModelUnavailable, match=r"'broken'.*loading"):
                ask(service, xy(1))
            with pytest.raises(ModelUnavailable, match=r"could not be loaded: could not load: .*broken.onnx"):
                await service.until_ready()
            with pytest.raises(ModelUnavailable):
                _ = service.signature
            assert not made.is_ready
            assert service.statistics.refused == {"model_unavailable": 1}

    run(main)


def test_one_that_always_crashes_while_loading_is_given_up_and_others_serve(tmp_path: Path) -> None:
    bad, good = tmp_path / "bad", tmp_path / "good"
    bad.mkdir()
    rules = RestartRules(first_backoff_s=0.05, longest_backoff_s=1.0, max_failed_starts=3)

    async def main() -> None:
        async with engine(rules) as made:
            crashing = add(made, python_model(bad, CRASHES, "Crashes", "crashing"), plan(1))
            began = time.monotonic()
            service = add(made, tricky(good), plan(4))
            await service.until_ready()
            assert (await ask(service, xy(4)).result())[0][0, 0] == 9
            await until(lambda: crashing.state is ServiceState.FAILED)
            assert time.monotonic() - began >= 0.05 + 0.1
            (instance,) = crashing.member.instances.values()
            assert instance.life.restarts == 2
            assert instance.is_gone
            with pytest.raises(ModelUnavailable, match="exited with status 7"):
                ask(crashing, xy(1))
            with pytest.raises(ModelUnavailable):
                await crashing.until_ready()
            assert (await ask(service, xy(5)).result())[0][0, 0] == 11
        assert (bad / "starts").read_text() == "xxx"

    run(main)


def test_an_instance_that_is_given_up_leaves_the_others_serving(tmp_path: Path) -> None:
    """Two of one model: the second finds its start refused, every time."""
    launch = tricky(tmp_path)
    source = (tmp_path / "model.py").read_text()
    once = """
    def load(self, context):
        try:
            os.mkdir(os.path.join(FOLDER, "first"))
        except FileExistsError:
            os._exit(1)

    def infer("""
    (tmp_path / "model.py").write_text(source.replace("\n    def infer(", once, 1))

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, plan(2, 2))
            await until(lambda: service.is_ready)
            await service.until_ready()
            assert service.member.ready_instances == 1
            assert sum(i.has_given_up for i in service.member.instances.values()) == 1
            assert service.is_ready
            assert (await ask(service, xy(*range(1, 10))).result())[0][8, 0] == 19

    run(main)


def test_a_model_that_loads_too_slowly_is_stopped(tmp_path: Path) -> None:
    source = """
        import time
        class Slow:
            inputs = {"x": {"shape": [-1, 2], "datatype": "FP32"}}
            def load(self, context):
                time.sleep(3600)
            def infer(self, batch):
                return {"y": batch["x"]}
    """
    launch = python_model(tmp_path, source, "Slow")
    launch = ModelLaunch(name="slow", path=launch.path, runtime="python", load_limit_s=0.5)

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, plan(1))
            with pytest.raises(ModelUnavailable, match=r"load limit of 0.5 s"):
                await service.until_ready()

    run(main)


def test_stopping_while_loading_and_stopping_twice(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with engine(QUICK) as made:
            service = add(made, launch, plan(1, 1))
            await made.stop(5.0)
            assert all(i.is_gone for i in service.member.instances.values())
            assert service.state is ServiceState.STOPPED

    run(main)


def test_names_and_versions(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with served(launch, 1) as service, engine() as made:
            assert service.version == "1"
            with pytest.raises(ModelNotFound, match="'other' is not served"):
                made.service("other")
            one = add(made, launch, plan(1))
            with pytest.raises(InvalidInput, match="two models are named 'tricky'"):
                add(made, launch, plan(1))
            await one.until_ready()
            assert made.service("tricky", "1") is one
            with pytest.raises(ModelNotFound, match="version '2'"):
                made.service("tricky", "2")
            await made.remove("tricky", 5.0)
            with pytest.raises(ModelNotFound):
                made.service("tricky")

    run(main)


@pytest.mark.parametrize("roams", [False, True])
def test_workers_run_where_their_plan_says(tmp_path: Path, roams: bool) -> None:
    allowed = os.sched_getaffinity(0)
    launch = ModelLaunch(name="m", path=str(models.linear(tmp_path / "m.onnx")), runtime="onnxruntime")
    core = min(allowed)

    async def main() -> None:
        async with engine() as made:
            affinity = tuple(sorted(allowed)) if roams else ()
            spec = InstanceSpec(threads=1, batch=4, cores=(core,), affinity=affinity)
            service = add(made, launch, Plan(instances=(spec,), cores=1, batch=4))
            await service.until_ready()
            (instance,) = service.member.instances.values()
            assert instance.pid is not None
            assert instance.ready is not None
            assert instance.ready.pinned
            assert instance.ready.threads_seen in (None, 1)
            assert os.sched_getaffinity(instance.pid) == (allowed if roams else {core})
            assert os.sched_getscheduler(instance.pid) == (os.SCHED_BATCH if roams else os.SCHED_OTHER)

    run(main)


def test_a_refused_pinning_is_one_warning_and_it_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two workers on cores that there are not, and one of them started again."""

    async def main() -> None:
        async with engine() as made:
            service = add(made, tricky(tmp_path), plan(4, 4, cores=[(9998,), (9999,)]))
            await service.until_ready()
            (first, second) = service.member.instances.values()
            await until(lambda: first.is_ready and second.is_ready)
            for value in range(4):
                np.testing.assert_array_equal(await ask(service, xy(value)).result(), [[[2 * value + 1, 1]]])
            assert first.pid is not None
            os.kill(first.pid, signal.SIGKILL)
            await until(lambda: first.life.restarts == 1 and first.is_ready)
            assert first.ready is not None
            assert not first.ready.pinned

    run(main)
    (record,) = [one for one in caplog.records if "pin" in one.getMessage()]
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("tricky: the system refuses to pin a worker to cores 999")


HEAD = """
    import asyncio, sys
    from pathlib import Path
    import uvloop
    from tests.engine_driver import *

    async def main():
        made = Engine(asyncio.get_running_loop())
        service = add(made, tricky(Path(sys.argv[1])), plan(1, 1))
        await service.until_ready()
        ask(service, xy(1, what=HOLD))
        await until(lambda: executed(Path(sys.argv[1])))
        print(*(i.pid for i in service.member.instances.values()), flush=True)
        await asyncio.sleep(3600)

    uvloop.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_head_leaves_no_worker_not_even_a_busy_one(tmp_path: Path, how: signal.Signals) -> None:
    make_gate(tmp_path)
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", dedent(HEAD), str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdout is not None
        pids = [int(word) for word in head.stdout.readline().split()]
        assert len(pids) == 2
        assert executed(tmp_path) == [[1]]
        watched = [os.pidfd_open(pid) for pid in pids]
        try:
            head.send_signal(how)
            head.wait(10)
            run(lambda: _all_ended(watched))
        finally:
            for fd in watched:
                os.close(fd)


async def _all_ended(pidfds: list[int]) -> None:
    loop = asyncio.get_running_loop()
    for fd in pidfds:
        ended = asyncio.Event()
        loop.add_reader(fd, ended.set)
        await asyncio.wait_for(ended.wait(), 10)
        loop.remove_reader(fd)
