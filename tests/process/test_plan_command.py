"""`partita plan PATH`: measured, planned, and verified by running."""

import json
import re
from pathlib import Path

import pytest

from partita.cli.app import run
from partita.core.errors import NoFeasiblePlan
from partita.core.plan import InstanceSpec, Plan
from partita.sources import find_models
from partita.system.cpus import read_topology, select_cores
from partita.verified import verified
from tests import models

pytestmark = pytest.mark.process
Capture = pytest.CaptureFixture[str]

TOPOLOGY = read_topology()
CORES = min(2, TOPOLOGY.usable_cores)


@pytest.fixture
def mlp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PARTITA_TUNE_BUDGET_S", "2")
    monkeypatch.setattr("partita.verified.SECONDS", 0.2)
    return models.mlp(tmp_path / "mlp.onnx")


def argv(path: Path, *more: str) -> list[str]:
    return ["plan", str(path), "--cores", str(CORES), "--batch", "8", "--json", *more]


def test_a_model_without_a_profile_is_measured_once(mlp: Path, capsys: Capture) -> None:
    assert run(argv(mlp)) == 0
    first = json.loads(capsys.readouterr().out)
    assert sum(group["count"] * group["batch"] for group in first["instances"]) == 8
    assert first["expected_ms"] > 0
    assert first["measured_ms"] is None
    assert "verified" not in first
    kept = {file: file.read_bytes() for file in (mlp.parent / "cache" / "profiles").iterdir()}
    assert run(argv(mlp)) == 0
    assert json.loads(capsys.readouterr().out) == first
    assert {file: file.read_bytes() for file in (mlp.parent / "cache" / "profiles").iterdir()} == kept


def test_verified_plans_are_run_and_the_fastest_is_chosen(mlp: Path, capsys: Capture) -> None:
    assert run(argv(mlp, "--verify", "2")) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    ran = document.pop("verified")
    assert len(ran) == CORES
    assert ran[0] == document
    assert min(plan["measured_ms"] for plan in ran) > 0  # the best is measured anew: not always the least
    assert document["expected_ms"] > 0
    assert f"running {CORES} plan" in err
    shown = argv(mlp, "--verify", "2")
    shown.remove("--json")
    assert run(shown) == 0
    assert re.search(r"ms expected, .* ms measured", capsys.readouterr().out)


def test_tune_never_is_obeyed(mlp: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTITA_TUNE", "never")
    assert run(argv(mlp)) == 2
    assert "has no profile" in capsys.readouterr().err


def test_verifying_is_for_latency(mlp: Path, capsys: Capture) -> None:
    assert run(argv(mlp, "--verify", "2", "--objective", "throughput")) == 2
    assert "latencies" in capsys.readouterr().err


def test_a_plan_for_more_cores_than_given_is_refused(mlp: Path) -> None:
    (source,) = find_models(mlp)
    plan = Plan(instances=(InstanceSpec(threads=2, batch=8),), cores=2, batch=8)
    with pytest.raises(NoFeasiblePlan):
        verified(source, [plan], cores=select_cores(TOPOLOGY, "1"), topology=TOPOLOGY)
