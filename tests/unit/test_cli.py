"""The command line: help, exit codes, documents, and what failures look like."""

import json
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

from partita.cli import app, console
from partita.cli.app import COMMANDS, run
from partita.cli.documents import plan_document, read_plan
from partita.cli.profiling import progress_text
from partita.core.errors import InvalidInput, LoadFailed
from partita.core.plan import InstanceSpec, Plan
from partita.profiling.runner import Progress
from partita.settings import InstanceSettings
from tests.echo_server import echo_server

Capture = pytest.CaptureFixture[str]

PROFILE = """mode,threads,batch,latency_min_ms,latency_mean_ms,latency_max_ms
script,1,1,9,10,11
script,1,2,19,20,21
script,2,1,7,8,9
script,2,2,11,12,13
script,2,4,22,24,26
eager,1,1,99,100,101
"""


@pytest.fixture
def profile(tmp_path: Path) -> str:
    file = tmp_path / "profile.csv"
    file.write_text(PROFILE)
    return str(file)


# --- help and usage -------------------------------------------------------------------------------


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; from partita.cli.app import run; code = run(['--help']); "
        "heavy = {'numpy', 'rich', 'uvloop', 'msgspec', 'asyncio', 'starlette'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else code)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert all(f"  {name} " in result.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_command_has_help_with_an_example(name: str, capsys: Capture) -> None:
    assert run([name, "--help"]) == 0
    shown = capsys.readouterr().out
    assert "Example: partita" in shown
    assert "--json" in shown


def test_version(capsys: Capture) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("partita 0.")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["pla"], "No such command 'pla'. Did you mean 'plan'?"),
        (["zzz"], "No such command 'zzz'."),
        (["plan"], "Missing option '--batch'"),
        (["plan", "--profile", "x", "--batch", "1"], "give --cores"),
        (["plan", "--cores", "1", "--batch", "1"], "give either PATH or --profile"),
        (["plan", "--profile", "x", "--cores", "0", "--batch", "1"], "--cores"),
        (["plan", "--profile", "x", "--cores", "1", "--batch", "1", "--verify", "3"], "--verify"),
        (["plan", "--profile", "x", "--cores", "1", "--batch", "1", "--objective", "joy"], "joy"),
        (["simulate", "--profile", "x", "--cores", "1"], "give either --rate SPEC or --trace"),
        (["simulate", "--profile", "x", "--cores", "1", "--rate", "1", "--trace", "y"], "give either"),
        (["serve"], "at least one PATH"),
        (["bench", "127.0.0.1:1"], "needs --model"),
        (["bench", "http://127.0.0.1:1", "--model", "m", "--cores", "1"], "--cores is for a PATH"),
    ],
)
def test_wrong_usage_is_2_and_says_why(argv: list[str], message: str, capsys: Capture) -> None:
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert out == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["serve", "nowhere.onnx"], "nowhere.onnx does not exist"),
        (["serve", "nowhere.onnx", "--http", "x"], "not HOST:PORT"),
        (["serve", "x", "--grpc", "127.0.0.1"], "not HOST:PORT"),
        (["serve", "--config", "nowhere.toml"], "cannot read nowhere.toml"),
        (["bench", "nowhere.onnx"], "nowhere.onnx does not exist"),
        (["bench", "http://example.org", "--model", "m"], "--allow-remote"),
        (["bench", "127.0.0.1:1", "--model", "m", "--rate", "-1"], "rate"),
        (["bench", "127.0.0.1:1", "--model", "m", "--rate", "1", "--concurrency", "1"], "either"),
        (["bench", "127.0.0.1:1", "--model", "m", "--shape", "x"], "NAME:4,5"),
        (["plan", "--profile", "nowhere.csv", "--cores", "1", "--batch", "1"], "nowhere.csv"),
        (["simulate", "--profile", "nowhere.csv", "--cores", "1", "--rate", "1"], "nowhere.csv"),
    ],
)
def test_wrong_input_is_2_and_one_line(
    argv: list[str], message: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(argv) == 2
    out, err = capsys.readouterr()
    assert err.startswith("partita: error: ")
    assert err.count("\n") == 1
    assert message in err
    assert out == ""


def test_failure_while_running_is_1(capsys: Capture) -> None:
    assert run(["bench", "127.0.0.1:1", "--model", "m"]) == 1
    assert "no answer from http://127.0.0.1:1" in capsys.readouterr().err


def _failing(error: BaseException) -> click.Command:
    def fail() -> None:
        raise error

    return click.Command("plan", callback=fail)


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (LoadFailed("a\nb"), 1, "partita: error: a b\n"),
        (InvalidInput("a"), 2, "partita: error: a\n"),
        (KeyboardInterrupt(), 130, "partita: interrupted\n"),
    ],
)
def test_ends(
    error: BaseException, code: int, said: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app.LazyGroup, "get_command", lambda *_: _failing(error))
    assert run(["plan"]) == code
    assert capsys.readouterr().err.strip("\n") == said.strip("\n")


