"""Processes that are started out of spares: as those that are started as ever, and nothing is left."""

import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from partita.core.errors import ConnectionClosed
from partita.system import spares
from partita.system.channels import Channel, channel_pair
from partita.system.processes import WorkerProcess
from partita.system.spawner import SPARES, Spawner

LIMIT_S = 20.0
CHILD = """
import os, signal, socket, sys
end = socket.socket(fileno=int(sys.argv[sys.argv.index("--channel") + 1]))
{body}
"""

pytestmark = pytest.mark.skipif(os.uname().machine not in spares.CLONE, reason="no spares on this processor")


@pytest.fixture
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    made.start()
    until(lambda: made.waiting == SPARES)
    yield made
    made.close()


def until(holds: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.002)


def child(spawner: Spawner, body: str, **how: object) -> tuple[WorkerProcess, Channel]:
    ours, theirs = channel_pair()
    argv = [sys.executable, "-c", CHILD.format(body=body)]
    given: dict[str, object] = {"env": {}, "name": "child", **how}
    process = spawner.spawn(argv, theirs, **given)  # type: ignore[arg-type]
    assert theirs.fileno() == -1
    return process, ours


def children() -> set[int]:
    tasks = Path("/proc/self/task").iterdir()
    return {int(pid) for task in tasks for pid in (task / "children").read_text().split()}


def test_a_spare_becomes_a_child_of_ours_that_dies_with_us(spawner: Spawner) -> None:
    waiting = {spare.pid for spare in spawner._spares}
    process, channel = child(spawner, "end.send(str(os.getppid()).encode()); end.recv(9); sys.exit(7)")
    assert process.pid in waiting
    assert process.pid in children()
    assert process.dies_with_us
    assert int(channel.receive()[0]) == os.getpid()
    assert process.reap() is None
    assert process.wait(0) is None
    channel.send(b"go")
    assert process.wait(LIMIT_S) == 7
    assert process.reap() == 7
    process.kill()  # means nothing any more
    until(lambda: spawner.waiting == SPARES)  # another took its place
    channel.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it_and_the_channel_says_so(spawner: Spawner, number: signal.Signals) -> None:
    process, channel = child(spawner, "end.send(b'up'); end.recv(9)")
    assert channel.receive()[0] == b"up"
    (process.kill if number == signal.SIGKILL else process.terminate)()
    assert process.wait(LIMIT_S) == -number
    with pytest.raises(ConnectionClosed):
        channel.receive()
    channel.close()


def test_it_has_its_session_environment_folder_cores_and_only_its_descriptor(
    spawner: Spawner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaked = os.memfd_create("leak", 0)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHAPE", "round\nand é")
    core = max(os.sched_getaffinity(0))
    process, channel = child(
        spawner,
        "end.send(repr((os.getsid(0) == os.getpid(), os.environ['COLOUR'], os.environ['SHAPE'], os.getcwd(),"
        " os.sched_getaffinity(0), len(os.listdir('/proc/self/fd')))).encode())",
        env={"COLOUR": "red"},
        cpus=[core],
        is_aside=True,
    )
    expected = (True, "red", "round\nand é", str(tmp_path), {core}, 5)  # 3 streams, channel, the list
    assert eval(channel.receive()[0]) == expected
    assert process.is_stepped_back
    assert process.wait(LIMIT_S) == 0
    os.close(leaked)
    channel.close()


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="sessions have no shares here")
@pytest.mark.parametrize("aside", [True, False])
def test_its_session_has_a_small_share_only_where_that_is_asked(spawner: Spawner, aside: bool) -> None:
    process, channel = child(
        spawner, "end.send(open('/proc/self/autogroup').read().encode()); end.recv(1)", is_aside=aside
    )
    assert channel.receive()[0].split()[-1] == (b"10" if aside else b"0")
    assert process.step_forward()
    assert Path(f"/proc/{process.pid}/autogroup").read_text().split()[-1] == "0"
    process.kill()
    process.wait()
    channel.close()


def test_it_prints_to_standard_error(spawner: Spawner, capfd: pytest.CaptureFixture[str]) -> None:
    process, channel = child(spawner, "print('a remark', flush=True)")
    assert process.wait(LIMIT_S) == 0
    assert capfd.readouterr() == ("", "a remark\n")
    channel.close()


