"""Models on a GPU: many in one process, a limited number of them executing, and what becomes of them."""

import asyncio
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from partita.core.devices import MIB, Device, DeviceKind
from partita.core.errors import ModelUnavailable
from partita.core.plan import InstanceSpec
from partita.engine.deployment import Deployment, plan_of
from partita.engine.engine import Engine
from partita.engine.instance import Instance, ModelLaunch
from partita.engine.service import Service, ServiceSettings
from partita.machines.dispatcher import BatchingRules
from partita.testing.fake_gpu import DRIVER
from tests import models
from tests.engine_driver import EXIT, HANG, XY, all_errors, ask, engine, executed, run, tricky, until, xy
from tests.ensembles import ROW, deployment, rows, start

pytestmark = pytest.mark.process


def gpu(memory_mib: int = 64, slots: int = 2, index: int = 0) -> Device:
    return Device(
        name=f"cuda:{index}",
        kind=DeviceKind.CUDA,
        index=index,
        memory_bytes=memory_mib * MIB,
        slots=slots,
        driver=DRIVER,
    )


def add(
    made: Engine, launch: ModelLaunch, on: Device, *, copies: int = 1, batch: int = 8, **limits: Any
) -> Service:
    spec = InstanceSpec(device=on.name, threads=1, batch=batch, slots=on.slots)
    return made.add(
        Deployment(
            name=launch.name,
            version="1",
            launch=replace(launch, gpus=(on,)),
            settings=ServiceSettings(rules=BatchingRules(**limits)),
            plan=plan_of([spec]),
        )
    )


def instances(*services: Service) -> list[Instance]:
    return [one for service in services for one in service.member.instances.values()]


def network(folder: Path, name: str, hidden: int = 32) -> ModelLaunch:
    return ModelLaunch(
        name=name, path=str(models.mlp(folder / f"{name}.onnx", 4, hidden)), runtime="onnxruntime"
    )


def test_all_models_of_a_gpu_are_in_one_process_and_those_of_another_are_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine() as made:
            first, second = (add(made, network(tmp_path, name), gpu()) for name in ("a", "b"))
            third = add(made, network(tmp_path, "c"), gpu(index=1))
            await made.until_ready()
            pids = [one.pid for one in instances(first, second, third)]
            assert pids[0] == pids[1] != pids[2]
            x = np.random.default_rng(0).standard_normal((20, 4)).astype(np.float32)
            answers = [await rows(ask(service, x, layout=ROW)) for service in (first, second, third)]
            np.testing.assert_array_equal(answers[0], answers[1])  # of the same weights
            for one in instances(first, second, third):
                assert one.ready is not None
                assert one.ready.device_bytes == 2 * os.path.getsize(one.launch.path)
            # One leaves, the other goes on in the same process; a new one joins it.
            await made.remove("a", 5.0)
            np.testing.assert_array_equal(await rows(ask(second, x, layout=ROW)), answers[1])
            fourth = add(made, network(tmp_path, "d"), gpu())
            await fourth.until_ready()
            assert {one.pid for one in instances(second, fourth)} == {pids[0]}
            assert second.statistics.worker_deaths == 0

    run(main)


@pytest.mark.parametrize("slots", [1, 2])
def test_no_more_execute_at_once_than_the_gpu_has_slots(tmp_path: Path, slots: int) -> None:
    (tmp_path / "busy.py").write_text(
        dedent("""
        import builtins, threading, time

        class Busy:
            inputs = {"x": {"shape": [-1, 2], "datatype": "FP32"}}
            outputs = {"y": {"shape": [-1, 1], "datatype": "FP32"}}

            def load(self, context):
                assert context.device == "cuda:0", context.device
                builtins.partita_test = getattr(builtins, "partita_test", [threading.Lock(), 0])

            def infer(self, batch):
                lock, _ = builtins.partita_test
                with lock:
                    builtins.partita_test[1] += 1
                time.sleep(0.01)
                with lock:
                    now = builtins.partita_test[1]
                    builtins.partita_test[1] -= 1
                return {"y": batch["x"][:, :1] * 0 + now}
        """)
    )

    async def main() -> None:
        async with engine() as made:
            services = [
                add(
                    made,
                    ModelLaunch(name=name, path=f"{tmp_path}/busy.py:Busy", runtime="python"),
                    gpu(slots=slots),
                )
                for name in ("a", "b", "c")
            ]
            await made.until_ready()
            asked = [ask(service, xy(k), layout=XY) for k in range(10) for service in services]
            seen = [int((await rows(one))[0, 0]) for one in asked]
            assert max(seen) == slots, "as many at once as there are slots, while all have work"
            made.check()

    run(main)


def test_killed_all_models_of_the_gpu_come_back_and_no_request_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine() as made:
            services = [add(made, network(tmp_path, name), gpu()) for name in ("a", "b")]
            await made.until_ready()
            pid = instances(services[0])[0].pid
            x = np.ones((3, 4), np.float32)
            before = await rows(ask(services[0], x, layout=ROW))
            asked = [ask(service, x, layout=ROW) for _ in range(20) for service in services]
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            for one in asked:
                np.testing.assert_array_equal(await rows(one), before)
            await until(lambda: all(one.is_ready for one in instances(*services)))
            assert {one.pid for one in instances(*services)} != {pid}
            assert len({one.pid for one in instances(*services)}) == 1
            assert [service.statistics.worker_deaths for service in services] == [1, 1]

    run(main)


