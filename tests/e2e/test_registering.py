"""Registering archives over TorchServe's management API: where from, by whom, and what is in them.

Whatever is refused changes nothing: no model, no file outside the store, no folder that stays unpacked.
"""

import json
import os
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

import pytest

from partita.archives.folders import folders_below
from partita.archives.unpacking import Limits
from partita.embedded import Server
from partita.settings import ServerSettings, Settings
from tests.e2e.test_serve import until
from tests.e2e.test_torchserve import LOCAL
from tests.raw_client import RawClient, request
from tests.unit.test_archives import special, tarred, tiny_wheel, zipped

pytestmark = pytest.mark.e2e

ECHO = b"def handle(data, context):\n    return data and [bytes(row['body']) + b'!' for row in data]\n"


def files_of(name: str, **more: Any) -> dict[str, bytes]:
    """Return what an archive of this name holds; `more` is said of the model in its manifest."""
    model = {"modelName": name, "handler": "service.py", "modelVersion": "1.0", **more}
    return {"MAR-INF/MANIFEST.json": json.dumps({"model": model}).encode(), "service.py": ECHO}


class Site(BaseHTTPRequestHandler):
    """Answers an archive, and redirects to it."""

    protocol_version = "HTTP/1.0"
    archive = b""
    broken: ClassVar[list[bytes]] = []
    """What is answered once each in its place."""

    def do_GET(self) -> None:
        self.send_response(302 if self.path.startswith("/moved/") else 200)
        if self.path.startswith("/moved/"):
            self.send_header("Location", "/far.mar")
        self.end_headers()
        if not self.path.startswith("/moved/"):
            self.wfile.write(self.broken.pop() if self.broken else self.archive)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    made = zipped(tmp_path_factory.mktemp("site") / "far.mar", files_of("far"))
    Site.archive = made.read_bytes()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several archives in one folder: of each form a good one, and bad ones."""
    made = tmp_path_factory.mktemp("registering") / "store"
    made.mkdir()
    zipped(made / "first.mar", files_of("first"))
    tarred(made / "second.tar.gz", files=files_of("second"))
    for name, content in files_of("third").items():
        (made / "third" / name).parent.mkdir(parents=True, exist_ok=True)
        (made / "third" / name).write_bytes(content)
    return made


@pytest.fixture(scope="module")
def bad(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("registering-bad") / "store"
    made.mkdir()
    zipped(made / "up.mar", {**files_of("up"), "../../out.py": b"x"})
    zipped(made / "absolute.mar", {**files_of("absolute"), "/tmp/partita-out.py": b"x"})
    tarred(made / "link.tar.gz", special(tarfile.SYMTYPE), files=files_of("link"))
    with zipfile.ZipFile(zipped(made / "ziplink.mar", files_of("ziplink")), "a") as archive:
        info = zipfile.ZipInfo("odd")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    zipped(made / "bomb.mar", {**files_of("bomb"), **{f"{n}": b"" for n in range(101)}})
    wheel = "tiny_package-1.0-py3-none-any.whl"
    wants = {**files_of("wants", requirementsFile="requirements.txt"), wheel: tiny_wheel()}
    zipped(made / "wants.mar", {**wants, "requirements.txt": b"--no-index\n./" + wheel.encode()})
    return made


def serving(store: Path, *paths: Path, **more: Any) -> Server:
    given = {"http": LOCAL, "metrics": None, "management": LOCAL, "model_store": str(store), **more}
    settings = Settings(server=ServerSettings(enable_model_api=True, **given))
    return Server(paths, cores=1, tune="never", settings=settings, ports=True)


@pytest.fixture(scope="module")
def server(bad: Path, site: str) -> Iterator[Server]:
    allowed = (f"{site}/.*", "http://nowhere.invalid/.*")
    with serving(bad, allowed_urls=allowed) as running:
        path = f"/models?url={site}/far.mar&initial_workers=1"
        assert ask(running, "POST", path, good(running))[0] == 200  # with a first worker come the spare ones
        assert ask(running, "DELETE", "/models/far", good(running))[0] == 200
        yield running


def ask(
    server: Server, method: str, path: str, *fields: str, host: str = "localhost", body: bytes = b""
) -> tuple[int, Any]:
    """Ask the management port; predictions are asked of the other one."""
    port = "http" if path.startswith("/predictions") else "management"
    with RawClient(server.url(port), timeout_s=90.0) as client:
        data = request(path, body, *fields, method=method)
        client.send(data.replace(b"Host: h", f"Host: {host}".encode()))
        status, _, answer = client.answer()
    return status, answer if port == "http" else json.loads(answer)


def good(server: Server) -> str:
    keys = server.head.access.keys
    assert keys is not None
    return f"Authorization: Bearer {keys.current['management'].value}"


def everything(*folders: Path) -> list[tuple[str, int]]:
    return sorted((str(path), path.lstat().st_size) for folder in folders for path in folder.rglob("*"))


CONTENT = {
    "a path that leads out": ("up.mar", "outside"),
    "a path from the root": ("absolute.mar", "outside"),
    "a link in a tar": ("link.tar.gz", "only files and folders"),
    "a link in a zip": ("ziplink.mar", "link"),
    "a bomb": ("bomb.mar", "more than 100 entries"),
    "packages, which are not allowed": ("wants.mar", "not allowed"),
    "a place that is not there": ("http://nowhere.invalid/m.mar", "Failed to download"),
}


@pytest.mark.parametrize(("url", "says"), CONTENT.values(), ids=CONTENT)
def test_an_archive_that_is_refused_leaves_nothing(
    url: str, says: str, server: Server, bad: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Path(os.environ["PARTITA_CACHE_DIR"])
    monkeypatch.setattr(folders_below(cache), "limits", Limits(max_entries=100))
    before = everything(bad.parent), unpacked_in(cache)
    status, said = ask(server, "POST", f"/models?url={url}&initial_workers=1", good(server))
    assert status == 400, said
    assert says in said["message"]
    assert (said["type"] == "DownloadArchiveException") == url.startswith("http")
    assert (everything(bad.parent), unpacked_in(cache)) == before
    assert not Path("/tmp/partita-out.py").exists()
    assert server.head.engine.services == {}


def unpacked_in(cache: Path) -> list[str]:
    """Return the folders of archives that are there, or were being made."""
    return sorted(path.name for path in (cache / "archives").glob("*") if path.is_dir())


def test_an_allowed_url_is_fetched_and_served_and_then_nothing_of_it_is_left(
    server: Server, site: str
) -> None:
    path = f"/models?url={site}/far.mar&initial_workers=1"
    status, said = ask(server, "POST", path, good(server))
    assert (status, said["status"]) == (200, 'Model "far" Version: 1.0 registered with 1 initial workers')
    assert ask(server, "POST", "/predictions/far", body=b"x") == (200, b"x!")
    folder = Path(server.head.engine.services["far"].member.launch.path)
    assert ask(server, "DELETE", "/models/far", good(server))[0] == 200
    until(lambda: not folder.exists())


@pytest.mark.parametrize("harm", ["no archive", "a handler that fails"])
def test_what_could_not_be_served_is_fetched_anew(
    harm: str, server: Server, site: str, tmp_path: Path
) -> None:
    path = f"/models?url={site}/again.mar&model_name=again&initial_workers=1"
    bad = zipped(tmp_path / "bad.mar", {**files_of("again"), "service.py": b"raise ValueError"}).read_bytes()
    Site.broken.append(b"no archive" if harm == "no archive" else bad)
    assert ask(server, "POST", path, good(server))[0] == 400
    assert server.head.repository._fetched == {}
    assert ask(server, "POST", path, good(server))[0] == 200
    assert ask(server, "DELETE", "/models/again", good(server))[0] == 200


def test_what_is_unregistered_is_fetched_anew(server: Server, site: str, tmp_path: Path) -> None:
    path = f"/models?url={site}/again.mar&initial_workers=1&model_name="
    other = {**files_of("other"), "service.py": ECHO.replace(b"!", b"?")}
    Site.broken.append(zipped(tmp_path / "other.mar", other).read_bytes())
    for name in ("one", "two"):
        assert ask(server, "POST", path + name, good(server))[0] == 200
    assert ask(server, "DELETE", "/models/one", good(server))[0] == 200
    assert ask(server, "PUT", "/models/two?min_worker=0&synchronous=true", good(server))[0] == 200
    assert ask(server, "PUT", "/models/two?min_worker=1&synchronous=true", good(server))[0] == 200
    assert ask(server, "POST", "/predictions/two", body=b"x") == (200, b"x?"), "it is what was registered"
    assert ask(server, "DELETE", "/models/two", good(server))[0] == 200
    assert server.head.repository._fetched == {}
    assert ask(server, "POST", path + "one", good(server))[0] == 200
    assert ask(server, "POST", "/predictions/one", body=b"x") == (200, b"x!")
    assert ask(server, "DELETE", "/models/one", good(server))[0] == 200


def test_one_url_that_is_registered_under_two_names_at_once(server: Server, site: str) -> None:
    path = f"/models?url={site}/both.mar&initial_workers=1&model_name="
    with ThreadPoolExecutor(4) as threads:
        names = [f"m{n}" for n in range(4)]
        made = list(threads.map(lambda name: ask(server, "POST", path + name, good(server)), names))
    assert [status for status, _ in made] == [200] * 4, made
    for name in names:
        assert ask(server, "POST", f"/predictions/{name}", body=b"x") == (200, b"x!")
        assert ask(server, "DELETE", f"/models/{name}", good(server))[0] == 200
    assert server.head.repository._fetched == {}


def test_a_redirect_to_our_own_network_is_refused(server: Server, site: str) -> None:
    status, said = ask(server, "POST", f"/models?url={site}/moved/far.mar&initial_workers=1", good(server))
    assert (status, "private address" in said["message"]) == (400, True)
    assert server.head.engine.services == {}


def test_nobody_registers_without_the_token_or_by_a_name_that_is_not_ours(store: Path) -> None:
    path = "/models?url=first.mar&initial_workers=1"
    with serving(store) as server:
        for fields in ((), ("Authorization: Bearer wrong",), (good(server).replace("Bearer", "Basic"),)):
            status, said = ask(server, "POST", path, *fields)
            assert (status, said["type"]) == (400, "InvalidKeyException")
        status, said = ask(server, "POST", path, good(server), host="evil.example:8081")
        assert status in (400, 403), said
        assert server.head.engine.services == {}
        assert ask(server, "POST", path, good(server))[0] == 200
        status, _ = ask(server, "DELETE", "/models/first", good(server), host="evil.example")
        assert status in (400, 403)
        assert list(server.head.engine.services) == ["first"]


def registered_at_once(server: Server, *urls: str) -> list[tuple[int, Any]]:
    """Register these at the same moment; returns the answers, that of the lowest status first."""
    with ThreadPoolExecutor(len(urls)) as pool:
        paths = [f"/models?url={url}&initial_workers=1" for url in urls]
        return sorted(
            pool.map(lambda path: ask(server, "POST", path, good(server)), paths), key=itemgetter(0)
        )


def test_versions_of_a_new_name_that_come_at_once(tmp_path: Path) -> None:
    for version in ("9.0", "10.0"):
        zipped(tmp_path / f"v{version}.mar", files_of("both", modelVersion=version))
    zipped(tmp_path / "broken.mar", {**files_of("broken"), "service.py": b"import nowhere\n"})
    with serving(tmp_path) as server:
        assert ask(server, "POST", "/models?url=v9.0.mar", good(server))[0] == 200
        assert ask(server, "POST", "/models?url=v10.0.mar", good(server))[0] == 200
        described = ask(server, "GET", "/models/both", good(server))[1]
        assert [one["modelVersion"] for one in described] == ["10.0"], "the highest, by its number"
        for method, more in (("PUT", "?min_worker=1"), ("DELETE", "")):
            status, said = ask(server, method, f"/models/both/all{more}", good(server))
            assert (status, "one version at a time" in said["message"]) == (400, True)
        for version in ("9.0", "10.0"):
            assert ask(server, "DELETE", f"/models/both/{version}", good(server))[0] == 200
        answers = registered_at_once(server, "v9.0.mar", "v10.0.mar")
        assert [status for status, _ in answers] == [200, 200], answers
        assert set(server.head.engine.versions) == {("both", "9.0"), ("both", "10.0")}
        described = ask(server, "GET", "/models/both/all", good(server))[1]
        assert [one["modelVersion"] for one in described] == ["9.0", "10.0"]


def test_one_version_that_is_registered_twice_at_once(tmp_path: Path) -> None:
    zipped(tmp_path / "one.mar", files_of("one"))
    zipped(tmp_path / "broken.mar", {**files_of("broken"), "service.py": b"import nowhere\n"})
    with serving(tmp_path) as server:
        (status, _), (other, said) = registered_at_once(server, "one.mar", "one.mar")
        assert (status, other, said["type"]) == (200, 409, "ConflictStatusException")
        for _ in range(2):  # what did not load is not kept from coming again
            (status, _), (other, said) = registered_at_once(server, "broken.mar", "broken.mar")
            assert (status, other, said["type"]) == (400, 409, "ConflictStatusException")
        names = [one["modelName"] for one in ask(server, "GET", "/models", good(server))[1]["models"]]
        assert names == ["one"]


def test_a_token_that_has_expired_registers_nothing(store: Path) -> None:
    with serving(store, token_expiration_min=0.05 / 60) as server:
        until(lambda: ask(server, "GET", "/models", good(server))[0] == 400)
        status, said = ask(server, "POST", "/models?url=first.mar&initial_workers=1", good(server))
        assert (status, said["type"]) == (400, "InvalidKeyException")
        assert server.head.engine.services == {}


def test_a_folder_of_archives_serves_all_of_them_in_every_form(store: Path) -> None:
    with serving(store, store) as server:
        for name in ("first", "second", "third"):
            assert ask(server, "POST", f"/predictions/{name}", body=b"x") == (200, b"x!")
        listed = ask(server, "GET", "/models", good(server))[1]["models"]
        assert [model["modelName"] for model in listed] == ["first", "second", "third"]


def test_packages_are_left_out_where_the_settings_say_so(bad: Path) -> None:
    path = "/models?url=wants.mar&initial_workers=1"
    with serving(bad, requirements="ignore") as server:
        assert ask(server, "POST", path, good(server))[0] == 200
        folder = Path(server.head.engine.services["wants"].member.launch.path)
        assert not (folder / "partita-packages").exists()
