"""Pid files: they name one process and no other, whoever has written them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from partita.core.errors import InvalidInput
from partita.system.pid_files import PidFile
from partita.system.process_times import started_ticks

SLEEP = [sys.executable, "-c", "import sys; print(1, flush=True); sys.stdin.read()"]


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that waits."""
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        process.kill()


def written(path: Path, text: str) -> PidFile:
    path.write_text(text)
    return PidFile(path)


def test_it_names_the_process_that_wrote_it_until_it_is_removed(tmp_path: Path) -> None:
    file = PidFile(tmp_path / "pid")
    assert file.running() is None
    file.write()
    assert file.running() == os.getpid()
    assert file.path.read_text().splitlines()[0] == str(os.getpid())
    assert [path.name for path in tmp_path.iterdir()] == ["pid"]
    file.remove()
    file.remove()
    assert list(tmp_path.iterdir()) == []


def test_what_has_ended_is_named_no_longer(tmp_path: Path) -> None:
    with subprocess.Popen(SLEEP, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        file = written(tmp_path / "pid", f"{process.pid}\n{started_ticks(process.pid)}\n")
        assert file.running() == process.pid
        with pytest.raises(InvalidInput, match="already running"):
            file.write()
        assert file.end(20.0) == (process.pid, True)
        assert file.running() is None, "though nobody has reaped it yet"
    assert process.returncode == -signal.SIGTERM
    file.write()
    assert file.running() == os.getpid()


def test_a_process_that_does_not_end_is_told_of(tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(15, signal.SIG_IGN); print(1, flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        file = written(tmp_path / "pid", f"{process.pid}\n{started_ticks(process.pid)}\n")
        assert file.end(0.05) == (process.pid, False)
        assert file.running() == process.pid
        process.kill()


@pytest.mark.parametrize(
    "content",
    ["{pid}", "{pid}\n{ticks}9\n", "{pid} {ticks} 1", "-{pid}\n{ticks}", "", "\xff\n", "{pid}\nx", "0\n0\n"],
    ids=["TorchServe's", "started later", "more", "a group", "empty", "no text", "no number", "nobody"],
)
def test_no_process_is_ended_that_is_not_the_very_one(
    content: str, other: "subprocess.Popen[bytes]", tmp_path: Path
) -> None:
    file = written(tmp_path / "pid", content.format(pid=other.pid, ticks=started_ticks(other.pid)))
    assert file.end(1.0) == (None, True)
    assert other.poll() is None
    file.remove()
    assert file.path.exists(), "what others wrote stays"


def test_a_link_and_another_users_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = PidFile(tmp_path / "real")
    real.write()
    (tmp_path / "link").symlink_to(real.path)
    with pytest.raises(InvalidInput, match="cannot be read"):
        PidFile(tmp_path / "link").end(1.0)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    for refused in (lambda: real.end(1.0), real.write, real.refuse_second):
        with pytest.raises(InvalidInput, match="another user's"):
            refused()


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot be written"):
        PidFile(tmp_path / "none" / "pid").write()
