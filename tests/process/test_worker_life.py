"""How a worker fails to start, and how it ends."""

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from partita.core.errors import ConnectionClosed
from partita.wire.messages import BatchDone
from tests import models
from tests.worker_driver import EXIT_LIMIT_S, WorkerDriver, start_failure, worker

pytestmark = pytest.mark.process

BLOCKS = """
class Model:
    inputs = {"x": {"shape": [-1, 1], "datatype": "FP32"}}
    outputs = {"y": {"shape": [-1, 1], "datatype": "FP32"}}
    def infer(self, batch):
        if batch["x"][0, 0] > 1:
            import os
            open(os.environ["STARTED"], "w").close()
            open(os.environ["MAY_GO_ON"]).close()
        return {"y": batch["x"]}
"""


def failing(tmp_path: Path, source: str) -> str:
    (tmp_path / "user.py").write_text(dedent(source))
    return f"{tmp_path}/user.py"


@pytest.mark.parametrize(
    ("reference", "code", "reason"),
    [
        ("nowhere.py:M", "invalid_input", "there is no file"),
        ("user.py:Missing", "invalid_input", "has no class 'Missing'; it defines Bad, Empty, Silent"),
        (
            "user.py:Bad",
            "load_failed",
            "user.py:Bad cannot be loaded: user.py:4 in load: OSError: no weights",
        ),
        ("user.py:Empty", "invalid_input", "has none of the methods preprocess, infer, postprocess"),
        ("user.py:Silent", "invalid_input", "does not say its inputs"),
        ("user.py", "invalid_input", "is not FILE.py:Class"),
    ],
)
def test_user_code_that_cannot_be_loaded(tmp_path: Path, reference: str, code: str, reason: str) -> None:
    failing(
        tmp_path,
        """
        class Bad:
            def load(self, context):
                raise OSError("no weights")
            def infer(self, batch): ...
        class Empty: ...
        class Silent:
            def infer(self, batch): ...
        """,
    )
    with worker(tmp_path / reference, runtime="python") as driver:
        failed = start_failure(driver)
    assert failed.code == code
    assert reason in failed.reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = (\n", "user.py:1: SyntaxError"),
        ("import no_such_module\n", "user.py:1 in <module>: ModuleNotFoundError"),
        ("raise SystemExit(3)\n", "user.py:1 in <module>: SystemExit: 3"),
    ],
)
def test_a_file_that_raises_is_named_with_its_line(tmp_path: Path, source: str, reason: str) -> None:
    linear = models.linear(tmp_path / "m.onnx")
    with worker(linear, handler=failing(tmp_path, source) + ":H") as driver:
        failed = start_failure(driver)
    assert failed.code == "load_failed"
    assert reason in failed.reason


def test_memory_that_runs_out_at_load_has_its_own_code(tmp_path: Path) -> None:
    path = failing(
        tmp_path, "class M:\n    def load(self, c): bytearray(1 << 62)\n    def infer(self, b): ...\n"
    )
    with worker(path + ":M", runtime="python") as driver:
        assert start_failure(driver).code == "out_of_memory"


@pytest.mark.parametrize(
    ("content", "more", "code", "reason"),
    [
        (None, {}, "invalid_input", "there is no file"),
        (b"not a model at all", {}, "load_failed", "ONNX Runtime cannot load"),
        ("linear", {"options": {"spinning": True}}, "invalid_input", "unknown option 'spinning'"),
        ("linear", {"options": {"spin": "yes"}}, "invalid_input", "must be a bool"),
        ("linear", {"runtime": "onnx"}, "invalid_input", "unknown runtime 'onnx'; there are onnxruntime"),
    ],
)
def test_a_network_that_cannot_be_loaded(
    tmp_path: Path, content: bytes | str | None, more: dict[str, object], code: str, reason: str
) -> None:
    path = tmp_path / "m.onnx"
    if content == "linear":
        models.linear(path)
    elif isinstance(content, bytes):
        path.write_bytes(content)
    with worker(path, **more) as driver:  # type: ignore[arg-type]
        failed = start_failure(driver)
    assert failed.code == code
    assert reason in failed.reason
    assert "Traceback" not in failed.reason


def test_it_exits_when_the_channel_closes_idle_or_loading(tmp_path: Path) -> None:
    path = models.linear(tmp_path / "m.onnx")
    with worker(path) as idle, worker(path) as loading:
        idle.start()
        idle.channel.close()
        loading.channel.close()
        assert idle.process.wait(EXIT_LIMIT_S) == 0
        assert loading.process.wait(EXIT_LIMIT_S) == 0


def test_an_interrupt_is_ignored(tmp_path: Path) -> None:
    with worker(models.linear(tmp_path / "m.onnx")) as driver:
        driver.start()
        os.kill(driver.process.pid, signal.SIGINT)
        driver.run([np.zeros((1, 4), np.float32)])
        assert driver.process.reap() is None


def test_terminate_when_idle_ends_it(tmp_path: Path) -> None:
    with worker(models.linear(tmp_path / "m.onnx")) as driver:
        driver.start()
        driver.process.terminate()
        assert driver.process.wait(EXIT_LIMIT_S) == 0


def test_terminate_lets_the_batch_at_hand_finish_and_takes_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch waits in the model on a pipe of ours; SIGTERM arrives meanwhile."""
    gates = {name: tmp_path / name for name in ("STARTED", "MAY_GO_ON")}
    for name, path in gates.items():
        os.mkfifo(path)
        monkeypatch.setenv(name, str(path))
    (tmp_path / "m.py").write_text(BLOCKS)
    with worker(f"{tmp_path}/m.py:Model", runtime="python") as driver:
        driver.start()
        x = np.full((2, 1), 5, np.float32)
        driver.execute([x])
        driver.execute([x], slot=1)
        gates["STARTED"].open("rb").close()
        driver.process.terminate()
        gates["MAY_GO_ON"].open("wb").close()
        message = driver.receive()
        assert isinstance(message, BatchDone)
        np.testing.assert_array_equal(driver.read(message)[0], x)
        assert driver.process.wait(EXIT_LIMIT_S) == 0
        with pytest.raises(ConnectionClosed):
            driver.receive()


PARENT = """
import signal, sys
from pathlib import Path
from tests.worker_driver import worker
with worker({path!r}) as driver:
    driver.start()
    print(driver.process.pid, flush=True)
    signal.pause()
"""


def test_it_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    path = str(models.linear(tmp_path / "m.onnx"))
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", PARENT.format(path=path)], stdout=subprocess.PIPE, cwd=root
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        watched = os.pidfd_open(pid)
        os.kill(pid, signal.SIGSTOP)  # it cannot read that its channel is closed; only the kernel can end it
        parent.kill()
        assert ended(watched)
        os.close(watched)


def ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], EXIT_LIMIT_S)[0])


def test_a_worker_that_is_killed_is_an_event_on_both_descriptors(tmp_path: Path) -> None:
    with worker(models.linear(tmp_path / "m.onnx")) as driver:
        driver.start()
        killed(driver)


def killed(driver: WorkerDriver) -> None:
    driver.process.kill()
    with pytest.raises(ConnectionClosed):
        driver.receive()
    assert ended(driver.process.pidfd)
    assert driver.process.reap() == -signal.SIGKILL
