"""Requests through real workers: joined in order, batched by shape, padded, ragged, on shared cores."""

import asyncio
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from partita.core.plan import InstanceSpec, Plan
from partita.engine.instance import ModelLaunch
from partita.engine.request import Layout
from partita.machines.dispatcher import Policy
from tests import models
from tests.engine_driver import (
    Asked,
    add,
    ask,
    engine,
    executed,
    plan,
    python_model,
    run,
    served,
    tricky,
    until,
    xy,
)

pytestmark = pytest.mark.process

WEIGHT, BIAS = models.linear_weights()
ROW = Layout(None, (16,))


def onnx(path: Path, name: str = "model") -> ModelLaunch:
    return ModelLaunch(name=name, path=str(path), runtime="onnxruntime")


@pytest.mark.parametrize("policy", Policy)
def test_a_request_larger_than_b_is_split_and_joined_in_order(tmp_path: Path, policy: Policy) -> None:
    launch = onnx(models.linear(tmp_path / "m.onnx"))
    x = np.random.default_rng(1).standard_normal((100, 4)).astype(np.float32)

    async def main() -> None:
        async with served(launch, 8, 4, policy=policy, batch_timeout_s=0.001) as service:
            (y,) = await ask(service, x, layout=ROW).result()
            assert y.shape == (100, 3)
            np.testing.assert_allclose(y, x @ WEIGHT + BIAS, rtol=1e-4, atol=1e-5)
            assert service.statistics.answered == 1
            assert service.statistics.executions >= 13

    run(main)


@pytest.mark.parametrize("policy", Policy)
def test_mixed_sizes_with_unique_payloads_each_get_their_own(tmp_path: Path, policy: Policy) -> None:
    launch = tricky(tmp_path)
    sizes = np.random.default_rng(2).integers(1, 18, 300)

    async def main() -> None:
        async with served(launch, 8, 4, policy=policy, max_queue_items=10_000) as service:
            asked, first = [], 1
            for size in sizes:
                asked.append((ask(service, xy(*range(first, first + size))), first, size))
                first += size
            for one, start, size in asked:
                (y,) = await one.result()
                np.testing.assert_array_equal(y[:, 0], 2 * np.arange(start, start + size) + 1)
                assert one.outcomes == 1
            assert service.statistics.answered_items == sizes.sum()
        assert sorted(v for batch in executed(tmp_path) for v in batch) == list(range(1, sizes.sum() + 1))

    run(main)


