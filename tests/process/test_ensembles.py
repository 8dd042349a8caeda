"""Ensembles through real workers: every request to all members, one answer back, whatever fails."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from partita.core.errors import InferenceFailed, ModelUnavailable, QueueFull
from partita.engine.ensemble_signature import MemberRole
from partita.engine.instance import ModelLaunch
from partita.machines.accumulator import Accumulator
from partita.machines.rules import rule_maker
from tests import models
from tests.engine_driver import ask, engine, gate_reached, make_gate, run, until
from tests.ensembles import (
    EXIT,
    HOLD,
    RAISE,
    ROW,
    WIDE,
    deployment,
    items,
    missing,
    rows,
    scaled,
    served,
    start,
)

pytestmark = pytest.mark.process


@pytest.mark.parametrize("rule", ["weighted", "median"])
def test_the_answer_has_the_bits_of_a_plain_loop_over_the_members(tmp_path: Path, rule: str) -> None:
    scales = {"a": 0.1, "b": -3.7, "c": 11.3}
    launches = [scaled(tmp_path, name, scale) for name, scale in scales.items()]
    weights = {"a": 1.0, "b": 0.3, "c": 2.5} if rule in ("weighted", "vote") else dict.fromkeys(scales, 1.0)
    roles = [MemberRole(name=name, weight=weight) for name, weight in weights.items()]
    sizes = [1, 300, 17, 2, 128, 5, 44]

    async def main() -> None:
        async with served(launches, rule=rule, roles=roles, copies=2) as service:
            rng = np.random.default_rng(1)
            inputs = [rng.standard_normal((n, 4)).astype(np.float32) for n in sizes]
            asked = [ask(service, x, layout=ROW) for x in inputs]
            for one, x in zip(asked, inputs, strict=True):
                loop = rule_maker(rule, weights)()
                loop.start(len(x), list(scales))
                for name, scale in scales.items():
                    loop.update(slice(0, len(x)), name, np.float32(scale) * x[:, :3])
                assert (await rows(one)).tobytes() == np.asarray(loop.finish()).tobytes()
                assert one.outcomes == 1
            assert service.statistics.answered == len(sizes)
            assert service.statistics.answered_items == sum(sizes)

    run(main)


def test_networks_with_other_names_of_inputs_and_other_orders_of_classes(tmp_path: Path) -> None:
    launches = [
        ModelLaunch(name="net", path=str(models.linear(tmp_path / "m.onnx")), runtime="onnxruntime"),
        scaled(tmp_path, "scaled", 2.0),
    ]
    roles = [
        MemberRole(name="net", classes=("cat", "dog", "owl"), output="y"),
        MemberRole(name="scaled", classes=("owl", "cat", "dog")),
    ]
    weight, bias = models.linear_weights()

    async def main() -> None:
        async with served(launches, roles=roles, rule="max") as service:
            x = np.random.default_rng(2).standard_normal((5, 4)).astype(np.float32)
            y = await rows(ask(service, x, layout=ROW))
            second = 2 * x[:, [1, 2, 0]]  # cat, dog, owl of what it answers as owl, cat, dog
            np.testing.assert_allclose(y, np.maximum(x @ weight + bias, second), rtol=1e-5, atol=1e-5)
            assert [spec.name for spec in service.signature.inputs] == ["x"]

    run(main)


def test_members_that_share_one_core_take_turns(tmp_path: Path) -> None:
    launches = [scaled(tmp_path, f"m{k}", float(k)) for k in range(4)]
    core = min(os.sched_getaffinity(0))

    async def main() -> None:
        async with served(launches, cores=(core,)) as service:
            asked = [ask(service, items(n), layout=ROW) for n in range(50)]
            for n, one in enumerate(asked):
                np.testing.assert_allclose((await rows(one))[0, 0], 1.5 * n)

    run(main)


# --- what fails -----------------------------------------------------------------------------------


def test_a_member_that_raises_fails_the_request_and_is_named(tmp_path: Path) -> None:
    launches = [scaled(tmp_path, "good", 1.0), scaled(tmp_path, "bad", 1.0, trouble=True)]

    async def main() -> None:
        async with served(launches) as service:
            before, bad, after = (ask(service, items(1, what=w), layout=ROW) for w in (0, RAISE, 0))
            error = await bad.error()
            assert error.code == "inference_failed"
            assert str(error).startswith("member bad: ")
            assert "bad item" in str(error)
            for one in (before, after):
                np.testing.assert_array_equal(await rows(one), items(1)[:, :3])

    run(main)


def test_a_head_without_memory_for_the_predictions_fails_the_request_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launches = [scaled(tmp_path, "a", 1.0), scaled(tmp_path, "b", 3.0)]
    add = Accumulator.add

    def full(self: Accumulator, member: int, first: int, predictions: NDArray[Any]) -> None:
        if predictions[0, 0] == 21:
            raise MemoryError
        add(self, member, first, predictions)

    monkeypatch.setattr(Accumulator, "add", full)

    async def main() -> None:
        async with served(launches) as service:
            with pytest.raises(InferenceFailed, match="no memory left to combine 1 items"):
                await rows(ask(service, items(7), layout=ROW))
            np.testing.assert_array_equal(await rows(ask(service, items(2), layout=ROW)), 2 * items(2)[:, :3])
            assert service.statistics.failed["inference_failed"] == 1

    run(main)


def test_degraded_answers_come_from_the_rest_and_name_who_is_missing(tmp_path: Path) -> None:
    launches = [
        scaled(tmp_path, "a", 1.0),
        scaled(tmp_path, "b", 10.0, trouble=True),
        scaled(tmp_path, "c", 4.0),
    ]
    roles = [MemberRole(name=n, weight=w) for n, w in (("a", 3.0), ("b", 5.0), ("c", 1.0))]

    async def main() -> None:
        async with served(launches, roles=roles, rule="weighted", degrades=True) as service:
            well, bad, dead = (ask(service, items(2, 6, what=w), layout=ROW) for w in (0, RAISE, EXIT))
            x = items(2, 6)[:, :3]
            np.testing.assert_allclose(await rows(well), x * (3 + 50 + 4) / 9, rtol=1e-6)
            np.testing.assert_allclose(await rows(bad), x * (3 + 4) / 4, rtol=1e-6)
            np.testing.assert_allclose(await rows(dead), x * (3 + 4) / 4, rtol=1e-6)
            assert [missing(one) for one in (well, bad, dead)] == [(), ("b",), ("b",)]
            assert service.statistics.worker_deaths == 2  # once in its batch, once alone
            np.testing.assert_allclose(
                await rows(ask(service, items(2), layout=ROW)), x[:1] * 57 / 9, rtol=1e-6
            )

    run(main)


def test_without_anybody_left_a_degraded_request_fails(tmp_path: Path) -> None:
    launches = [scaled(tmp_path, name, 1.0, trouble=True) for name in ("a", "b")]

    async def main() -> None:
        async with served(launches, degrades=True) as service:
            assert (await ask(service, items(1, what=RAISE), layout=ROW).error()).code == "inference_failed"
            np.testing.assert_array_equal(await rows(ask(service, items(1), layout=ROW)), items(1)[:, :3])

    run(main)


@pytest.mark.parametrize("degrades", [False, True])
def test_kill_of_a_members_worker_costs_no_request(tmp_path: Path, degrades: bool) -> None:
    launches = [scaled(tmp_path, "a", 1.0), scaled(tmp_path, "b", 3.0, trouble=True)]
    (tmp_path / "b").mkdir(exist_ok=True)
    make_gate(tmp_path / "b")

    async def main() -> None:
        async with served(launches, degrades=degrades) as service:
            held = ask(service, items(5, what=HOLD), layout=ROW)
            gate = await gate_reached(tmp_path / "b")
            more = [ask(service, items(n), layout=ROW) for n in range(20)]
            (victim,) = service.group.branches[1].member.instances.values()
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            os.close(gate)  # before anybody else can read from it
            await until(lambda: service.statistics.worker_deaths == 1)
            os.close(await gate_reached(tmp_path / "b"))
            for n, one in enumerate(more):
                np.testing.assert_array_equal((await rows(one))[0, 0], 2 * n)
            np.testing.assert_array_equal((await rows(held))[0, 0], 10)
            assert not any(missing(one) for one in (held, *more)), "all members answered"

    run(main)


@pytest.mark.parametrize("degrades", [False, True])
def test_a_member_that_is_killed_and_cannot_come_back(tmp_path: Path, degrades: bool) -> None:
    launches = [scaled(tmp_path, "a", 1.0), scaled(tmp_path, "b", 3.0)]

    async def main() -> None:
        async with engine() as made:
            service = start(made, deployment(launches, degrades=degrades))
            await service.until_ready()
            (tmp_path / "b" / "model.py").unlink()
            branch = service.group.branches[1]
            (victim,) = branch.member.instances.values()
            assert victim.pid is not None
            os.kill(victim.pid, signal.SIGKILL)
            if degrades:
                await until(lambda: branch.failure is not None)
                one = ask(service, items(4), layout=ROW)
                np.testing.assert_array_equal(await rows(one), items(4)[:, :3])
                assert missing(one) == ("b",)
            else:
                waiting = ask(service, items(4), layout=ROW)
                assert (await waiting.error()).code == "model_unavailable"
                with pytest.raises(ModelUnavailable, match="member b"):
                    ask(service, items(4), layout=ROW)

    run(main)


TOO_LARGE = """
import numpy as np

