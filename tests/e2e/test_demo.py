"""The whole demo, short: every image answered as the model alone would, nothing failed, a picture drawn."""

import os
from pathlib import Path

import pytest

from partita.demo.run import PICTURE, SEARCH_PICTURE, run_demo

ACCURACY = {"digits_cnn": 0.9933, "digits_mlp": 0.98, "digits_wide": 0.9778}


@pytest.mark.e2e
@pytest.mark.alone
def test_the_demo(tmp_path: Path) -> None:
    lines: list[str] = []
    result = run_demo(seconds=3.0, output=tmp_path / "output", report=lines.append)
    assert {m["name"]: m["accuracy"] for m in result.as_json()["models"]} == ACCURACY
    for model in result.models:
        assert model.load.failed == 0
        assert model.load.answered > 100
        assert all(one.measured_ms > 0 for one in model.contenders)
        assert [one.title for one in model.contenders] == [
            "chosen plan",
            "fat instance",
            "one thread per core",
        ]
    together = result.ensemble
    if len(os.sched_getaffinity(0)) > 1:
        assert together is not None
        assert together.accuracy == pytest.approx(1 - 18 / 1348)
        assert together.accuracy > max(together.members.values())
        assert len(together.allocated.allocation.devices) == 2
        assert (tmp_path / "output" / SEARCH_PICTURE).stat().st_size > 10_000
        assert any("together" in line for line in lines)
    assert result.picture == tmp_path / "output" / PICTURE
    assert (tmp_path / "output" / PICTURE).stat().st_size > 10_000
    assert any("99.33% of 450 images right" in line for line in lines)
