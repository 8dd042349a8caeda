import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from partita.core.errors import ConnectionClosed, InvalidInput
from partita.core.process_settings import ProcessSettings
from partita.system.allocators import installed_allocators
from partita.system.channels import Channel, channel_pair
from partita.system.clock import SystemClock
from partita.system.processes import WorkerProcess, spawn_worker, worker_environment
from tests import models

LIMIT_S = 20.0
CHILD = """
import os, signal, socket, sys
end = socket.socket(fileno=int(sys.argv[sys.argv.index("--channel") + 1]))
{body}
"""


def child(body: str, env: dict[str, str] | None = None) -> tuple[WorkerProcess, Channel]:
    ours, theirs = channel_pair()
    process = spawn_worker(
        [sys.executable, "-c", CHILD.format(body=body)], theirs, env=env or {}, name="child"
    )
    assert theirs.fileno() == -1
    return process, ours


def test_the_exit_code_is_reaped_once_it_has_ended() -> None:
    process, channel = child("end.recv(9); sys.exit(7)")
    assert process.name == "child"
    assert process.reap() is None
    assert process.wait(0) is None
    channel.send(b"go")
    assert process.wait(LIMIT_S) == 7
    assert process.reap() == 7
    assert process.wait(0) == 7
    assert process.pidfd == -1
    channel.close()


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it_and_the_channel_says_so(end: signal.Signals) -> None:
    process, channel = child("end.send(b'up'); end.recv(9)")
    assert channel.receive()[0] == b"up"
    (process.kill if end == signal.SIGKILL else process.terminate)()
    assert process.wait(LIMIT_S) == -end
    process.kill()
    with pytest.raises(ConnectionClosed):
        channel.receive()
    channel.close()


def test_the_child_has_its_own_session_and_environment_and_only_its_descriptor() -> None:
    leaked = os.memfd_create("leak", 0)
    process, channel = child(
        "end.send(repr((os.getsid(0) == os.getpid(), os.environ['COLOUR'], 'PATH' in os.environ,"
        " sorted(os.listdir('/proc/self/fd')), end.fileno())).encode()); sys.exit()",
        {"COLOUR": "red"},
    )
    session, colour, inherits, fds, fd = eval(channel.receive()[0])
    assert (session, colour, inherits) == (True, "red", True)
    # Three standard streams, the channel, and the directory being listed.
    assert len(fds) == 5
    assert str(fd) in fds
    assert process.wait(LIMIT_S) == 0
    os.close(leaked)
    channel.close()


def test_the_child_prints_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    process, channel = child("print('a remark', flush=True)")
    assert process.wait(LIMIT_S) == 0
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "a remark\n")
    channel.close()


def test_a_command_that_does_not_exist_closes_the_socket() -> None:
    ours, theirs = channel_pair()
    with pytest.raises(FileNotFoundError):
        spawn_worker(["/no/such/program"], theirs, env={}, name="none")
    assert theirs.fileno() == -1
    ours.close()


def test_a_workers_environment_speaks_to_every_library_and_the_allocator() -> None:
    env = worker_environment(3, ProcessSettings())
    assert env["OMP_NUM_THREADS"] == env["OPENBLAS_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "3"
    assert env["MALLOC_MMAP_MAX_"] == "0"
    assert all(isinstance(value, str) for value in env.values())


def test_nobody_is_told_of_a_model_that_a_worker_loads(tmp_path: Path) -> None:
    path = models.linear(tmp_path / "model.onnx")
    load = f"import onnxruntime; onnxruntime.InferenceSession({str(path)!r})"
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    (tmp_path / "home").mkdir()
    env = {**os.environ, **home, **worker_environment(1, ProcessSettings())}
    assert subprocess.run([sys.executable, "-c", load], env=env, check=False).returncode == 0
    assert not [found for found in tmp_path.rglob("*") if "icrosoft" in found.name]
    told = worker_environment(1, ProcessSettings(environment={"ORT_DISABLE_TELEMETRY": "0"}))
    assert told["ORT_DISABLE_TELEMETRY"] == "0", "who wants that may have it"


def test_a_process_is_set_up_as_asked() -> None:
    plain = worker_environment(2, ProcessSettings(allocator="plain"))
    assert not [name for name in plain if name.startswith(("MALLOC_", "LD_PRELOAD", "OMP_WAIT", "OMP_PROC"))]
    asked = ProcessSettings(
        huge_pages=True,
        openmp_wait="passive",
        openmp_bind="close",
        environment={"ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "64"},
    )
    env = worker_environment(2, asked)
    assert env["OMP_WAIT_POLICY"] == "passive"
    assert (env["KMP_BLOCKTIME"], env["OMP_PROC_BIND"], env["ONEDNN_MAX_CPU_ISA"]) == ("0", "close", "AVX2")
    assert "hugetlb" in env["GLIBC_TUNABLES"]
    assert env["OMP_NUM_THREADS"] == "2", "the plan's threads are not the user's to change"


def test_another_allocator_is_found_or_refused(tmp_path: Path) -> None:
    library = tmp_path / "usr/lib/x86_64-linux-gnu/libjemalloc.so.2"
    library.parent.mkdir(parents=True)
    library.touch()
    assert installed_allocators(tmp_path) == {"jemalloc": library}
    env = worker_environment(1, ProcessSettings(allocator=str(library)))
    assert env["LD_PRELOAD"] == str(library)
    assert "MALLOC_MMAP_MAX_" not in env
    with pytest.raises(InvalidInput, match="there is no file /no/such"):
        worker_environment(1, ProcessSettings(allocator="/no/such.so"))
    with pytest.raises(InvalidInput, match="none of keep, plain, jemalloc, tcmalloc"):
        worker_environment(1, ProcessSettings(allocator="malloc"))


def test_the_clock_does_not_go_back() -> None:
    clock = SystemClock()
    readings = [clock.now_s() for _ in range(100)]
    assert readings == sorted(readings)


def test_the_entry_of_a_worker_brings_no_numeric_library_before_its_variables_are_set() -> None:
    found = "import sys, partita.worker.entry; sys.exit(int('numpy' in sys.modules))"
    process, channel = child(f"exec({found!r})")
    assert process.wait(LIMIT_S) == 0
    channel.close()
