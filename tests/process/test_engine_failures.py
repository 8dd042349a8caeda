"""Faults, each a moment and a manner: who pays for it, and what the engine is like afterwards."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from partita.core.errors import InferenceFailed, WorkerDied
from tests.engine_driver import (
    EXIT,
    HANG,
    HOLD,
    RAISE,
    SOCKETS,
    add,
    all_errors,
    ask,
    engine,
    executed,
    gate_reached,
    make_gate,
    only_instance,
    plan,
    python_model,
    run,
    served,
    tricky,
    until,
    xy,
)

pytestmark = pytest.mark.process


@pytest.mark.parametrize("batches", [(32,), (8, 8), (4, 2, 1)])
@pytest.mark.parametrize(
    ("what", "code", "deaths"),
    [(RAISE, "inference_failed", 0), (EXIT, "worker_died", 2)],
    ids=["raises", "exits"],
)
def test_a_bad_item_among_31_good_ones_fails_alone(
    tmp_path: Path, what: int, code: str, deaths: int, batches: tuple[int, ...]
) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with served(launch, *batches) as service:
            asked = [ask(service, xy(n, what=what if n == 13 else 0)) for n in range(1, 33)]
            assert await all_errors(asked) == [code if n == 13 else None for n in range(1, 33)]
            for n, one in enumerate(asked, start=1):
                if n != 13:
                    assert (await one.result())[0][0, 0] == 2 * n + 1
            assert service.statistics.worker_deaths == deaths
            assert service.statistics.double_deaths == deaths // 2
            assert service.statistics.failed == {code: 1}
            assert all(one.outcomes == 1 for one in asked)
            await until(lambda: service.member.ready_instances == len(batches))
            assert (await ask(service, xy(7)).result())[0][0, 0] == 15
        assert sum(13 in batch for batch in executed(tmp_path)) <= 2
        assert [13] in executed(tmp_path), "the second time alone"

    run(main)


def test_the_reason_of_a_failure_is_told(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with served(launch, 4) as service:
            error = await ask(service, xy(1, what=RAISE)).error()
            assert isinstance(error, InferenceFailed)
            assert "ValueError: bad item" in str(error)
            assert str(tmp_path) not in str(error)
            error = await ask(service, xy(1, what=EXIT)).error()
            assert isinstance(error, WorkerDied)
            assert "exited with status 3" in str(error)

    run(main)


def test_a_hanging_batch_meets_the_execution_limit_and_its_worker_is_replaced(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with served(launch, 8, execution_limit_s=0.4) as service:
            pid = only_instance(service).pid
            asked = [ask(service, xy(n, what=HANG if n == 3 else 0)) for n in range(1, 9)]
            codes = await all_errors(asked)
            assert codes == ["worker_died" if n == 3 else None for n in range(1, 9)]
            assert "execution limit of 0.4 s" in str(await asked[2].error())
            assert service.statistics.worker_deaths == 2
            await until(lambda: service.is_ready)
            assert only_instance(service).pid not in (None, pid)
            assert only_instance(service).life.restarts == 2

    run(main)


def test_a_large_request_with_a_bad_item_fails_as_a_whole_and_no_other_does(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with served(launch, 4, 4) as service:
            x = xy(*range(1, 18))
            x[9, 1] = EXIT
            asked = [ask(service, xy(100)), ask(service, x), ask(service, xy(*range(200, 217)))]
            assert await all_errors(asked) == [None, "worker_died", None]
            np.testing.assert_array_equal((await asked[2].result())[0][:, 0], 2 * np.arange(200, 217) + 1)

    run(main)


def test_a_worker_killed_in_mid_execution_loses_nothing(tmp_path: Path) -> None:
    launch = tricky(tmp_path)
    make_gate(tmp_path)

    async def main() -> None:
        async with served(launch, 4) as service:
            asked = [ask(service, xy(n, what=HOLD)) for n in range(1, 5)]
            asked += [ask(service, xy(n)) for n in range(5, 13)]
            gate = await gate_reached(tmp_path)
            pid = only_instance(service).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            os.close(gate)
            await until(lambda: service.statistics.worker_deaths == 1)
            (tmp_path / "gate").unlink()
            (tmp_path / "gate").touch()
            assert await all_errors(asked) == [None] * 12
            for n, one in enumerate(asked, start=1):
                assert (await one.result())[0][0, 0] == 2 * n + 1
        assert [1, 2, 3, 4] in executed(tmp_path)
        assert all([n] in executed(tmp_path) for n in range(1, 5)), "then in quarantine, one by one"

    run(main)


def test_two_pieces_of_one_request_in_one_batch_are_both_waited_for(tmp_path: Path) -> None:
    """What a lost worker had ahead comes back, and what was beside it is cancelled: the gap is filled."""
    launch = tricky(tmp_path)
    make_gate(tmp_path)

    async def main() -> None:
        async with served(launch, 4) as service:
            first = ask(service, xy(1, 2, 3, 4, what=HOLD))
            beside, split = ask(service, xy(5, 6)), ask(service, xy(7, 8, 9, 10))
            gate = await gate_reached(tmp_path)
            pid = only_instance(service).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            os.close(gate)
            assert beside.request is not None
            service.cancel(beside.request)
            await until(lambda: service.statistics.worker_deaths == 1)
            (tmp_path / "gate").unlink()
            (tmp_path / "gate").touch()
            np.testing.assert_array_equal((await split.result())[0][:, 0], [15, 17, 19, 21])
            await first.result()
            assert beside.outcomes == 0
        assert [7, 8, 9, 10] in executed(tmp_path)

    run(main)


def test_an_idle_worker_that_is_killed_is_replaced_and_nobody_notices(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with served(launch, 4) as service:
            pid = only_instance(service).pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            assert (await ask(service, xy(3)).result())[0][0, 0] == 7
            assert service.statistics.worker_deaths == 1

    run(main)


def test_a_worker_that_leaves_the_protocol_is_replaced(tmp_path: Path) -> None:
    launch = tricky(tmp_path)
    source = (tmp_path / "model.py").read_text()
    noisy = source.replace("os._exit(3)", "[os.write(fd, b'junk junk junk') for fd in sockets()]")
    (tmp_path / "model.py").write_text(noisy + SOCKETS)

    async def main() -> None:
        async with served(launch, 4) as service:
            asked = [ask(service, xy(1)), ask(service, xy(2, what=EXIT)), ask(service, xy(3))]
            assert await all_errors(asked) == [None, "worker_died", None]
            assert service.statistics.worker_deaths == 2

    run(main)


def test_a_model_that_fails_to_load_tries_again_with_what_others_leave(tmp_path: Path) -> None:
    """It loads at the third try; by then its worker has as large a share of the CPU as any other."""
    source = """
    import os
    FOLDER = os.path.dirname(os.path.abspath(__file__))

    class Reluctant:
        inputs = {"x": {"shape": [-1, 2], "datatype": "FP32"}}
        outputs = {"y": {"shape": [-1, 2], "datatype": "FP32"}}

        def load(self, context):
            share = open("/proc/self/autogroup").read().split()[-1]
            tries = os.path.join(FOLDER, "tries")
            with open(tries, "a") as log:
                log.write(share + " ")
            if len(open(tries).read().split()) < 3:
                raise ValueError("not yet")

        def infer(self, batch):
            return {"y": batch["x"]}
    """
    if not Path("/proc/self/autogroup").exists():
        pytest.skip("the system shares the CPU out by process alone")
    launch = python_model(tmp_path, source, "Reluctant")

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, plan(4))
            await until(lambda: service.is_ready, limit_s=80.0)  # others may leave little
            (pid,) = (instance.pid for instance in service.member.instances.values())
            assert (tmp_path / "tries").read_text().split() == ["0", "10", "10"]
            await until(lambda: Path(f"/proc/{pid}/autogroup").read_text().split()[-1] == "0")

    run(main)
