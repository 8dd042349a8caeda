"""Weighted boxes fusion: an ensemble of detectors from its file, through real workers."""

import warnings
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from ensemble_boxes import weighted_boxes_fusion
from numpy.typing import NDArray

from partita.core.errors import InferenceFailed, InvalidInput, MissingExtra, ModelUnavailable
from partita.core.tensors import DataType, TensorSpec
from partita.embedded import Server
from partita.ensemble_file import read_ensemble
from partita.worker.runtimes import registry
from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.registry import runtime_loader

pytestmark = pytest.mark.process

DETECTOR = """
import numpy as np

class Detector:
    \"\"\"Answers the boxes that it is sent, shifted to the right, with its own order of labels.\"\"\"

    inputs = {{"x": {{"shape": [-1, 3, 6], "datatype": "FP32"}}}}
    outputs = {{
        "{output}": {{"shape": [-1, -1, 6], "datatype": "FP32"}},
        "rest": {{"shape": [-1, 1], "datatype": "FP32"}},
    }}

    def infer(self, batch):
        rows = batch["x"].copy()
        rows[:, :, [0, 2]] += {shift} * (rows[:, :, 4:5] > 0)
        rows[:, :, 5] = {labels}
        if {more}:
            rows = np.concatenate([rows, np.zeros_like(rows)], axis=1)
        return {{"{output}": rows, "rest": rows[:, :1, 0]}}
"""


def detector(folder: Path, name: str, *, output: str, shift: float, labels: str, more: bool = False) -> None:
    (folder / f"{name}.py").write_text(
        dedent(DETECTOR).format(output=output, shift=shift, labels=labels, more=more)
    )


def images(pixels: float = 1.0) -> NDArray[np.float32]:
    """Two images of three rows: two objects and padding; and nothing at all."""
    rows = np.zeros((2, 3, 6), np.float32)
    rows[0, 0] = [0.1, 0.1, 0.4, 0.5, 0.9, 0]
    rows[0, 1] = [0.6, 0.5, 0.8, 0.9, 0.6, 1]
    rows[..., :4] *= np.float32(pixels)
    return rows


def ensemble(folder: Path, extra: str = "") -> Path:
    detector(folder, "one", output="boxes", shift=0.0, labels="rows[:, :, 5]")
    detector(folder, "two", output="found", shift=0.02, labels="1 - rows[:, :, 5]", more=True)
    file = folder / "both.toml"
    file.write_text(
        f'rule = "boxes"\n{extra}\n'
        '[[member]]\npath = "one.py"\nweight = 2\noutput = "boxes"\nclasses = ["cat", "dog"]\n'
        '[[member]]\npath = "two.py"\noutput = "found"\nclasses = ["dog", "cat"]\n'
    )
    return file


def test_an_ensemble_of_detectors_answers_what_the_package_says(tmp_path: Path) -> None:
    with Server([ensemble(tmp_path, "[boxes]\nmost = 4\niou = 0.5")], cores=2, tune="never") as server:
        outputs = {spec.name: spec.shape for spec in server.signature("both").outputs}
        assert outputs == {"detections": (4, 6), "found": (1,)}
        answer = server.predict("both", images())
    x = images()[0, :2].astype(np.float64)
    shifted = x.copy()
    shifted[:, [0, 2]] += 0.02
    boxes, scores, labels = weighted_boxes_fusion(
        [x[:, :4], shifted[:, :4]], [x[:, 4]] * 2, [x[:, 5]] * 2, weights=[2.0, 1.0], iou_thr=0.5
    )
    np.testing.assert_array_equal(answer["found"], [[2], [0]])
    wanted = np.column_stack([boxes, scores, labels])
    np.testing.assert_allclose(answer["detections"][0, :2], wanted, rtol=1e-5)
    assert answer["detections"][0, :2, 5].tolist() == [0, 1], "as the first member counts the classes"
    assert not answer["detections"][0, 2:].any()
    assert not answer["detections"][1].any()


def rule(**options: Any) -> Any:
    specs = tuple(TensorSpec(name, DataType.FP32, (-1, 6)) for name in ("a", "b"))
    return runtime_loader("boxes")(LoadRequest(path="boxes", inputs=specs, options=options))


def test_pixels_are_pixels_again_where_the_size_is_said() -> None:
    x = images(640)
    with pytest.raises(InferenceFailed, match=r"member a answered a box that ends at .* size = \[width"):
        rule().infer({"a": x, "b": x})
    answer = rule(width=640, height=640, most=2).infer({"a": x, "b": x})
    np.testing.assert_allclose(answer["detections"][0, :, :4], x[0, :2, :4], rtol=1e-6)


def test_corners_the_wrong_way_round_are_turned_and_boxes_without_area_left_out_silently() -> None:
    x = images()
    wanted = rule().infer({"a": x, "b": x})
    turned = x.copy()
    turned[..., [0, 1, 2, 3]] = x[..., [2, 3, 0, 1]]
    empty = np.concatenate([turned, np.full_like(x[:, :1], 0.5)], axis=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = rule().infer({"a": empty, "b": empty})
    for name in wanted:
        np.testing.assert_array_equal(answer[name], wanted[name])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x[..., :5], r"member b answered \[2, 3, 5\]"),
        (lambda x: np.where(x == np.float32(0.4), np.nan, x), "member b answered a box that is not finite"),
        (lambda x: np.where(x == 1, np.float32(7), x), "member b answered label 7, and has 2 classes"),
    ],
)
def test_what_holds_no_boxes_fails_by_the_members_name(change: Any, said: str) -> None:
    made = rule(labels="0,1;1,0")
    with pytest.raises(InferenceFailed, match=said):
        made.infer({"a": images(), "b": change(images())})
    assert made.infer({"a": images(), "b": images()})["found"].tolist() == [[4], [0]], "labels differ"


def test_members_that_answer_no_boxes_end_the_start(tmp_path: Path) -> None:
    file = ensemble(tmp_path)
    file.write_text(file.read_text().replace('output = "found"', 'output = "rest"'))
    with pytest.raises(ModelUnavailable, match=r"member two answers .*needs \[-1, boxes, 6\]"):
        Server([file], cores=2, tune="never").start()


def test_mistakes_in_the_file(tmp_path: Path) -> None:
    file = ensemble(tmp_path, "[boxes]\niou = 2")
    with pytest.raises(InvalidInput, match="iou"):
        read_ensemble(file)
    file.write_text(file.read_text().replace('"boxes"\n', '"vote"\n', 1).replace("iou = 2", "iou = 0.5"))
    with pytest.raises(InvalidInput, match=r"\[boxes\] is about rule = .boxes., and the rule is 'vote'"):
        read_ensemble(file)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._OWN, "boxes", "no_such_package")
    with pytest.raises(MissingExtra, match=r"pip install 'partita\[detection\]'"):
        rule()
