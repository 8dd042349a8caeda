"""Who may change the server."""

import json
import stat
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.core.errors import ForeignCaller, InvalidRequest, NotAuthorized
from partita.core.versions import LatestVersions
from partita.key_file import KeyFile
from partita.protocols.access import Access, Keys, bearer
from partita.protocols.repository import load_request


class Clock:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.time_s = 1000.0

    def now_s(self) -> float:
        return self.time_s

    def wall_s(self) -> float:
        return self.time_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


OUR_PAGES = [
    (None, "localhost"),
    ("http://localhost:3000", "localhost"),
    ("http://127.0.0.1", "localhost"),
    ("http://127.8.9.1:3000", "203.0.113.5:8080"),
    ("http://[::1]:3000", "localhost"),
    ("https://mine.example", "localhost"),
    ("https://Mine.example:3000", "localhost"),
    ("https://app.example", "localhost"),
    ("http://203.0.113.5:8080", "203.0.113.5:8080"),  # a page of this very server
    ("http://[2001:db8::1]:8080", "[2001:db8::1]:8080"),
]
OTHER_PAGES = [
    ("https://evil.example", "localhost"),
    ("null", "localhost"),
    ("http://app.example", "localhost"),
    ("file://", "localhost"),
    ("", "localhost"),
    ("http://203.0.113.5", "localhost"),
    ("http://203.0.113.5", None),
    ("http://203.0.113.5:3000", "203.0.113.5:8080"),
    ("http://10.0.0.7", "10.0.0.8"),
    ("http://[2001:db8::1]", "localhost"),
    ("http://localhost.evil.example", "localhost"),
    ("http://127.0.0.1.evil.example", "127.0.0.1"),
]


@pytest.mark.parametrize(("origin", "host"), OUR_PAGES)
def test_pages_that_may_change_the_server(origin: str | None, host: str) -> None:
    access = Access(keys=None, hosts=frozenset({"mine.example"}), origins=frozenset({"https://app.example"}))
    access.check(None, host, origin)


@pytest.mark.parametrize(("origin", "host"), OTHER_PAGES)
def test_pages_of_other_origins_may_not_change_the_server(origin: str, host: str | None) -> None:
    access = Access(keys=None, hosts=frozenset({"mine.example"}), origins=frozenset({"https://app.example"}))
    with pytest.raises(ForeignCaller, match="cors_origins"):
        access.check(None, host, origin)


def test_every_page_may_where_the_settings_say_so_but_not_under_another_name() -> None:
    access = Access(keys=None, origins=frozenset("*"))
    access.check(None, None, "https://anybody.example")
    with pytest.raises(ForeignCaller, match="allowed_hosts"):  # DNS rebinding
        access.check(None, "evil.example:8080", "http://evil.example:8080")


def test_a_key_expires_and_one_of_your_own_does_not(clock: Clock) -> None:
    keys = Keys(clock, lifetime_s=60.0, fixed="mine")
    management = keys.current["management"].value
    assert keys.allows("management", management)
    assert not keys.allows("inference", management)
    clock.time_s += 60.0
    assert not keys.allows("management", management)
    assert keys.allows("management", "mine")
    assert not keys.allows("inference", "mine")
    assert keys.allows("management", keys.renew("management").value)


def test_no_key_is_as_good_as_an_empty_one(clock: Clock) -> None:
    access = Access(keys=Keys(clock, lifetime_s=60.0))
    for header in (None, "", "Bearer", "Bearer ", "Basic x", "\udcff"):
        with pytest.raises(NotAuthorized, match="missing, wrong or expired"):
            access.check(header)


@given(token=st.from_regex(r"[A-Za-z0-9_-]{1,30}", fullmatch=True))
def test_the_scheme_may_be_written_in_any_case(token: str) -> None:
    assert bearer(f"bearer {token}") == bearer(f" BEARER  {token} ") == token


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8080", "127.0.0.1", "10.1.2.3:80", "[::1]", "[::1]:8080", "Mine.example:1"],
)
def test_names_that_are_ours(host: str) -> None:
    Access(keys=None, hosts=frozenset({"mine.example"})).check(None, host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "", "mine.example.", "[evil]:1"],
)
def test_names_that_are_not(host: str) -> None:
    with pytest.raises(NotAuthorized, match="allowed_hosts"):
        Access(keys=None, hosts=frozenset({"mine.example"})).check(None, host)


def test_the_file_follows_the_keys_and_goes_only_if_it_is_still_ours(clock: Clock, tmp_path: Path) -> None:
    path = tmp_path / "key_file.json"
    path.write_text("somebody else's, from before")
    path.chmod(0o666)
    first, second = (KeyFile(path, Keys(clock, lifetime_s=60.0)) for _ in range(2))
    first.start()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = msgspec.json.decode(path.read_bytes())
    assert before["management"]["expiration time"] == "1970-01-01T00:17:40Z"
    first._keys.renew("management")
    after = msgspec.json.decode(path.read_bytes())
    assert after["management"]["key"] != before["management"]["key"]
    assert after["API"] == before["API"]
    second.start()
    first.remove()
    assert path.exists()
    second.remove()
    assert not path.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_only_warned_of(
    clock: Clock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = KeyFile(tmp_path / "nowhere" / "key_file.json", Keys(clock, lifetime_s=60.0))
    file.start()
    file.remove()
    assert "cannot write" in caplog.text


def test_what_a_load_may_say() -> None:
    config = json.dumps(
        {
            "name": "m",
            "backend": "onnxruntime",
            "max_batch_size": 8,
            "dynamic_batching": {"max_queue_delay_microseconds": 500},
            "version_policy": {"specific": {"versions": [1, 3]}},
        }
    )
    request = load_request({"config": config, "file:2/model.onnx": "AAEC", "file:2/weights.data": b"raw"})
    assert request.settings == {
        "runtime": "onnxruntime",
        "max_batch": 8,
        "batch_timeout_ms": 0.5,
        "versions": (1, 3),
    }
    assert request.files == {"2/model.onnx": bytes([0, 1, 2]), "2/weights.data": b"raw"}


POLICIES: dict[str, Any] = {
    '{"latest": {}}': LatestVersions(),
    '{"latest": {"num_versions": 2}}': LatestVersions(latest=2),
    '{"all": {}}': "all",
    '{"specific": {"versions": [2]}}': (2,),
}


@pytest.mark.parametrize("policy", POLICIES)
def test_the_versions_that_a_load_may_name(policy: str) -> None:
    request = load_request({"config": f'{{"version_policy": {policy}}}'})
    assert request.settings == {"versions": POLICIES[policy]}


WRONG: list[dict[str, Any]] = [
    {"x": 1},
    {"config": 3},
    {"config": "{}", "file:1/a": "no base64!"},
    {"config": '{"max_batch_size": -1}'},
    {"config": '{"version_policy": {"latest": {"num_versions": 0}}}'},
]


@pytest.mark.parametrize("parameters", WRONG)
def test_what_a_load_may_not_say(parameters: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        load_request(parameters)


@given(name=st.text(max_size=30))
def test_a_file_stays_in_its_folder(name: str) -> None:
    try:
        request = load_request({"config": "{}", f"file:{name}": ""})
    except InvalidRequest:
        return
    (file,) = request.files
    place = Path("/store/m") / file
    assert place.resolve().is_relative_to("/store/m")
    assert len(place.parts) == 5
