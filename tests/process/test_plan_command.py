"""`partita plan PATH`: measured, planned, and verified by running."""

import json
import re
from pathlib import Path

import pytest

import partita
from partita.cli.app import run
from partita.core.errors import InvalidInput, NoFeasiblePlan
from partita.core.plan import InstanceSpec, Plan
from partita.sources import find_models
from partita.system.cpus import read_topology, select_cores
from partita.verified import verified
from tests import models

pytestmark = [pytest.mark.process, pytest.mark.alone]
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


def test_without_a_number_the_plan_is_for_all_cores_that_may_be_used(mlp: Path, capsys: Capture) -> None:
    assert run(["plan", str(mlp), "--batch", "8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["cores"] == len(select_cores(TOPOLOGY, None))


def test_the_function_verifies_as_the_command_does(mlp: Path) -> None:
    expected = partita.plan(mlp, cores=CORES, batch=8, budget_s=3.0)
    assert expected.measured_ms is None
    ran = partita.plan(mlp, cores=CORES, batch=8, budget_s=3.0, verify=2)
    assert ran.measured_ms is not None
    assert sum(instance.batch for instance in ran.instances) == 8
    with pytest.raises(InvalidInput, match="latencies"):
        partita.plan(mlp, batch=8, verify=2, objective="throughput")


def test_a_verified_plan_keeps_the_limit(mlp: Path) -> None:
    free = partita.plan(mlp, cores=CORES, batch=8, budget_s=3.0)
    assert free.expected_ms is not None
    kept = partita.plan(mlp, cores=CORES, batch=8, budget_s=3.0, verify=2, limit_ms=free.expected_ms)
    assert kept.expected_ms is not None
    assert kept.expected_ms <= free.expected_ms
    with pytest.raises(NoFeasiblePlan):
        partita.plan(mlp, cores=CORES, batch=8, budget_s=3.0, verify=2, limit_ms=free.expected_ms / 1e6)


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
