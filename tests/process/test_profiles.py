"""Where profiles come from: measured once, kept, gone on with; at the terminal, too."""

import json
import re
import signal
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from partita import profiles
from partita.cli.app import run
from partita.core.errors import InvalidInput
from partita.core.profile import Profile
from partita.profiles import Measuring, cached, measured, saved_or_measured
from partita.profiling.runner import Listener, Progress
from partita.profiling.store import load, save
from partita.settings import ServerSettings
from partita.sources import ModelSource, find_models
from partita.system.cpus import read_topology
from tests import models

pytestmark = [pytest.mark.process, pytest.mark.alone]
Capture = pytest.CaptureFixture[str]

TOPOLOGY = read_topology()
ONE = tuple(cpu.cpu for cpu in TOPOLOGY.core_order())[:1]
KEYS = {(1, 1), (1, 2), (1, 4)}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def source(folder: Path) -> ModelSource:
    (found,) = find_models(models.linear(folder / "linear.onnx"))
    return replace(found, settings=msgspec.structs.replace(found.settings, max_batch=4))


class Heard:
    """A listener that remembers; interrupts after `stop` points."""

    def __init__(self, stop: int | None = None) -> None:
        self.visits = 0
        self.notes: list[str] = []
        self._stop = stop

    @property
    def listener(self) -> Listener:
        return Listener(progress=self._progress, note=self.notes.append)

    def _progress(self, now: Progress) -> None:
        self.visits += 1
        if now.points == self._stop:
            raise KeyboardInterrupt


def measure(source: ModelSource, heard: Heard | None = None, **how: Any) -> Profile:
    listener = (heard or Heard()).listener
    return measured(source, ONE, TOPOLOGY, Measuring(budget_s=2.5, listener=listener, **how))


def no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "WORKER_ARGV", ("/nowhere/no-such-program",))