def test_micro_batches_of_an_aggregate_batch(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with engine() as made:
            spec = InstanceSpec(threads=1, batch=8, executions=(4, 4))
            rules = {"policy": Policy.AGGREGATE, "batch_timeout_s": 5.0}
            service = add(made, launch, Plan(instances=(spec,), cores=1, batch=8), **rules)
            await service.until_ready()
            asked = [ask(service, xy(n)) for n in range(1, 9)]
            assert [(await a.result())[0][0, 0] for a in asked] == [2 * n + 1 for n in range(1, 9)]
            assert service.statistics.by_batch.keys() == {8}
        assert executed(tmp_path) == [[1, 2, 3, 4], [5, 6, 7, 8]]

    run(main)


def test_equal_shapes_share_a_batch_and_different_ones_never_do(tmp_path: Path) -> None:
    launch = onnx(models.sequence_sum(tmp_path / "m.onnx"))

    def layout(length: int) -> Layout:
        return Layout(((length, 4),), (length * 16,), ((length, 4),))

    async def main() -> None:
        async with served(launch, 8, batch_timeout_s=0.05) as service:
            inputs = [np.full((1, 1 + n % 3, 4), n, np.float32) for n in range(12)]
            asked = [ask(service, x, layout=layout(x.shape[1])) for x in inputs]
            for one, x in zip(asked, inputs, strict=True):
                total, doubled = await one.result()
                np.testing.assert_array_equal(total, x.sum(axis=1))
                np.testing.assert_array_equal(doubled, 2 * x)
            assert {n: c.executions for n, c in service.statistics.by_batch.items()} == {4: 3}

    run(main)


def test_a_network_with_a_frozen_batch_is_padded(tmp_path: Path) -> None:
    launch = onnx(models.fixed_linear(tmp_path / "m.onnx", 4))
    x = np.random.default_rng(3).standard_normal((11, 4)).astype(np.float32)

    async def main() -> None:
        async with served(launch, 1) as service:
            (y,) = await ask(service, x, layout=ROW).result()
            np.testing.assert_allclose(y, x @ WEIGHT + BIAS, rtol=1e-4, atol=1e-5)
            (y,) = await ask(service, x[:1], layout=ROW).result()
            np.testing.assert_allclose(y, x[:1] @ WEIGHT + BIAS, rtol=1e-4, atol=1e-5)

    run(main)


def test_a_model_without_a_batch_axis_takes_one_item_at_a_time(tmp_path: Path) -> None:
    launch = onnx(models.unbatched(tmp_path / "m.onnx"))

    async def main() -> None:
        async with served(launch, 4) as service:
            inputs = [np.arange(4, dtype=np.float32) + n for n in range(9)]
            asked = []
            for x in inputs:
                one = Asked(service)
                service.submit([x.tobytes()], 1, ROW, one)
                asked.append(one)
            for one, x in zip(asked, inputs, strict=True):
                np.testing.assert_array_equal((await one.result())[0], 2 * x)
            assert service.statistics.by_batch.keys() == {1}

    run(main)


def test_texts_of_any_length(tmp_path: Path) -> None:
    source = """
        import numpy as np
        class Upper:
            inputs = {"s": {"shape": [-1, 2], "datatype": "BYTES"}}
            outputs = {"u": {"shape": [-1, 2], "datatype": "BYTES"}}
            def infer(self, batch):
                upper = [[v.upper() * 2 for v in row] for row in batch["s"].tolist()]
                return {"u": np.array(upper, dtype=object)}
    """
    launch = python_model(tmp_path, source, "Upper")
    layout = Layout("texts", (), None, True)

    def packed(*texts: bytes) -> bytes:
        return b"".join(len(t).to_bytes(4, "little") + t for t in texts)

    async def main() -> None:
        async with served(launch, 4) as service:
            asked = []
            for n in range(1, 20):
                one = Asked(service)
                rows = [[packed(b"a" * (n * 37 % 300), b"b%d" % k)] for k in range(n)]
                service.submit_ragged(rows, layout, one)
                asked.append((n, one))
            for n, one in asked:
                outputs, shapes = await one.future
                assert shapes == ((n, 2),)
                expected = [packed(b"A" * (2 * (n * 37 % 300)), (b"B%d" % k) * 2) for k in range(n)]
                assert outputs == [b"".join(expected)]

    run(main)


RECORDER = """
    import os, time
    FILE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "times")
    class Recorder:
        inputs = {"x": {"shape": [-1, 2], "datatype": "FP32"}}
        outputs = {"y": {"shape": [-1, 2], "datatype": "FP32"}}
        def infer(self, batch):
            begin = time.monotonic_ns()
            while time.monotonic_ns() < begin + 1_000_000:
                pass
            with open(FILE, "a") as file:
                file.write(f"{begin} {time.monotonic_ns()} {int(batch['x'][0, 0])}\\n")
            return {"y": batch["x"]}
"""


def times(folder: Path) -> list[tuple[int, int]]:
    lines = (line.split() for line in (folder / "times").read_text().splitlines())
    return [(int(begin), int(end)) for begin, end, what in lines if what != "0"]


@pytest.mark.parametrize("policy", Policy)
def test_two_models_on_one_core_take_turns_and_never_execute_at_once(tmp_path: Path, policy: Policy) -> None:
    folders = [tmp_path / "one", tmp_path / "two"]
    launches = []
    for folder in folders:
        folder.mkdir()
        launches.append(python_model(folder, RECORDER, "Recorder", folder.name))

    async def main() -> None:
        async with engine() as made:
            shared = plan(2, cores=[(0,)])
            services = [add(made, launch, shared, policy=policy, turn_s=0.0) for launch in launches]
            await made.until_ready()
            asked = [ask(service, xy(n)) for n in range(1, 61) for service in services]
            await asyncio.gather(*(a.result() for a in asked))
            await until(lambda: not made.leases.executing_cores())
            made.check()

    run(main)
    one, two = times(folders[0]), times(folders[1])
    marked = sorted([(*t, 0) for t in one] + [(*t, 1) for t in two])
    assert all(a[1] <= b[0] for a, b in pairwise(marked)), "executed at the same time"
    turns = [who for _, _, who in marked]
    changes = sum(a != b for a, b in pairwise(turns))
    assert changes >= len(turns) - 4, "both had work all the time, so they alternate"


def test_instances_on_cores_of_their_own_execute_at_once(tmp_path: Path) -> None:
    launch = tricky(tmp_path)
    (tmp_path / "gate").touch()

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, plan(1, 1, cores=[(0,), (1,)]))
            await service.until_ready()
            asked = [ask(service, xy(n)) for n in range(1, 41)]
            seen = 0
            while not all(a.future.done() for a in asked):
                seen = max(seen, len(made.leases.executing_cores()))
                made.leases.check()
                await asyncio.sleep(0)
            assert seen == 2

    run(main)
