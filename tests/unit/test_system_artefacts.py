"""Files made once: by whom of several, and what is left of one who was killed at it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from partita.core.errors import InvalidInput
from partita.system.artefacts import artefact_key, cache_dir, kept, limit_kept, remove_kept, used

MAKER = """
import os, sys
from pathlib import Path
from partita.system.artefacts import kept

def make(folder):
    with open(sys.argv[2], "a") as made:
        made.write("made\\n")
    (folder / "half").write_text("half")
    sys.stdout.write("making\\n"); sys.stdout.flush()
    sys.stdin.readline()
    (folder / "whole").write_text(str(os.getpid()))

print("at", kept(Path(sys.argv[1]), "key", make), flush=True)
"""


def maker(folder: Path, log: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", MAKER, str(folder), str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: "subprocess.Popen[str]") -> str:
    out, _ = process.communicate("go on\n", timeout=30)
    return out


def test_the_cache_folder_is_the_named_one_or_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir({"PARTITA_CACHE_DIR": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_dir({"XDG_CACHE_HOME": "/b"}) == Path("/b/partita")
    assert cache_dir({"XDG_CACHE_HOME": "b"}) == cache_dir({}) == Path.home() / ".cache" / "partita"
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 123456789)
    with pytest.raises(InvalidInput, match="PARTITA_CACHE_DIR"):
        cache_dir({})


def test_it_is_made_once_and_found_then(tmp_path: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "file").write_text("x")

    first, again = kept(tmp_path / "a", "key", make), kept(tmp_path / "a", "key", make)
    assert first == again == tmp_path / "a" / "key"
    assert (first / "file").read_text() == "x"
    assert len(made) == 1


def test_what_fails_leaves_nothing_and_may_be_tried_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        kept(tmp_path, "key", fail)
    assert [path.name for path in tmp_path.iterdir()] == ["key.lock"]
    assert list(kept(tmp_path, "key", lambda folder: None).iterdir()) == []


def test_two_processes_at_once_make_it_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    first = maker(tmp_path / "a", log)
    assert first.stdout is not None
    assert first.stdout.readline() == "making\n"
    second = maker(tmp_path / "a", log)
    assert "at " in finish(first)
    assert finish(second).startswith("at ")
    assert log.read_text() == "made\n"


def test_one_that_was_killed_at_it_is_in_nobodys_way(tmp_path: Path) -> None:
    log = tmp_path / "log"
    killed = maker(tmp_path / "a", log)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "making\n"
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate(timeout=30)
    assert not (tmp_path / "a" / "key").exists(), "half of it is not there under its name"
    assert "at " in finish(maker(tmp_path / "a", log))
    assert {path.name for path in (tmp_path / "a").iterdir()} == {"key", "key.lock"}
    assert {path.name for path in (tmp_path / "a" / "key").iterdir()} == {"half", "whole"}


def test_the_key_is_that_of_content_and_facts(tmp_path: Path) -> None:
    file = tmp_path / "model"
    file.write_bytes(b"weights")
    key = artefact_key([file], "onnx", 1)
    assert key == artefact_key([file], "onnx", 1)
    assert key != artefact_key([file], "onnx", 2)
    file.write_bytes(b"weight5")
    assert key != artefact_key([file], "onnx", 1)


def filled(content: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / "file").write_text(content)

    return make


def put(folder: Path, key: str, hours_ago: float) -> Path:
    place = kept(folder, key, filled("x" * 1000))
    at_s = time.time() - 3600 * hours_ago
    os.utime(place, (at_s, at_s))
    return place


def test_one_that_is_not_good_is_made_anew(tmp_path: Path) -> None:
    place = put(tmp_path, "key", 0.0)
    before = (place / "file").stat().st_ino

    def is_good(at: Path) -> bool:
        return (at / "file").stat().st_ino != before

    assert kept(tmp_path, "key", filled("new"), is_good=is_good) == place
    assert (place / "file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["key", "key.lock"]


def test_who_waits_for_another_gives_up_in_time(tmp_path: Path) -> None:
    def make(_: Path) -> None:
        with pytest.raises(TimeoutError, match="another process"):
            kept(tmp_path, "key", lambda __: None, limit_s=0.05)

    assert kept(tmp_path, "key", make).is_dir()


def test_those_that_were_not_used_for_longest_go_first(tmp_path: Path) -> None:
    folder = tmp_path / "now"
    places = [put(folder, f"key{number}", hours) for number, hours in enumerate((1.0, 3.0, 2.0))]
    limit_kept(folder, 2500)
    assert [place.exists() for place in places] == [True, False, True]
    used(places[2])
    limit_kept(folder, 1500)
    assert [place.exists() for place in places] == [False, False, True]


def test_the_folders_beside_count_as_well(tmp_path: Path) -> None:
    before, now = put(tmp_path / "before", "key", 2.0), put(tmp_path / "now", "key", 1.0)
    limit_kept(tmp_path / "now", 2500)
    assert before.exists()
    limit_kept(tmp_path / "now", 1500)
    assert (before.exists(), now.exists()) == (False, True)


AS_NOBODY = """
import os, sys
from pathlib import Path
from partita.system.artefacts import kept
os.setuid(65534)

def make(folder):
    (folder / "file").write_text("ours")

try:
    print((kept(Path(sys.argv[1]), "key", make) / "file").read_text())
except OSError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize(("owner", "sticky"), [(1234, True), (1234, False), (0, True), (65534, True)])
def test_what_another_user_put_there_is_not_used(owner: int, sticky: bool, capfd: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o1777 if sticky else 0o777)
        place = folder / "key"
        place.mkdir()
        (place / "file").write_text("theirs")
        os.chown(place, owner, owner)
        assert subprocess.call([sys.executable, "-c", AS_NOBODY, name]) == 0
        said = capfd.readouterr().out
    if owner in (0, 65534):
        assert said == "theirs\n"
    elif sticky:
        assert said.startswith("PermissionError")
        assert "another user's" in said
    else:
        assert said == "ours\n"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "key.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        kept(tmp_path, "key", lambda _: None)
    assert not (tmp_path / "elsewhere").exists()


def test_what_nobody_has_used_for_weeks_goes(tmp_path: Path) -> None:
    month = 24 * 30.0
    old, new = put(tmp_path / "now", "old", month), put(tmp_path / "now", "new", 1.0)
    beside, old_beside = put(tmp_path / "before", "a", 0.0), put(tmp_path / "lately", "a", month)
    at_s = time.time() - 3600 * month
    os.utime(beside.parent, (at_s, at_s))
    limit_kept(tmp_path / "now", 1 << 30)
    assert not old.exists()
    assert new.exists()
    assert not beside.parent.exists()
    assert not old_beside.exists()
    assert old_beside.parent.exists()


def test_one_that_is_removed_leaves_nothing(tmp_path: Path) -> None:
    remove_kept(put(tmp_path, "key", 0.0))
    remove_kept(tmp_path / "key")
    assert [path.name for path in tmp_path.iterdir()] == ["key.lock"]