def test_a_model_is_measured_once(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    first = measure(source)
    assert (1, 1) in first.points
    assert first.finished == (1, 4)
    no_worker(monkeypatch)
    assert measure(source) == first
    assert saved_or_measured(ServerSettings(tune="before"))(source, ONE) == first
    assert saved_or_measured(ServerSettings(tune="never"))(source, ONE) == first


def test_never_measures_nothing(source: ModelSource, monkeypatch: pytest.MonkeyPatch) -> None:
    no_worker(monkeypatch)
    assert saved_or_measured(ServerSettings(tune="never"))(source, ONE) is None


def test_a_model_that_takes_all_of_the_time_to_load_is_served_without_a_profile(
    source: ModelSource, caplog: pytest.LogCaptureFixture
) -> None:
    assert saved_or_measured(ServerSettings(tune="before", tune_budget_s=0.001))(source, ONE) is None
    assert "without a profile" in caplog.text


@pytest.mark.parametrize("points", [1, 2])
def test_an_interrupted_profile_is_kept_and_gone_on_with(source: ModelSource, points: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(source, Heard(stop=points), full=True)
    kept = cached(source, TOPOLOGY)
    assert kept is not None
    assert len(kept.points) == points
    heard = Heard()
    whole = measure(source, heard, full=True)
    assert set(whole.points) == KEYS
    assert heard.visits == len(KEYS) - points
    assert all(whole.points[key].mean_ms == point.mean_ms for key, point in kept.points.items())


def test_one_point_of_one_core_is_not_taken_for_a_whole_profile(source: ModelSource) -> None:
    with pytest.raises(KeyboardInterrupt):
        measure(source, Heard(stop=1), full=True)
    assert measure(source).finished == (1, 4)


def test_a_larger_batch_is_measured_beside_what_is_known(source: ModelSource) -> None:
    small = measure(source, full=True)
    larger = replace(source, settings=msgspec.structs.replace(source.settings, max_batch=8))
    whole = measure(larger, full=True)
    assert set(whole.points) == {*KEYS, (1, 8)}
    assert all(whole.points[key].mean_ms == point.mean_ms for key, point in small.points.items())


def test_a_broken_file_is_measured_again(source: ModelSource, folder: Path) -> None:
    measure(source)
    (file,) = (folder / "cache" / "profiles").iterdir()
    file.write_bytes(file.read_bytes()[:40])
    assert cached(source, TOPOLOGY) is None
    again = measure(source)
    assert load(file) == again


def test_again_measures_from_the_beginning(source: ModelSource) -> None:
    measure(source, full=True)
    heard = Heard()
    measure(source, heard, full=True, again=True)
    assert heard.visits == len(KEYS)
    with pytest.raises(InvalidInput, match="not both"):
        Measuring(again=True, go_on=True)


def test_where_nothing_can_be_kept_it_is_measured_all_the_same(source: ModelSource, folder: Path) -> None:
    (folder / "cache").write_text("a file where the folder would be")
    heard = Heard()
    assert (1, 1) in measure(source, heard).points
    assert len([note for note in heard.notes if "cannot be written" in note]) == 1


def test_a_profile_of_other_items_is_not_mixed_with_this_one(source: ModelSource, folder: Path) -> None:
    np.save(folder / "samples.npy", np.ones((2, 4), np.float32))
    measure(source, full=True)
    heard = Heard()
    with_samples = measure(source, heard, full=True, samples=folder / "samples.npy")
    assert heard.visits == len(KEYS)
    assert any("other items" in note for note in heard.notes)
    assert cached(source, TOPOLOGY) == with_samples  # which is what the model is then served by
    heard = Heard()
    assert measure(source, heard, samples=folder / "samples.npy") == with_samples
    assert heard.visits == 0
    np.save(folder / "samples.npy", np.ones((2, 5), np.float32))
    with pytest.raises(InvalidInput, match="shape"):
        measure(source, samples=folder / "samples.npy")


def test_a_larger_batch_without_the_items_begins_anew(source: ModelSource, folder: Path) -> None:
    np.save(folder / "samples.npy", np.ones((2, 4), np.float32))
    measure(source, samples=folder / "samples.npy")
    larger = replace(source, settings=msgspec.structs.replace(source.settings, max_batch=8))
    heard = Heard()
    assert measure(larger, heard).finished == (1, 8)
    assert any("other items" in note for note in heard.notes)


# --- the command ----------------------------------------------------------------------------------


def command(source: ModelSource, *more: str) -> list[str]:
    return ["profile", str(source.path), "--cores", "1", "--max-batch", "4", *more]


def test_the_command_shows_keeps_and_writes_the_table(
    source: ModelSource, folder: Path, capsys: Capture
) -> None:
    assert run(command(source, "--full", "-o", str(folder / "p.json"))) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].split() == ["items", "\\", "threads,", "ms", "1"]
    assert "written to" in err
    written = load(folder / "p.json")
    assert set(written.points) == KEYS
    assert cached(source, TOPOLOGY) == written
    assert run(command(source, "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert [p["mean_ms"] for p in document["points"]] == [p.mean_ms for p in written.points.values()]


def test_the_command_goes_on_from_a_file(source: ModelSource, folder: Path, capsys: Capture) -> None:
    file = folder / "p.json"
    with pytest.raises(KeyboardInterrupt):
        measure(source, Heard(stop=2), full=True)
    kept = cached(source, TOPOLOGY)
    assert kept is not None
    save(file, kept)
    for cache in (folder / "cache" / "profiles").iterdir():
        cache.unlink()
    assert run(command(source, "--full", "--resume", "-o", str(file))) == 0
    whole = load(file)
    assert set(whole.points) == KEYS
    assert all(whole.points[key].mean_ms == point.mean_ms for key, point in kept.points.items())
    capsys.readouterr()


def test_the_command_does_not_mix_models(source: ModelSource, folder: Path, capsys: Capture) -> None:
    file = folder / "p.json"
    (other,) = find_models(models.linear(folder / "other.onnx", outputs=2))
    save(file, measure(other))
    before = file.read_bytes()
    assert run(command(source, "--resume", "-o", str(file))) == 2
    assert "measured on something else: model hash" in capsys.readouterr().err
    assert file.read_bytes() == before


def test_the_command_takes_sizes_of_axes(folder: Path, capsys: Capture) -> None:
    path = models.sequence_sum(folder / "sequence.onnx")
    argv = ["profile", str(path), "--cores", "1", "--max-batch", "1", "--budget", "3", "--json"]
    assert run([*argv, "--dim", "sequence=5"]) == 2
    known = capsys.readouterr().err
    assert "no axis is named sequence" in known
    axis = known.rsplit(": ", 1)[1].strip()
    assert run([*argv, "--dim", f"{axis}=5"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["provenance"]["dimensions"] == {axis: 5}


def test_ctrl_c_loses_nothing(folder: Path) -> None:
    path = models.slow(folder / "slow.onnx")
    argv = ["profile", str(path), "--cores", "1", "--budget", "120", "-o", str(folder / "p.json")]
    process = subprocess.Popen(
        [sys.executable, "-m", "partita.cli", *argv],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Whoever runs the tests in the background of a shell has it ignored, and so would the command.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        (source,) = find_models(path)
        while cached(source, TOPOLOGY) is None:
            assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    assert re.search(r"[1-9]\d* points? (is|are) kept, in .*p\.json, too; .* goes on from there", err)
    assert err.splitlines()[-1] == "partita: interrupted"
    kept = load(folder / "p.json")
    assert kept.points
    assert cached(source, TOPOLOGY) == kept
