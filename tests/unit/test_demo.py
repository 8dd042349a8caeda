"""The demo's models, data, words and picture; the whole demo runs in tests/e2e."""

import struct
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from partita.core.errors import MissingExtra
from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile, ProfilePoint
from partita.demo import digits, ensemble, picture, run
from partita.demo.report import (
    Contender,
    DemoResult,
    Load,
    ModelReport,
    instances_text,
    load_line,
    plan_lines,
)

ACCURACY = {"digits_cnn": 447 / 450, "digits_mlp": 441 / 450, "digits_wide": 440 / 450}


def plan(*instances: InstanceSpec) -> Plan:
    return Plan(
        instances=instances,
        cores=sum(one.threads for one in instances),
        batch=sum(one.batch for one in instances),
    )


def report(name: str = "digits_cnn", *, cores: int = 2, failed: int = 0) -> ModelReport:
    batch = 16 * cores
    points = [
        ProfilePoint(threads=t, batch=b, mean_ms=(4 + b) / t)
        for t in range(1, cores + 1)
        for b in (1, 2, 8, 16, batch)
        if (t, b) != (1, 2)  # lazily profiled: not every cell is there
    ]
    thin = (InstanceSpec(threads=1, batch=16, executions=(8, 8)),) * cores
    return ModelReport(
        name=name,
        profile=Profile(points),
        contenders=(
            Contender(title="chosen plan", plan=plan(*thin), measured_ms=0.4),
            Contender(
                title="fat instance", plan=plan(InstanceSpec(threads=cores, batch=batch)), measured_ms=1.0
            ),
        ),
        images=450,
        accuracy=0.98,
        load=Load(clients=8, answered=3000, failed=failed, items_per_s=2000.0, p50_ms=0.5, p99_ms=12.345),
    )


def test_the_models_are_as_good_as_their_readme_says() -> None:
    data = digits.load_digits()
    assert len(data) == 450
    for name, path in digits.model_files().items():
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        (answer,) = session.run([digits.OUTPUT], {digits.INPUT: data.images})
        assert data.accuracy(answer.argmax(axis=1)) == pytest.approx(ACCURACY[name]), name
        np.testing.assert_allclose(answer.sum(axis=1), 1, rtol=1e-5)


def test_the_test_images_are_of_all_digits_and_in_the_range_of_the_data_set() -> None:
    data = digits.load_digits()
    assert np.bincount(data.labels).min() >= 40
    assert (data.images.min(), data.images.max()) == (0, 16)


def test_the_ensemble_is_better_than_each_of_its_members() -> None:
    data = ensemble.load_test_images()
    answers = []
    for path in sorted(ensemble.FILE.parent.glob("*.onnx")):
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        answers += session.run([digits.OUTPUT], {digits.INPUT: data.images})
    assert (len(answers), len(data)) == (4, 1348)
    wrong = [int((answer.argmax(axis=1) != data.labels).sum()) for answer in answers]
    together = int((np.mean(answers, axis=0).argmax(axis=1) != data.labels).sum())
    assert sorted(wrong) == [34, 39, 53, 56]
    assert together == 18
    assert sum(path.stat().st_size for path in ensemble.FILE.parent.iterdir()) < 500_000


def test_the_committed_models_stay_small() -> None:
    assert set(digits.model_files()) == set(ACCURACY)
    assert sum(path.stat().st_size for path in digits.FOLDER.iterdir()) < 1_000_000


def test_a_plan_in_words() -> None:
    mixed = plan(
        InstanceSpec(threads=4, batch=1),
        InstanceSpec(threads=1, batch=10, executions=(8, 2)),
        InstanceSpec(threads=1, batch=10, executions=(8, 2)),
    )
    assert instances_text(mixed) == "1 × (4 cores, 1 image), 2 × (1 core, 10 images as 8 + 2)"


def test_the_lines_compare_with_the_chosen_plan() -> None:
    first, chosen, fat = plan_lines("digits_cnn", 9, report().contenders)
    assert "32 images" in first
    assert "2 × (1 core, 16 images as 2 × 8)" in chosen
    assert "400 µs" in chosen
    assert "2.50 ×" in fat


def test_failures_are_said_aloud() -> None:
    assert "FAILED" not in load_line(report())
    assert "7 FAILED" in load_line(report(failed=7))


def test_the_result_as_json_holds_the_figures() -> None:
    result = DemoResult(machine="1 socket, 2 cores", models=(report(),), picture=None, seconds=1.26)
    (model,) = result.as_json()["models"]
    assert model["items_per_s"] == 2000.0
    assert [one["measured_ms"] for one in model["plans"]] == [0.4, 1.0]
    assert result.as_json()["picture"] is None


@pytest.mark.parametrize("cores", [1, 2, 16])
def test_the_picture_is_a_png_with_a_row_per_model(tmp_path: Path, cores: int) -> None:
    sizes = []
    for rows in (1, 2):
        path = tmp_path / f"{rows}.png"
        picture.draw(path, [report(cores=cores)] * rows, machine="1 socket, 2 cores")
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n")
        sizes.append(struct.unpack(">II", content[16:24]))
    assert sizes[1][1] > sizes[0][1] > 300


def test_no_matplotlib_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtra, match=r"partita\[plot\]"):
        picture.draw(tmp_path / "picture.png", [report()], machine="")


def test_without_matplotlib_the_demo_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    lines: list[str] = []
    assert run.draw_picture(tmp_path / "picture.png", [report()], "", lines.append) is None
    assert any("partita[plot]" in line for line in lines)