# --- simulate -------------------------------------------------------------------------------------


def simulate(profile: str, *more: str) -> list[str]:
    return ["simulate", "--profile", profile, "--mode", "script", "--cores", "2", *more]


def test_simulate_prints_a_document(profile: str, capsys: Capture) -> None:
    argv = simulate(
        profile, "--rate", "constant:10@20,100@20", "--batch", "1", "--load-time", "0.5", "--json"
    )
    assert run(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    document = json.loads(out)
    assert document["requests"] == document["answered"] == 2200
    assert document["windows"][0]["mean_ms"] == 8.0
    assert {"decisions", "plans", "switches", "overloads", "capacity_items_per_s"} <= document.keys()
    assert run(argv) == 0
    assert json.loads(capsys.readouterr().out) == document, "the same seed, the same run"


def test_simulate_prints_tables_and_says_what_is_too_much(profile: str, capsys: Capture) -> None:
    assert run(simulate(profile, "--rate", "constant:1000", "--duration", "5", "--no-adapt")) == 0
    out = capsys.readouterr().out
    assert "5000 of 5000 requests answered" in out
    assert "overloaded from 0 s to 5 s: up to 1000 items/s came" in out


def test_simulate_draws(profile: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    picture, trace = tmp_path / "run.png", tmp_path / "trace.csv"
    trace.write_text("seconds,items\n0,1\n0.5,2\n30,4\n")
    argv = simulate(profile, "--trace", str(trace), "--policy", "aggregate", "-o", str(picture))
    assert run(argv) == 0
    out, err = capsys.readouterr()
    assert "3 of 3 requests answered" in out
    assert f"drawn: {picture}" in err
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_simulate_makes_the_pictures_folder_and_says_where_none_can_be_written(
    profile: str, tmp_path: Path, capsys: Capture
) -> None:
    pytest.importorskip("matplotlib")
    asked = simulate(profile, "--rate", "1", "--duration", "1", "-o")
    assert run([*asked, str(tmp_path / "new" / "run.png")]) == 0
    assert (tmp_path / "new" / "run.png").is_file()
    (tmp_path / "file").touch()
    for wrong in ("file/run.png", "run.nothing"):
        assert run([*asked, str(tmp_path / wrong)]) == 2
        assert f"cannot write {tmp_path / wrong}: " in capsys.readouterr().err


def two(profile: str, *more: str) -> list[str]:
    """Two models of one profile on two cores, the second of which counts twice."""
    files = ["--profile", f"slow={profile}", "--profile", f"fast={profile}", "--mode", "script"]
    rates = ["--rate", "constant:10@20", "--weight", "fast=2", "--load-time", "fast=0.5"]
    return ["simulate", *files, *rates, "--cores", "2", *more]


def test_simulate_serves_several_models(profile: str, capsys: Capture, tmp_path: Path) -> None:
    assert run(two(profile, "--json", "--items", "slow=2")) == 0
    document = json.loads(capsys.readouterr().out)
    assert {name: one["items"] for name, one in document["models"].items()} == {"slow": 400, "fast": 200}
    assert all(one["answered"] == 200 for one in document["models"].values())
    assert [share["weight"] for share in document["divisions"][0]["shares"]] == [1.0, 2.0]
    trace = tmp_path / "trace.csv"
    trace.write_text("0.5,1\n1.0,2\n")
    assert run(two(profile, "--json", "--trace", f"fast={trace}")) == 0, "its own goes before that for all"
    traced = json.loads(capsys.readouterr().out)["models"]
    assert {name: one["items"] for name, one in traced.items()} == {"slow": 200, "fast": 3}
    assert run(two(profile, "--json", "--items", "slow=2")) == 0
    document = json.loads(capsys.readouterr().out)
    assert run(two(profile, "--json", "--items", "slow=2")) == 0
    assert json.loads(capsys.readouterr().out) == document, "the same seed, the same run"


def test_simulate_shows_and_draws_several_models(profile: str, tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "run.png"
    assert run(two(profile, "-o", str(picture), "--rate", "fast=constant:400@20", "--no-adapt")) == 0
    out = capsys.readouterr().out
    assert "slow: 200 of 200 requests answered" in out
    assert "fast: 8000 of 8000 requests answered" in out
    assert "overloaded from 0 s to 20 s: more came than can be carried" in out
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--rate", "quick=3"], "--rate quick=…: no --profile is called so; there are slow, fast"),
        (["--trace", "x.csv", "--rate", "20"], "--rate: given 2 times for all models"),
        (["--trace", "x.csv"], "give either --rate SPEC or --trace FILE for slow"),
        (["--weight", "fast=3"], "--weight: given 2 times for fast"),
        (["--weight", "slow=0"], "--weight"),
        (["--policy", "slow=lazy"], "'lazy' is not one of"),
        (["--profile", "slow=x.csv"], "two models called slow"),
    ],
)
def test_simulate_refuses_what_is_wrong_with_several(
    profile: str, more: list[str], message: str, capsys: Capture
) -> None:
    assert run(two(profile, *more)) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--rate", "fast"], "RATE@SECONDS"),
        (["--rate", "1", "--sockets", "x"], "--sockets"),
        (["--rate", "1", "--sockets", "1"], "sockets"),
        (["--rate", "1", "--seed", "-1"], "--seed"),
        (["--trace", "nowhere.csv"], "nowhere.csv"),
    ],
)
def test_simulate_refuses_what_is_wrong(
    profile: str,
    more: list[str],
    message: str,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(simulate(profile, *more)) == 2
    assert message in capsys.readouterr().err


# --- plan -----------------------------------------------------------------------------------------


def test_plan_prints_the_document(profile: str, capsys: Capture) -> None:
    argv = ["plan", "--profile", profile, "--mode", "script", "--cores", "2", "--batch", "2", "--json"]
    assert run(argv) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == {
        "cores": 2,
        "batch": 2,
        "objective": "latency",
        "instances": [{"count": 2, "threads": 1, "batch": 1, "micro_batch": 1}],
        "expected_ms": 10.0,
        "measured_ms": None,
        "fat_ms": 12.0,
        "speedup": 1.2,
    }


def test_plan_prints_a_table(profile: str, capsys: Capture) -> None:
    assert run(["plan", "--profile", profile, "--mode", "script", "--cores", "2", "--batch", "2"]) == 0
    shown = capsys.readouterr().out
    assert "instances" in shown
    assert "10 ms expected" in shown
    assert "1.20 times" in shown


def test_plan_without_a_fat_point_has_no_speedup(profile: str, capsys: Capture) -> None:
    argv = ["plan", "--profile", profile, "--mode", "script", "--cores", "3", "--batch", "3", "--json"]
    assert run(argv) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["fat_ms"] is None
    assert document["speedup"] is None


@pytest.mark.parametrize("sockets", ["", "a", "0", "4,-4"])
def test_plan_with_bad_sockets(profile: str, sockets: str, capsys: Capture) -> None:
    argv = [
        "plan",
        "--profile",
        profile,
        "--mode",
        "script",
        "--cores",
        "2",
        "--batch",
        "2",
        "--sockets",
        sockets,
    ]
    assert run(argv) == 2
    assert "--sockets" in capsys.readouterr().err


def test_a_plan_file_is_read_back(tmp_path: Path) -> None:
    plan = Plan(
        instances=(
            InstanceSpec(threads=1, batch=4, executions=(2, 2), cores=(3,)),
            InstanceSpec(threads=1, batch=4, executions=(2, 2), cores=(4,)),
            InstanceSpec(threads=2, batch=8),
        ),
        cores=4,
        batch=16,
    )
    document = plan_document(plan)
    assert document["instances"] == [
        {"count": 1, "threads": 2, "batch": 8, "micro_batch": 8},
        {"count": 2, "threads": 1, "batch": 4, "micro_batch": 2},
    ]
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(document))
    thin = InstanceSettings(threads=1, batch=4, micro_batch=2)
    assert read_plan(file) == (InstanceSettings(threads=2, batch=8, micro_batch=8), thin, thin)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"instances": []}', '{"instances": [{"threads": 0, "batch": 1}]}']
)
def test_a_file_that_is_no_plan(tmp_path: Path, text: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(InvalidInput, match=r"plan\.json is"):
        read_plan(file)
    with pytest.raises(InvalidInput, match="cannot read"):
        read_plan(tmp_path / "nowhere.json")


# --- profile --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--resume", "--again"], "give one of them"),
        (["--budget", "0"], "--budget"),
        (["--max-batch", "0"], "--max-batch"),
    ],
)
def test_profile_with_options_that_do_not_fit_together(
    argv: list[str], message: str, capsys: Capture
) -> None:
    assert run(["profile", "m.onnx", *argv]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("dimension", ["", "sequence", "=3", "sequence=0", "sequence=-1", "sequence=x"])
def test_profile_with_a_size_that_is_none(dimension: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "m.onnx").touch()
    assert run(["profile", str(tmp_path / "m.onnx"), "--dim", dimension]) == 2
    assert "NAME=SIZE" in capsys.readouterr().err


def test_how_far_profiling_has_come_in_words() -> None:
    now = Progress(visits=3, points=2, elapsed_s=1, left_s=8.6, threads=2, batch=1, mean_ms=1.234)
    assert progress_text(now) == "2 points, at most 9 s left; 2 threads, 1 item: 1.23 ms"


# --- bench ----------------------------------------------------------------------------------------


def test_bench_of_a_url(capsys: Capture) -> None:
    with echo_server() as server:
        url = f"http://127.0.0.1:{server.port}"
        argv = [
            "bench",
            url,
            "--model",
            "m",
            "--concurrency",
            "2",
            "--duration",
            "0.2",
            "--warmup",
            "0",
            "--batch",
            "3",
        ]
        assert run([*argv, "--json"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        document = json.loads(out)
        assert document["items"] == 3 * document["requests"] > 0
        assert document["errors"] == {}
        assert {"requests_per_s", "p50_ms", "p99_ms", "p999_ms", "max_ms", "histogram"} <= document.keys()
        assert run(argv) == 0
        assert "requests/s" in capsys.readouterr().out


def test_bench_says_how_requests_failed(capsys: Capture) -> None:
    with echo_server(lambda n: (429, 0.0) if n % 2 else (200, 0.0)) as server:
        argv = [
            "bench",
            f"127.0.0.1:{server.port}",
            "--model",
            "m",
            "--rate",
            "100",
            "--duration",
            "0.2",
            "--warmup",
            "0",
        ]
        assert run(argv) == 0
        assert "requests ended with 429" in capsys.readouterr().err


# --- the console ----------------------------------------------------------------------------------


def test_progress_without_a_terminal_is_a_line_now_and_then(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    with console.progress("profiling", 10) as advance:
        for step in range(11):
            now_s = float(step)
            advance(step, text=f"step {step}")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["profiling: 50% step 5", "profiling: 100% step 10"]


def test_progress_on_a_terminal_is_a_bar_on_stderr(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with console.progress("profiling", None) as advance:
        advance(1, total=2, text="half")
    assert capsys.readouterr().out == ""


def test_times_are_short() -> None:
    assert [console.milliseconds(v) for v in (None, 0.1234, 12.345, 1234.5)] == ["-", "0.123", "12.3", "1234"]
