"""A user's handler around a network, and a user's class as the model."""

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from partita.core.tensors import DataType, TensorSpec
from tests import models
from tests.worker_driver import start_failure, worker

pytestmark = pytest.mark.process

WEIGHT, BIAS = models.linear_weights()
X = np.random.default_rng(5).standard_normal((5, 4)).astype(np.float32)
ANSWER = X @ WEIGHT + BIAS
PIXELS = TensorSpec("pixels", DataType.UINT8, (2, 2))

Write = Callable[[str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file of user code and return the reference of its class H."""

    def written(source: str) -> str:
        (tmp_path / "handler.py").write_text(dedent(source))
        return f"{tmp_path}/handler.py:H"

    return written


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    return models.linear(tmp_path / "model.onnx")


def test_preprocess_and_postprocess_around_a_network(linear: Path, write: Write) -> None:
    handler = write("""
        import numpy as np
        class H:
            def load(self, context):
                assert context.model_path.name == "model.onnx" and context.threads == 1
                self.scale = np.float32(1 / 255)
            def preprocess(self, items):
                return {"x": np.stack([item["pixels"].ravel() * self.scale for item in items])}
            def postprocess(self, outputs):
                return [{"label": int(y.argmax()), "scores": y} for y in outputs["y"]]
    """)
    pixels = np.random.default_rng(1).integers(0, 256, (5, 2, 2)).astype(np.uint8)
    scores = (pixels.reshape(5, 4) / np.float32(255)) @ WEIGHT + BIAS
    with worker(linear, handler=handler, inputs=[PIXELS]) as driver:
        signature = driver.start().signature
        assert signature.inputs == (PIXELS,)
        assert signature.outputs == (
            TensorSpec("label", DataType.INT64, ()),
            TensorSpec("scores", DataType.FP32, (3,)),
        )
        for executions in ((), (2, 2, 1), (8,)):
            label, found = driver.run([pixels[:3]], [pixels[3:]], executions=executions)
            np.testing.assert_allclose(found, scores, rtol=1e-4)
            np.testing.assert_array_equal(label, scores.argmax(axis=1))


def test_postprocess_alone_keeps_the_inputs_of_the_network(linear: Path, write: Write) -> None:
    handler = write("""
        class H:
            def postprocess(self, outputs):
                return {"best": outputs["y"].max(axis=1)}
    """)
    with worker(linear, handler=handler) as driver:
        signature = driver.start().signature
        assert signature.inputs == (TensorSpec("x", DataType.FP32, (4,)),)
        assert signature.outputs == (TensorSpec("best", DataType.FP32, ()),)
        np.testing.assert_allclose(driver.run([X])[0], ANSWER.max(axis=1), rtol=1e-5)


def test_infer_replaces_the_network_and_may_call_it(linear: Path, write: Write) -> None:
    handler = write("""
        class H:
            outputs = {"y": {"shape": [-1, 3], "datatype": "FP32"}}
            def load(self, context):
                self.network = context.network
            def infer(self, batch):
                return {"y": self.network(batch)["y"] + self.network({"x": batch["x"]})["y"]}
    """)
    with worker(linear, handler=handler) as driver:
        driver.start()
        np.testing.assert_allclose(driver.run([X])[0], 2 * ANSWER, rtol=1e-5)


def test_a_handler_around_a_frozen_batch_sees_no_padding(tmp_path: Path, write: Write) -> None:
    handler = write("""
        class H:
            def postprocess(self, outputs):
                assert len(outputs["y"]) in (1, 4, 5), len(outputs["y"])
                return outputs
    """)
    with worker(models.fixed_linear(tmp_path / "m.onnx", 4), handler=handler, max_batch=4) as driver:
        driver.start()
        np.testing.assert_allclose(driver.run([X])[0], ANSWER, rtol=1e-5)


def test_a_class_as_the_model_with_all_stages_and_a_module_beside_it(tmp_path: Path, write: Write) -> None:
    (tmp_path / "neighbour.py").write_text("FACTOR = 3\n")
    path = write("""
        import numpy as np
        from neighbour import FACTOR
        class H:
            inputs = {"x": {"shape": [-1, 4], "datatype": "FP32"}}
            def preprocess(self, items):
                return {"stacked": np.stack([item["x"] for item in items])}
            def infer(self, batch):
                return {"sum": batch["stacked"].sum(axis=1)}
            def postprocess(self, outputs):
                return {"tripled": outputs["sum"] * FACTOR}
    """)
    with worker(path, runtime="python") as driver:
        assert [spec.name for spec in driver.start().signature.outputs] == ["tripled"]
        np.testing.assert_allclose(driver.run([X])[0], X.sum(axis=1) * 3, rtol=1e-5)


def test_an_axis_that_differs_between_batches_is_dynamic(write: Write) -> None:
    path = write("""
        import numpy as np
        class H:
            inputs = {"x": {"shape": [-1, 4], "datatype": "FP32"}}
            def infer(self, batch):
                n = len(batch["x"])
                return {"table": np.zeros((n, n, 2), np.float32), "flag": batch["x"][:, 0] > 0}
    """)
    with worker(path, runtime="python") as driver:
        outputs = driver.start().signature.outputs
        assert outputs == (
            TensorSpec("table", DataType.FP32, (-1, 2)),
            TensorSpec("flag", DataType.BOOL, ()),
        )
        assert driver.run([X])[0].shape == (5, 5, 2)
        failed = driver.fail([X], executions=(3, 2))
        assert "different shapes" in failed.reason


def test_examples_are_used_where_generated_inputs_would_not_do(write: Write) -> None:
    source = """
        import numpy as np
        class H:
            inputs = {"number": {"shape": [-1], "datatype": "BYTES"}}
            def infer(self, batch):
                return {"value": np.array([float(e) for e in batch["number"]])}
            %s
    """
    with worker(write(source % ""), runtime="python") as driver:
        reason = start_failure(driver).reason
        assert "could not convert string to float" in reason
        assert "examples(self, rows)" in reason
    examples = "examples = lambda self, rows: {'number': np.full(rows, b'1.5', dtype=object)}"
    with worker(write(source % examples), runtime="python") as driver:
        assert driver.start().signature.outputs == (TensorSpec("value", DataType.FP64, ()),)
    declared = "outputs = {'value': {'shape': [-1], 'datatype': 'FP64'}}"
    with worker(write(source % declared), runtime="python") as driver:
        assert "warm-up" in driver.start().warnings[0]
        number = np.array([b"2.25"], dtype=object)
        np.testing.assert_array_equal(driver.run([number], shapes=((),), sizes=((8,),))[0], [2.25])


RAISES = """
    import numpy as np, sys
    class H:
        inputs = {"x": {"shape": [-1, 1], "datatype": "FP32"}}
        outputs = {"y": {"shape": [-1, 1], "datatype": "FP32"}}
        def infer(self, batch):
            x = batch["x"]
            kind = int(x[0, 0])
            if kind == 2:
                raise ValueError("two is\\nnot allowed")
            if kind == 3:
                sys.exit("three")
            if kind == 4:
                raise MemoryError
            if kind == 5:
                return {"y": x[:-1]}
            if kind == 6:
                return {"z": x}
            if kind == 7:
                return {"y": x, "more": x}
            if kind == 8:
                return [x]
            if kind == 9:
                return {"y": x.astype("f8")}
            if kind == 10:
                x[0, 0] = 1
            if kind == 11:
                return {"y": [[1.0], [1.0, 2.0]]}
            if kind == 12:
                return {"y": None}
            return {"y": x}
"""


def test_whatever_user_code_does_only_its_own_batch_fails(write: Write) -> None:
    reasons = {
        2: "handler.py:10 in infer: ValueError: two is not allowed",
        3: "handler.py:12 in infer: SystemExit: three",
        4: "handler.py:14 in infer: MemoryError",
        5: "output 'y' has shape [1, 1] for a batch of 2 items; its first axis must be 2",
        6: "the model returned ['z']; a dict of the outputs ['y'] is expected",
        7: "the model returned ['y', 'more']; a dict of the outputs ['y'] is expected",
        8: "the model returned list; a dict of the outputs ['y'] is expected",
        9: "output 'y' is float64; FP32 (float32) is expected",
        10: "handler.py:26 in infer: ValueError: assignment destination is read-only",
        11: "output 'y' is not an array: ",
        12: "output 'y' is object; FP32 (float32) is expected",
    }
    good = np.ones((2, 1), np.float32)
    with worker(write(RAISES), runtime="python") as driver:
        driver.start()
        for kind, reason in reasons.items():
            failed = driver.fail([np.full((2, 1), kind, np.float32)])
            assert failed.reason.startswith(reason)
            assert failed.code == ("out_of_memory" if kind == 4 else "inference_failed")
            np.testing.assert_array_equal(driver.run([good])[0], good)


def test_what_a_network_refuses_is_a_failed_batch(linear: Path, write: Write) -> None:
    handler = write("""
        class H:
            def preprocess(self, items):
                if items[0]["x"][0] > 100:
                    return [{"x": item["x"][:2]} for item in items]
                if items[0]["x"][0] > 50:
                    return "nonsense"
                return [{"x": item["x"]} for item in items]
    """)
    with worker(linear, handler=handler) as driver:
        driver.start()
        assert "Got: 2 Expected: 4" in driver.fail([X + 200]).reason
        assert driver.fail([X + 60]).reason.startswith("preprocess returned str; a dict of arrays")
        np.testing.assert_allclose(driver.run([X])[0], ANSWER, rtol=1e-5)