def test_a_program_that_is_not_there_ends_with_127_and_says_so(
    spawner: Spawner, capfd: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = channel_pair()
    process = spawner.spawn(["/no/such/program"], theirs, env={}, name="none")
    assert process.wait(LIMIT_S) == 127
    assert "cannot start /no/such/program: No such file" in capfd.readouterr().err
    ours.close()


def test_what_a_message_cannot_hold_is_started_as_ever(spawner: Spawner) -> None:
    process, channel = child(
        spawner, "sys.exit(len(os.environ['LONG']) == 100_000)", env={"LONG": "x" * 100_000}
    )
    assert spawner.waiting == SPARES
    assert process.wait(LIMIT_S) == 1
    channel.close()


def test_with_no_spare_a_process_is_started_as_ever() -> None:
    never_started = Spawner()
    core = min(os.sched_getaffinity(0))
    process, channel = child(never_started, "end.recv(1); sys.exit(3)", cpus=[core], is_aside=True)
    assert os.sched_getaffinity(process.pid) == {core}
    channel.send(b"x")
    assert process.wait(LIMIT_S) == 3
    channel.close()
    never_started.close()


def test_spares_that_somebody_ended_are_passed_over(spawner: Spawner) -> None:
    first = spawner._spares[0].pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    process, channel = child(spawner, "sys.exit(4)")
    assert process.pid != first
    assert first not in children()
    assert process.wait(LIMIT_S) == 4
    channel.close()


def test_it_goes_on_without_whoever_makes_the_spares(spawner: Spawner) -> None:
    assert spawner._keeper is not None
    spawner._keeper.kill()
    spawner._keeper.wait()
    started = [child(spawner, "sys.exit(5)") for _ in range(SPARES + 1)]  # the last as ever
    for process, channel in started:
        assert process.wait(LIMIT_S) == 5
        channel.close()


def test_closing_leaves_what_was_started_and_no_spare() -> None:
    before = children()
    spawner = Spawner()
    spawner.start()
    spawner.start()  # a second time does nothing
    until(lambda: spawner.waiting == SPARES)
    process, channel = child(spawner, "end.recv(1); sys.exit(6)")
    spawner.close()
    assert children() - before == {process.pid}
    channel.send(b"x")
    assert process.wait(LIMIT_S) == 6
    channel.close()
    spawner.close()


def test_closing_at_once_leaves_nothing() -> None:
    before = children()
    for _ in range(3):
        spawner = Spawner()
        spawner.start()
        spawner.close()
    assert children() == before


def share(pid: int) -> str:
    return Path(f"/proc/{pid}/autogroup").read_text().split()[-1]


needs_shares = pytest.mark.skipif(
    not Path("/proc/self/autogroup").exists(), reason="sessions have no shares here"
)


@needs_shares
def test_what_the_head_gives_a_spare_that_was_not_read_yet_stays(spawner: Spawner) -> None:
    """Its share and its cores: it is stopped before it reads what to become, and undid both later."""
    os.kill(spawner._spares[0].pid, signal.SIGSTOP)
    both = sorted(os.sched_getaffinity(0))[:2]
    process, channel = child(spawner, "end.send(b'up'); end.recv(1)", cpus=both, is_aside=True)
    assert share(process.pid) == "10"
    assert process.step_forward()
    process.confine(both[:1])
    process.confine(both[-1:])
    process.resume()
    assert channel.receive()[0] == b"up"
    assert share(process.pid) == "0"
    assert os.sched_getaffinity(process.pid) == {both[-1]}
    process.kill()
    process.wait()
    channel.close()


@pytest.mark.parametrize(("error", "again"), [(BlockingIOError, True), (PermissionError, False)])
def test_a_share_that_cannot_be_set_now_is_asked_for_again_and_one_never_to_be_set_is_not(
    spawner: Spawner, monkeypatch: pytest.MonkeyPatch, error: type[OSError], again: bool
) -> None:
    def refused(*_: object) -> None:
        raise error

    monkeypatch.setattr(Path, "write_text", refused)
    process, channel = child(spawner, "end.recv(1)", is_aside=True)
    assert not process.is_stepped_back
    assert process.step_back() is not again
    assert process.step_forward()  # there is nothing to take back
    monkeypatch.undo()
    process.kill()
    process.wait()
    channel.close()


def test_it_has_the_scheduling_policy_of_the_head() -> None:
    code = "import os; os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))\n" + dedent(POLICY)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{os.SCHED_BATCH}\n", done.stderr


def test_a_head_whose_children_are_reaped_for_it_sees_them_end() -> None:
    code = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n" + dedent(REAPED)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0 set()\n", done.stderr


def test_the_end_of_who_makes_spares_is_said_once_and_not_where_it_was_asked_for(
    spawner: Spawner, caplog: pytest.LogCaptureFixture
) -> None:
    ended = Spawner()
    ended.start()
    ended.close()
    assert not caplog.records
    assert spawner._keeper is not None
    os.kill(spawner._keeper.pid, signal.SIGKILL)
    until(lambda: spawner.waiting <= SPARES and spawner._control is None)  # it looks for spares
    (record,) = caplog.records
    assert "who keeps spare processes ended (status -9)" in record.getMessage()


def test_a_spare_whose_channel_is_lost_is_reaped(spawner: Spawner) -> None:
    """As where the head has too many files open when it is announced."""
    process, channel = child(spawner, "end.recv(1)")
    assert spawner._control is not None
    poller = select.poll()
    poller.register(spawner._control, select.POLLIN)
    assert poller.poll(1000 * LIMIT_S)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        assert spawner.waiting == SPARES - 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    until(lambda: spawner.waiting == SPARES)
    keeper = spawner._keeper
    assert keeper is not None
    assert {keeper.pid, process.pid, *(spare.pid for spare in spawner._spares)} == children()
    process.kill()
    process.wait()
    channel.close()


def test_who_makes_spares_may_be_killed_whenever() -> None:
    before = children()
    for delay_s in (0.0, 0.02, 0.03, 0.04, 0.05):
        spawner = Spawner()
        spawner.start()
        assert spawner._keeper is not None
        time.sleep(delay_s)  # it may be anywhere
        spawner._keeper.kill()
        spawner.close()
    assert children() == before


ROOT = Path(__file__).resolve().parents[2]
POLICY = """
    from tests.process.test_spawner import *
    spawner = Spawner()
    spawner.start()
    until(lambda: spawner.waiting == SPARES)
    process, channel = child(spawner, "end.send(str(os.sched_getscheduler(0)).encode())")
    print(channel.receive()[0].decode(), flush=True)
    process.wait()
    spawner.close()
"""
REAPED = """
    from tests.process.test_spawner import *
    spawner = Spawner()
    spawner.start()
    until(lambda: spawner.waiting == SPARES)
    process, channel = child(spawner, "end.send(b'up'); signal.pause()")
    channel.receive()
    process.kill()
    status = process.wait(LIMIT_S)
    process.kill()
    spawner.close()
    print(status, children())
"""
PARENT = """
    import signal, sys, time
    from tests.process.test_spawner import *
    spawner = Spawner()
    spawner.start()
    until(lambda: spawner.waiting == SPARES)
    process, channel = child(spawner, "end.send(b'up'); signal.pause()")
    channel.receive()
    until(lambda: spawner.waiting == SPARES)
    print(*children(), flush=True)
    signal.pause()
"""


def test_a_killed_head_leaves_neither_workers_nor_spares_even_stopped_ones() -> None:
    root = Path(__file__).resolve().parents[2]
    command = [sys.executable, "-c", dedent(PARENT)]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdout is not None
        pids = [int(word) for word in head.stdout.readline().split()]
        assert len(pids) == 1 + SPARES + 1
        watched = [os.pidfd_open(pid) for pid in pids]
        for pid in pids:  # none can read that its channel is closed; only the kernel can end it
            os.kill(pid, signal.SIGSTOP)
        head.kill()
        for fd in watched:
            assert select.select([fd], [], [], LIMIT_S)[0]
            os.close(fd)
