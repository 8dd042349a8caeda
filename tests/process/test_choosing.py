"""Choosing what executes a model: candidates compared with the reference, timed, refused with a reason."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

import partita
from partita import choosing
from partita.allocation_file import kept_path
from partita.choosing import Choosing, adopted, candidates_of, chosen, is_open, stored
from partita.cli.app import run
from partita.core.choice import Assessment, Candidate, Choice, Verdict
from partita.core.profile import Profile
from partita.deploy import deployments
from partita.engine.deployment import EnsembleDeployment
from partita.profiles import Measuring, cached, measured
from partita.profiling.choice_store import save_choice
from partita.profiling.choice_terms import Audience, Step
from partita.settings import ServerSettings, load_settings
from partita.sources import ModelSource, find_models
from partita.system.cpus import read_topology
from partita.system.devices import core_groups
from tests import models

pytestmark = [pytest.mark.process, pytest.mark.alone]
Capture = pytest.CaptureFixture[str]

TOPOLOGY = read_topology()
ONE = tuple(cpu.cpu for cpu in TOPOLOGY.core_order())[:1]

RUNTIMES = '''
import os, time
import numpy as np
from partita.worker.runtimes import onnxruntime

class Changed:
    """ONNX Runtime, with its outputs changed, or slower."""
    def __init__(self, request, change):
        self.inner, self.change = onnxruntime.load(request), change
        self.signature, self.version, self.threads_seen = self.inner.signature, "1", self.inner.threads_seen
    def infer(self, batch):
        return self.change(self.inner.infer(batch))

def making(change):
    return lambda request: Changed(request, change)

def late(outputs):
    time.sleep(0.02)
    return outputs

def not_a_number(outputs):
    return {name: np.where(np.arange(array.size).reshape(array.shape) == 2, np.float32("nan"), array)
            for name, array in outputs.items()}

def load_hang(request):
    time.sleep(60)

same = making(lambda outputs: outputs)
slow = making(late)
wrong = making(lambda outputs: {name: array * 1.01 for name, array in outputs.items()})
nan = making(not_a_number)
crash = making(lambda outputs: os._exit(3) if len(next(iter(outputs.values()))) == 3 else outputs)
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def offered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Runtimes of an installed package of somebody else's."""
    place = folder / "packages"
    (place / "others-1.dist-info").mkdir(parents=True)
    (place / "others.py").write_text(RUNTIMES)
    (place / "others-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: others\nVersion: 1\n"
    )
    names = {
        "same": "same",
        "slow": "slow",
        "wrong": "wrong",
        "nan": "nan",
        "crash": "crash",
        "hang": "load_hang",
    }
    points = "\n".join(f"{name} = others:{function}" for name, function in names.items())
    (place / "others-1.dist-info" / "entry_points.txt").write_text(f"[partita.runtimes]\n{points}\n")
    monkeypatch.setenv("PYTHONPATH", str(place), prepend=":")
    monkeypatch.syspath_prepend(str(place))
    return place


@pytest.fixture
def source(folder: Path) -> ModelSource:
    (found,) = find_models(models.mlp(folder / "mlp.onnx"))
    return replace(found, settings=msgspec.structs.replace(found.settings, max_batch=4, load_limit_s=5.0))


class Heard:
    """An audience that remembers; interrupts at the first step whose words hold `stop`."""

    def __init__(self, stop: str | None = None) -> None:
        self.notes: list[str] = []
        self.choices: list[Choice] = []
        self.profiles: dict[str, Profile] = {}
        self._stop = stop

    @property
    def audience(self) -> Audience:
        return Audience(step=self._step, note=self.notes.append, save=self._save, decided=self.choices.append)

    def _step(self, step: Step) -> None:
        if self._stop is not None and self._stop in step.text:
            raise KeyboardInterrupt

    def _save(self, candidate: Candidate, profile: Profile) -> None:
        self.profiles[candidate.key] = profile


def choose(source: ModelSource, heard: Heard | None = None, *runtimes: str, **how: object) -> Choice:
    asked = Choosing(budget_s=40.0, runtimes=runtimes, audience=(heard or Heard()).audience)
    choice = chosen(source, ONE, TOPOLOGY, replace(asked, **how))  # type: ignore[arg-type]
    assert choice is not None
    return choice