class TooLarge:
    inputs = {"x": {"shape": [-1, 4], "datatype": "FP32"}}

    def load(self, context):
        self.weights = np.ones(1 << 60, np.float32)

    def infer(self, batch):
        return {"y": batch["x"][:, :3]}
"""


@pytest.mark.parametrize("degrades", [False, True])
def test_a_member_that_does_not_fit_in_memory_ends_the_start(tmp_path: Path, degrades: bool) -> None:
    (tmp_path / "large.py").write_text(TOO_LARGE)
    large = ModelLaunch(name="large", path=f"{tmp_path}/large.py:TooLarge", runtime="python")

    async def main() -> None:
        async with engine() as made:
            service = start(made, deployment([scaled(tmp_path, "good", 1.0), large], degrades=degrades))
            with pytest.raises(ModelUnavailable, match=r"member large: .*allocate"):
                await service.until_ready()
            await made.stop(5.0)
            assert all(not one.instances or one.is_gone for one in service.group.members)

    run(main)


def test_a_member_that_answers_another_shape_fails_the_request_by_name(tmp_path: Path) -> None:
    launches = [scaled(tmp_path, "good", 1.0), scaled(tmp_path, "wide", 1.0, trouble=True)]

    async def main() -> None:
        async with served(launches) as service:
            error = await ask(service, items(1, what=WIDE), layout=ROW).error()
            assert error.code == "inference_failed"
            assert "member wide" in str(error)
            assert "[6]" in str(error)
            np.testing.assert_array_equal(await rows(ask(service, items(1), layout=ROW)), items(1)[:, :3])

    run(main)


def test_a_member_that_cannot_be_loaded_ends_the_start_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    broken = ModelLaunch(name="broken", path=str(tmp_path / "broken" / "m.onnx"), runtime="onnxruntime")
    (tmp_path / "broken" / "m.onnx").write_bytes(b"no network")

    async def main(degrades: bool) -> None:
        async with engine() as made:
            service = start(made, deployment([scaled(tmp_path, "good", 1.0), broken], degrades=degrades))
            with pytest.raises(ModelUnavailable, match="member broken"):
                await service.until_ready()

    for degrades in (False, True):
        run(lambda degrades=degrades: main(degrades))  # type: ignore[misc]


def test_members_that_do_not_fit_together_are_named_at_the_start(tmp_path: Path) -> None:
    narrow = ModelLaunch(
        name="narrow", path=str(models.linear(tmp_path / "n.onnx", 3)), runtime="onnxruntime"
    )

    async def main() -> None:
        async with engine() as made:
            service = start(made, deployment([scaled(tmp_path, "good", 1.0), narrow]))
            with pytest.raises(
                ModelUnavailable, match=r"member narrow takes x FP32 \[-1, 3\] and member good"
            ):
                await service.until_ready()

    run(main)


def test_cancelled_and_late_requests_give_their_memory_back(tmp_path: Path) -> None:
    launches = [scaled(tmp_path, "a", 1.0), scaled(tmp_path, "b", 1.0, trouble=True)]
    make_gate(tmp_path / "b")

    async def main() -> None:
        async with served(launches) as service:
            held = ask(service, items(1, what=HOLD), layout=ROW)
            gate = await gate_reached(tmp_path / "b")
            gone, late = (
                ask(service, items(2), layout=ROW),
                ask(service, items(3), layout=ROW, deadline_s=0.01),
            )
            assert gone.request is not None
            assert held.request is not None
            service.cancel(gone.request)
            assert (await late.error()).code == "deadline_exceeded"
            service.cancel(held.request)
            assert service.statistics.in_flight() == 0
            assert service.arena.owned_items() > 0, "it is still being executed"
            service.check()
            os.close(gate)

    run(main)


def test_a_full_queue_refuses_at_once(tmp_path: Path) -> None:
    launches = [scaled(tmp_path, "a", 1.0), scaled(tmp_path, "b", 1.0, trouble=True)]
    make_gate(tmp_path / "b")

    async def main() -> None:
        async with served(launches, max_queue_items=8) as service:
            held = ask(service, items(1, what=HOLD), layout=ROW)
            gate = await gate_reached(tmp_path / "b")
            waiting = [ask(service, items(n), layout=ROW) for n in range(8)]
            with pytest.raises(QueueFull):  # one member has room again at once, the other has not
                ask(service, items(9), layout=ROW)
            os.close(gate)
            for one in (held, *waiting):
                await rows(one)

    run(main)
