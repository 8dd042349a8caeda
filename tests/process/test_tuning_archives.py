"""Archives that are tuned by what clients ask of them, or by bodies that the user gives."""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from partita.cli.app import run
from partita.core.errors import InvalidInput
from partita.embedded import Server
from partita.engine.tuning_report import TuningState
from partita.settings import ModelSettings, ServerSettings, Settings
from partita.system.addresses import Address
from tests.process.test_tuning import mark as mark  # noqa: PLC0414 the fixture
from tests.process.test_tuning import marked, wait_for

pytestmark = [pytest.mark.process, pytest.mark.alone]
CORES = sorted(os.sched_getaffinity(0))[:2]
HANDLER = """
import zlib

def handle(data, context):
    if data is None:
        return
    answers = []
    for row in data:
        body = bytes(row.get("body") or row.get("data"))
        if body.startswith(b"bad"):
            raise ValueError("bad")
        for _ in range(200):  # more than the head does for it: it is left no core
            answer = str(zlib.crc32(body * 200))
        answers.append(answer)
    return answers
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """A folder that is an archive; no torch in it, so that its workers start quickly."""
    folder = tmp_path / "sums"
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "sums.py").write_text(HANDLER)
    model = {"modelName": "sums", "handler": "sums.py", "modelVersion": "1.0"}
    manifest = {"createdOn": "01/01/2024", "runtime": "python", "model": model, "archiverVersion": "0.12.0"}
    (folder / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    return folder


def serving(archive: Path, model: ModelSettings | None = None, **server: object) -> Server:
    local = Address("127.0.0.1", 0)
    settings = ServerSettings(
        http=local,
        metrics=None,
        management=local,
        **{"tune_budget_s": 10.0, "tune_slowdown": 100.0, **server},  # type: ignore[arg-type]
    )
    return Server(
        [archive],
        cores=len(CORES),
        tune="background",
        settings=Settings(server=settings, model={} if model is None else {"sums": model}),
        ports=True,
    )


def ask(server: Server, body: bytes) -> bytes:
    request = urllib.request.Request(server.url() + "/predictions/sums", body)
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: bytes = answer.read()
        return found


def state(server: Server) -> str:
    shown = server.head.adaptation.tuning("sums")
    return "" if shown is None else str(shown["state"])


def tuned(server: Server) -> str:
    """Wait for the end of measuring, and return the plan."""
    wait_for(lambda: state(server) in (TuningState.FINISHED, TuningState.FAILED))
    assert state(server) == TuningState.FINISHED, server.head.adaptation.tuning("sums")
    return str(server.head.engine.service("sums").plan)


def bodies() -> Iterator[bytes]:
    return (b"a secret of client %04d" % number for number in range(40))


def test_an_archive_is_tuned_by_what_clients_ask_which_is_then_forgotten(
    archive: Path, tmp_path: Path, mark: str
) -> None:
    with serving(archive) as server:
        service = server.head.engine.service("sums")
        assert str(service.plan) == f"⟨1,{len(CORES)},32⟩", "the safe one"
        wait_for(lambda: state(server) == TuningState.COLLECTING)
        with pytest.raises(urllib.error.HTTPError):
            ask(server, b"bad one")
        answers = [ask(server, body) for body in bodies()]
        sample = service.sample
        plan = tuned(server)
        assert [ask(server, body) for body in bodies()] == answers
        assert service.sample is None
        assert sample is None or not sample.count
        assert service.plan is not None
        assert service.plan.expected_ms is not None, "it comes from the profile"
        assert len(service.plan.instances) == len(CORES), "threads are of no use to it, workers are"
        (switch,) = server.head.adaptation.switches("sums")
        assert switch["reason"] == "profiled beside its traffic"
        server.head.engine.check()
    assert marked(mark) == []
    written = [file for file in tmp_path.rglob("*") if file.is_file() and b"secret" in file.read_bytes()]
    assert written == [], "what clients said stays in memory"
    with serving(archive) as server:
        assert str(server.head.engine.service("sums").plan) == plan, "it is known now"
        assert server.head.adaptation.tuning("sums") is None


def test_nothing_is_kept_of_what_clients_ask_where_that_is_switched_off(archive: Path, mark: str) -> None:
    with serving(archive, tune_sample_bytes=0) as server:
        service = server.head.engine.service("sums")
        for body in bodies():
            ask(server, body)
            assert service.sample is None
        assert server.head.adaptation.tuning("sums") is None
    assert marked(mark) == []


def test_the_number_of_workers_and_the_batch_stay_within_limits(archive: Path, mark: str) -> None:
    limits = ModelSettings(max_workers=1, max_batch=4)
    with serving(archive, limits, tune_budget_s=8.0) as server:
        for body in bodies():
            ask(server, body)
        tuned(server)
        service = server.head.engine.service("sums")
        assert service.plan is not None
        assert service.plan.expected_ms is not None
        assert len(service.plan.instances) == 1
        assert service.plan.instances[0].batch <= 4
    assert marked(mark) == []


def test_an_archive_is_profiled_with_bodies_that_the_user_gives(
    archive: Path, tmp_path: Path, mark: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", str(archive), "--budget", "3"]) == 2
    assert "--samples" in capsys.readouterr().err
    samples = tmp_path / "sums.samples"
    (samples / "a form").mkdir(parents=True)
    (samples / "one.bin").write_bytes(b"one")
    (samples / "a form" / "data.bin").write_bytes(b"two")
    assert run(["profile", str(archive), "--budget", "8", "--max-batch", "2", "--json"]) == 0
    points = {(p["threads"], p["batch"]) for p in json.loads(capsys.readouterr().out)["points"]}
    assert (1, 1) in points
    limits = ModelSettings(max_batch=2)
    with serving(archive, limits, tune_budget_s=3.0) as server:
        plan = server.head.engine.service("sums").plan
        assert plan is not None
        assert plan.expected_ms is not None, "it was profiled before"
        assert ask(server, b"x")
    assert marked(mark) == []


def test_the_first_executions_of_a_worker_do_not_count(
    archive: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = "import time\nslow = [0.4] * 3\n"
    handler = HANDLER.replace(
        "    answers = []", "    time.sleep(slow.pop() if slow else 0.0)\n    answers = []"
    )
    (archive / "sums.py").write_text(first + handler)
    samples = archive.with_suffix(".samples")
    samples.mkdir()
    (samples / "one.bin").write_bytes(b"one")
    assert run(["profile", str(archive), "--budget", "6", "--max-batch", "1", "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert points
    assert max(point["mean_ms"] for point in points) < 200.0


def test_samples_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    from partita.profiling.calls import load_calls

    (tmp_path / "none").mkdir()
    (tmp_path / "empty" / "form").mkdir(parents=True)
    for place, said in (("none", "0 files"), ("empty", "holds no file"), ("nowhere", "No such file")):
        with pytest.raises(InvalidInput, match=said):
            load_calls(tmp_path / place)