def verdicts(choice: Choice) -> dict[str, Verdict]:
    return {assessment.candidate.key: assessment.verdict for assessment in choice.assessments}


def test_whoever_computes_something_else_or_fails_is_refused_and_the_others_go_on(
    source: ModelSource, offered: Path
) -> None:
    heard = Heard()
    choice = choose(source, heard, "wrong", "nan", "crash", "hang", "slow")
    assert verdicts(choice) == {
        "onnxruntime": Verdict.REFERENCE,
        "wrong": Verdict.REFUSED,
        "nan": Verdict.REFUSED,
        "crash": Verdict.REFUSED,
        "hang": Verdict.REFUSED,
        "slow": Verdict.ADMITTED,
    }
    why = {a.candidate.key: a.reason for a in choice.assessments}
    assert "is off by" in why["wrong"]
    assert "allowed is 0.001" in why["wrong"]
    assert "not a finite number" in why["nan"]
    assert "the worker process ended (status 3)" in why["crash"]
    assert "loading took longer than the limit" in why["hang"]
    assert "times the fastest's time" in why["slow"]
    assert choice.winner == "onnxruntime"
    assert choice.items == 64
    assert any(note.startswith("wrong is refused: ") for note in heard.notes)
    won = choice.won
    assert won.load_s is not None
    assert won.second_load_s is not None
    assert won.private_bytes is not None
    assert won.resident_bytes is not None
    assert won.private_bytes < won.resident_bytes
    assert won.second_private_bytes is not None


def test_a_short_budget_is_no_fault_of_a_candidate(source: ModelSource, offered: Path) -> None:
    patient = replace(source, settings=msgspec.structs.replace(source.settings, load_limit_s=120.0))
    choice = choose(patient, None, "hang", budget_s=8.0)
    assert verdicts(choice)["hang"] is Verdict.NOT_TRIED
    assert "--budget" in choice.assessments[1].reason
    assert choice.winner == "onnxruntime"