@pytest.mark.parametrize("what", [EXIT, HANG])
def test_an_item_that_ends_or_blocks_the_process_fails_alone(tmp_path: Path, what: int) -> None:
    async def main() -> None:
        async with engine() as made:
            bad = add(made, tricky(tmp_path / "tricky"), gpu(), execution_limit_s=1.0)
            other = add(made, network(tmp_path, "b"), gpu())
            await made.until_ready()
            x = np.ones((3, 4), np.float32)
            lost = ask(bad, xy(7, what=what))
            kept = [ask(bad, xy(k)) for k in range(3)]
            beside = [ask(other, x, layout=ROW) for _ in range(3)]
            assert (await lost.error()).code == "worker_died"
            assert await all_errors([*kept, *beside]) == [None] * 6
            assert executed(tmp_path / "tricky").count([7]) <= 2

    run(main)


def test_a_model_that_the_gpu_has_no_room_for_ends_its_start_and_nothing_else(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine() as made:
            small = add(made, network(tmp_path, "small"), gpu(1))
            await small.until_ready()
            pid = instances(small)[0].pid
            large = add(made, network(tmp_path, "large", 100_000), gpu(1))  # 6 MB
            with pytest.raises(ModelUnavailable, match=r"cuda:0 cannot allocate \d+ bytes: \d+ are free"):
                await large.until_ready()
            assert instances(small)[0].pid == pid
            assert small.statistics.worker_deaths == 0
            await rows(ask(small, np.ones((3, 4), np.float32), layout=ROW))

    run(main)


def test_the_load_limit_of_a_model_begins_with_its_turn(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text(
        dedent("""
        import os

        class Waits:
            inputs = {"x": {"shape": [-1, 2], "datatype": "FP32"}}
            outputs = {"y": {"shape": [-1, 2], "datatype": "FP32"}}

            def load(self, context):
                gate = os.path.join(os.path.dirname(os.path.abspath(__file__)), context.name)
                if os.path.exists(gate):
                    open(gate).read()

            def infer(self, batch):
                return {"y": batch["x"]}
        """)
    )

    async def main() -> None:
        def launch(name: str, limit_s: float) -> ModelLaunch:
            path = f"{tmp_path}/waits.py:Waits"
            return ModelLaunch(name=name, path=path, runtime="python", load_limit_s=limit_s)

        async with engine() as made:
            os.mkfifo(tmp_path / "slow")
            slow = add(made, launch("slow", 60.0), gpu())
            others = [add(made, launch(name, 1.5), gpu()) for name in ("b", "c")]
            await asyncio.sleep(2.0)  # longer than they may load
            (tmp_path / "slow").write_text("")
            await made.until_ready()
            assert [one.statistics.worker_deaths for one in (slow, *others)] == [0, 0, 0]
            pid = instances(slow)[0].pid
            assert all(one.pid == pid for one in instances(*others))
            os.mkfifo(tmp_path / "never")
            with pytest.raises(ModelUnavailable, match=r"load limit of 0.5 s"):
                await add(made, launch("never", 0.5), gpu()).until_ready()

    run(main)


def test_a_runtime_that_knows_cores_alone_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        async with engine() as made:
            launch = replace(network(tmp_path, "a"), runtime="openvino")
            service = add(made, launch, gpu())
            with pytest.raises(
                ModelUnavailable, match="runtime openvino runs on cores, and a is to be on cuda:0"
            ):
                await service.until_ready()

    run(main)


def test_members_on_a_gpu_and_on_cores_are_one_ensemble(tmp_path: Path) -> None:
    launches = [network(tmp_path, name) for name in ("a", "b", "c")]
    on: Sequence[Device | None] = (gpu(), gpu(), None)

    async def main() -> None:
        async with engine() as made:
            deployed = deployment(launches)
            specs = [
                replace(spec, device=where.name, slots=where.slots) if where is not None else spec
                for spec, where in zip(deployed.plan.instances, on, strict=True)
            ]
            members = tuple(replace(m, launch=replace(m.launch, gpus=(gpu(),))) for m in deployed.members)
            service = start(made, replace(deployed, plan=plan_of(specs), members=members))
            await service.until_ready()
            pids = [one.pid for branch in service.group.branches for one in branch.member.instances.values()]
            assert pids[0] == pids[1] != pids[2]
            x = np.random.default_rng(1).standard_normal((300, 4)).astype(np.float32)
            together = await rows(ask(service, x, layout=ROW))
            alone = [ort.InferenceSession(launch.path).run(None, {"x": x})[0] for launch in launches]
            np.testing.assert_allclose(together, np.mean(alone, axis=0), rtol=1e-5, atol=1e-6)

    run(main)
