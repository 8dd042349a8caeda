"""The benchmarks for machines that are not here run from beginning to end on this one, in a reduced form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks import gpu_ensemble, sixteen_cores
from benchmarks.__main__ import ENTRIES, Entry, run

from partita.system.gpus import gpu_memory

pytestmark = pytest.mark.process

CPUS = len(os.sched_getaffinity(0))
needs_two = pytest.mark.skipif(CPUS < 2, reason="needs two CPUs")


@pytest.mark.alone
@needs_two
def test_sixteen_cores_on_two(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document, drawn = tmp_path / "figures.json", tmp_path / "figures.png"
    assert (
        sixteen_cores.main(["--cores", "2", "--quick", "--json", str(document), "--picture", str(drawn)]) == 0
    )
    figures = json.loads(document.read_text())["figures"]
    batches = [figure["details"]["batch"] for figure in figures]
    assert batches, "on a busy machine the time may not suffice for all"
    assert batches == list(sixteen_cores.QUICK.batches)[: len(batches)]
    assert all(figure["details"]["speedup"] > 0.0 for figure in figures)
    assert all(figure["details"]["points"] for figure in figures)
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert "times as fast" in capsys.readouterr().out


def test_what_takes_too_long_is_ended_with_what_there_is(tmp_path: Path) -> None:
    document, code = tmp_path / "figures.json", "import sys; from benchmarks import sixteen_cores as s; "
    hang = "s.examine = lambda *_: __import__('time').sleep(3600); "
    arguments = [
        "--cores",
        "1",
        "--quick",
        "--limit",
        f"{sixteen_cores.REPORT_S + 0.2}",
        "--json",
        str(document),
    ]
    done = subprocess.run(
        [sys.executable, "-c", f"{code}{hang}sys.exit(s.main({arguments}))"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=Path(gpu_ensemble.__file__).parents[1],
    )
    assert done.returncode == 0, done.stderr
    assert "ended after 0 s, with what there is" in done.stdout
    assert json.loads(document.read_text())["figures"] == []


def test_too_few_cores_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert sixteen_cores.main(["--cores", "4096"]) == 2
    assert "--cores says how many" in capsys.readouterr().out


def test_all_benchmarks_together_pass_over_what_needs_another_machine(tmp_path: Path) -> None:
    entry = Entry(name="sixteen_cores", quick=("--cores", "4096"), may_lack=True)
    (figure,) = run(entry, quick=True, folder=tmp_path)
    assert (figure.passed, figure.figure) == (None, "not on this machine: see above")


def test_every_benchmark_is_among_all_of_them() -> None:
    folder = Path(gpu_ensemble.__file__).parent
    found = {file.stem for file in folder.glob("*.py") if "options(__doc__" in file.read_text("utf-8")}
    assert found
    assert found <= {entry.name for entry in ENTRIES}


@needs_two
def test_gpus_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    document, drawn = tmp_path / "figures.json", tmp_path / "figures.png"
    arguments = ["--cores", "2", "--quick", "--fake", "--json", str(document), "--picture", str(drawn)]
    assert gpu_ensemble.main(arguments) == 0
    figures = {figure["name"]: figure for figure in json.loads(document.read_text())["figures"]}
    assert {name for name in figures if name.startswith("cuda:1")} == {
        "cuda:1: copies from page-locked memory ÷ from any"
    }
    held = [figure for name, figure in figures.items() if "on cuda:0 holds" in name]
    assert len(held) == 2
    assert all(figure["details"]["measured"] for figure in held)
    assert sum(name.startswith("result") for name in figures) == 2
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert "2 networks to cuda:0, cuda:1, cpu:" in capsys.readouterr().out


@pytest.mark.skipif(bool(gpu_memory()), reason="there is a GPU here")
def test_without_a_gpu_it_says_how_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_ensemble.main([]) == 2
    assert "--fake" in capsys.readouterr().out