def test_a_choice_is_kept_and_put_to_use(
    source: ModelSource, offered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert adopted(source, TOPOLOGY) == source
    heard = Heard()
    choice = choose(source, heard, "same")
    again = replace(choice, winner="same")
    save_choice(choosing.choice_file(source, TOPOLOGY), again)
    monkeypatch.setattr(choosing, "WORKER_ARGV", ("/nowhere/no-such-program",))
    assert choose(source, None, "same") == again
    assert stored(source, TOPOLOGY) == again
    used = adopted(source, TOPOLOGY)
    assert (used.runtime, used.settings.runtime) == ("same", "same")
    assert not is_open(used)
    found = cached(used, TOPOLOGY)
    assert set(heard.profiles) == {"onnxruntime", "same"}
    assert found is None or found.provenance is not None


def test_members_of_an_ensemble_are_executed_by_what_was_chosen_for_them(
    source: ModelSource, offered: Path, folder: Path
) -> None:
    models.mlp(folder / "other.onnx", hidden=16)
    (folder / "pair.toml").write_text(
        '[[member]]\npath = "mlp.onnx"\n[[member]]\npath = "other.onnx"\nruntime = "auto"\n'
    )
    (pair,) = find_models(folder / "pair.toml")
    assert pair.ensemble is not None
    assert adopted(pair, TOPOLOGY) == pair
    devices = core_groups([ONE])
    before = kept_path(pair.ensemble, devices)
    choice = choose(source, None, "same")
    save_choice(choosing.choice_file(source, TOPOLOGY), replace(choice, winner="same"))
    used = adopted(pair, TOPOLOGY).ensemble
    assert used is not None
    assert [member.source.runtime for member in used.members] == ["same", "onnxruntime"]
    assert kept_path(used, devices) != before, "it was found with another runtime"
    server = ServerSettings(cores=str(ONE[0]) + ",", tune="never")
    (deployed,) = deployments([pair], server, TOPOLOGY, lambda *_: None)
    assert isinstance(deployed, EnsembleDeployment)
    assert [member.launch.runtime for member in deployed.members] == ["same", "onnxruntime"]


def test_the_winner_is_measured_on_from_what_choosing_measured(source: ModelSource, offered: Path) -> None:
    choice = choose(source, None, "slow")
    assert choice.winner == "onnxruntime"
    kept = cached(source, TOPOLOGY)
    assert kept is not None
    assert (1, 1) in kept.points
    profile = measured(source, ONE, TOPOLOGY, Measuring(budget_s=2.0))
    assert set(kept.points) <= set(profile.points)
    assert profile.finished == (1, 4)


def test_an_interrupted_choice_leaves_what_is_known(source: ModelSource, offered: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        choose(source, Heard(stop="loading slow"), "slow")
    assert stored(source, TOPOLOGY) is None
    assert adopted(source, TOPOLOGY) == source
    with pytest.raises(KeyboardInterrupt):
        choose(source, Heard(stop="slow: 1 thread, 2"), "slow")
    known = stored(source, TOPOLOGY)
    assert known is not None
    assert not known.is_finished
    assert known.winner == "onnxruntime"
    assert cached(source, TOPOLOGY) is not None


def test_what_is_answered_alike_for_all_items_cannot_be_verified(folder: Path, offered: Path) -> None:
    zeros = np.zeros((8, 64), np.float32)
    np.save(folder / "zeros.npy", zeros)
    (source,) = find_models(models.mlp(folder / "mlp.onnx"))
    choice = choose(source, None, "same", samples=folder / "zeros.npy")
    assert verdicts(choice)["same"] is Verdict.UNVERIFIED
    assert "cannot verify" in choice.assessments[1].reason
    assert choice.winner == "onnxruntime"


def test_a_named_runtime_leaves_nothing_to_choose(folder: Path) -> None:
    (folder / "partita.toml").write_text('[model.mlp]\nruntime = "onnxruntime"\n')
    path = models.mlp(folder / "mlp.onnx")
    (source,) = find_models(path, load_settings(folder / "partita.toml"))
    assert not is_open(source)
    assert chosen(source, ONE, TOPOLOGY, Choosing()) is None
    (folder / "partita.toml").write_text('[model.mlp]\noptions = { optimization = "basic" }\n')
    (source,) = find_models(path, load_settings(folder / "partita.toml"))
    assert not is_open(source)


def test_every_offered_runtime_is_a_candidate(source: ModelSource, offered: Path) -> None:
    keys = [candidate.key for candidate in candidates_of(source)]
    assert keys[0] == "onnxruntime"
    assert {"same", "slow", "wrong", "nan", "crash", "hang"} <= set(keys)


def test_the_command_shows_candidates_and_reasons(
    folder: Path, offered: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "runtimes_for", lambda *_, **__: ("onnxruntime", "wrong"))
    monkeypatch.setattr(choosing, "entry_points", lambda group: [])
    path = models.mlp(folder / "mlp.onnx")
    arguments = ["profile", str(path), "--cores", "1", "--max-batch", "2", "--budget", "10.5"]
    assert run(arguments) == 0
    shown = capsys.readouterr().out
    assert "* onnxruntime" in shown
    assert "refused" in shown
    assert "wrong: output y is off by" in shown
    monkeypatch.setattr(choosing, "WORKER_ARGV", ("/nowhere/no-such-program",))
    assert run([*arguments, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [a["verdict"] for a in document["choice"]["assessments"]] == ["reference", "refused"]
    assert document["choice"]["winner"] == "onnxruntime"


def test_a_server_uses_the_choice(source: ModelSource, offered: Path) -> None:
    choice = Choice(
        cores=1,
        max_batch=4,
        items=64,
        winner="same",
        assessments=(
            Assessment(candidate=Candidate(runtime="onnxruntime"), verdict=Verdict.REFERENCE),
            Assessment(candidate=Candidate(runtime="same"), verdict=Verdict.ADMITTED, version="1"),
        ),
    )
    save_choice(choosing.choice_file(source, TOPOLOGY), choice)
    with partita.Server([source], cores=1, tune="never") as server:
        assert server.head.engine.service("mlp").member.launch.runtime == "same"
        x = np.ones((3, 64), np.float32)
        assert server.predict("mlp", x)["y"].shape == (3, 10)
