"""TorchServe archives: what is read of them, how they are unpacked, and what is refused."""

import io
import json
import logging
import stat
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from partita.archives.containers import is_archive, manifest_of
from partita.archives.fetching import fetch
from partita.archives.folders import ArchiveFolders
from partita.archives.model_config import settings_of, under, warn_of_config
from partita.archives.remarks import remarks
from partita.archives.source import unpacked
from partita.archives.unpacking import Limits, unpack
from partita.catalogue import Catalogue
from partita.core.errors import InvalidInput, LoadFailed, MissingExtra
from partita.settings import ModelSettings
from partita.sources import find_models
from partita.worker.archive.handler import find_handler

MANIFEST = {
    "createdOn": "01/02/2026 10:00:00",
    "runtime": "python",
    "model": {"modelName": "m", "handler": "service.py", "modelVersion": "1.0"},
    "archiverVersion": "0.12.0",
}
FILES = {
    "MAR-INF/MANIFEST.json": json.dumps(MANIFEST).encode(),
    "service.py": b"def handle(d, c): return d\n",
}


def zipped(path: Path, files: dict[str, bytes] = FILES, **more: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**files, **more}.items():
            archive.writestr(name, content)
    return path


def tarred(path: Path, *infos: tarfile.TarInfo, files: dict[str, bytes] = FILES) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in infos:
            archive.addfile(info)
    return path


def everything(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("form", ["m.mar", "m.tar.gz", "m.tgz", "folder"])
def test_every_form_is_read_and_unpacked(form: str, tmp_path: Path) -> None:
    path = tmp_path / form
    if form == "folder":
        for name, content in FILES.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
    elif form.endswith(".mar"):
        zipped(path)
    else:
        tarred(path)
    assert is_archive(path)
    (source,) = find_models(path)
    assert (source.name, source.version, source.runtime) == ("m", "1.0", "torchserve")
    ready = unpacked(source, "refuse")
    assert everything(ready.path) == set(FILES)
    assert stat.S_IMODE(ready.path.stat().st_mode) & 0o077 == 0 or form == "folder"


UNSAFE = ["../out.py", "/etc/out.py", "a/../../out.py", "..\\out.py", "C:/out.py"]


@pytest.mark.parametrize("name", UNSAFE)
def test_nothing_is_written_outside(name: str, tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    for path in (
        zipped(tmp_path / "m.mar", {**FILES, name: b"x"}),
        tarred(tmp_path / "m.tgz", files={**FILES, name: b"x"}),
    ):
        with pytest.raises(InvalidInput, match="outside"):
            unpack(path, tmp_path / "inside" / path.suffix)
    assert not [path for path in tmp_path.rglob("out.py") if path.is_file()]


def special(kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo("odd")
    info.type, info.linkname = kind, "/etc/passwd"
    return info


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
def test_links_and_devices_are_refused(kind: bytes, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="only files and folders"):
        unpack(tarred(tmp_path / "m.tgz", special(kind)), tmp_path / "out")


def test_links_in_a_zip_and_in_a_folder_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as archive:
        info = zipfile.ZipInfo("odd")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/etc/passwd")
    with pytest.raises(InvalidInput, match="link"):
        unpack(tmp_path / "m.mar", tmp_path / "out")
    folder = tmp_path / "folder"
    (folder / "MAR-INF").mkdir(parents=True)
    (folder / "MAR-INF" / "MANIFEST.json").write_bytes(FILES["MAR-INF/MANIFEST.json"])
    (folder / "service.py").symlink_to("/etc/passwd")
    (source,) = find_models(folder)
    with pytest.raises(InvalidInput, match=r"service\.py is a link"):
        unpacked(source, "refuse")


def test_a_name_that_comes_twice_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "m.mar", "w") as archive:
        archive.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("a", b"2")
    with pytest.raises(InvalidInput, match="twice"):
        unpack(tmp_path / "m.mar", tmp_path / "out")


@pytest.mark.parametrize(
    ("limits", "says"),
    [
        (Limits(max_bytes=1000), "more than 1000 bytes"),
        (Limits(max_entries=2), "more than 2 entries"),
        (Limits(max_ratio=10, free_bytes=1000), "bomb"),
    ],
)
def test_bombs_are_refused(limits: Limits, says: str, tmp_path: Path) -> None:
    files = {**FILES, "zeros": bytes(1 << 20)}
    for path in (zipped(tmp_path / "m.mar", files), tarred(tmp_path / "m.tgz", files=files)):
        (tmp_path / path.suffix).mkdir()
        with pytest.raises(InvalidInput, match=says):
            unpack(path, tmp_path / path.suffix, limits)


def test_a_size_that_lies_counts_for_nothing(tmp_path: Path) -> None:
    path = zipped(tmp_path / "m.mar", {"zeros": bytes(1 << 20)})
    data = path.read_bytes().replace((1 << 20).to_bytes(4, "little"), (10).to_bytes(4, "little"))
    path.write_bytes(data)
    (tmp_path / "out").mkdir()
    with pytest.raises(InvalidInput):
        unpack(path, tmp_path / "out", Limits(max_bytes=1000))


DAMAGED = {
    "no zip": b"nothing of the kind",
    "cut": b"PK\3\4" + bytes(40),
    "empty": b"",
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_what_is_no_archive_is_said_to_be_none(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m.mar").write_bytes(content)
    with pytest.raises(InvalidInput, match=r"m\.mar"):
        find_models(tmp_path / "m.mar")


BROKEN: dict[str, Any] = {
    "no json": b"{",
    "no model": b"{}",
    "a name with a slash": {"modelName": "../m", "handler": "h.py"},
    "no handler": {"modelName": "m"},
    "a file outside": {"modelName": "m", "handler": "h.py", "serializedFile": "../w.pt"},
    "a handler outside": {"modelName": "m", "handler": "/h.py"},
    "an odd version": {"modelName": "m", "handler": "h.py", "modelVersion": "1/2"},
}


@pytest.mark.parametrize("model", BROKEN.values(), ids=BROKEN)
def test_a_broken_manifest_is_named(model: Any, tmp_path: Path) -> None:
    data = model if isinstance(model, bytes) else json.dumps({"model": model}).encode()
    with pytest.raises(InvalidInput, match=r"m\.mar"):
        manifest_of(zipped(tmp_path / "m.mar", {"MAR-INF/MANIFEST.json": data}))
    with pytest.raises(InvalidInput, match="no MAR-INF"):
        manifest_of(zipped(tmp_path / "other.mar", {"a": b""}))


# --- folders --------------------------------------------------------------------------------------


def test_a_folder_lives_as_long_as_somebody_uses_it(tmp_path: Path) -> None:
    path = zipped(tmp_path / "m.mar")
    ours, theirs = (ArchiveFolders(tmp_path / "cache") for _ in range(2))  # locks are of descriptors
    first = ours.acquire(path)
    assert ours.acquire(zipped(tmp_path / "same.mar")) == first != ours.acquire(path, variant="-other")
    assert theirs.acquire(path) == first
    ours.release(first)
    ours.release(first)
    assert everything(first) == set(FILES)
    theirs.release(first)
    assert not first.exists()
    ours.close()
    assert list((tmp_path / "cache").iterdir()) == []


def test_what_a_crash_has_left_is_removed(tmp_path: Path) -> None:
    folders = ArchiveFolders(tmp_path / "cache")
    for name in ("gone", "gone.part"):
        (tmp_path / "cache" / name).mkdir(parents=True)
    (tmp_path / "cache" / "gone.lock").touch()
    folder = folders.acquire(zipped(tmp_path / "m.mar"))
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {folder.name, f"{folder.name}.lock"}
    folders.close()


def test_an_archive_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    folders = ArchiveFolders(tmp_path / "cache", Limits(max_bytes=10))
    with pytest.raises(InvalidInput):
        folders.acquire(zipped(tmp_path / "m.mar"))
    folders.close()
    assert not [path for path in (tmp_path / "cache").iterdir() if path.is_dir()]


# --- configuration, requirements, handlers --------------------------------------------------------


def test_the_configuration_file_fills_what_nobody_else_says(tmp_path: Path) -> None:
    yaml = (
        b"minWorkers: 2\nmaxWorkers: 4\nbatchSize: 8\nmaxBatchDelay: 5\nresponseTimeout: 7\nother: {a: 1}\n"
    )
    model = {**MANIFEST["model"], "configFile": "c.yaml"}  # type: ignore[dict-item]
    path = zipped(
        tmp_path / "m.mar",
        {"MAR-INF/MANIFEST.json": json.dumps({"model": model}).encode(), "c.yaml": yaml},
    )
    settings = find_models(path)[0].settings
    assert (settings.min_workers, settings.max_workers, settings.max_batch) == (2, 4, 8)
    assert (settings.batch_timeout_ms, settings.execution_limit_s) == (5, 7)
    given = Catalogue(paths=(path,)).find("m", {"max_batch": 16}).settings
    assert (given.max_batch, given.min_workers) == (16, 2)


def test_what_changes_nothing_is_warned_of_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    yaml = (
        b"deviceType: gpu\nmaxRetryTimeoutInSec: 10\nuseJobTicket: false\nbatchsize: 4\nparallelType: pp\n"
        b"limit: 3\nmaxWorkers: 1\nhandler: {min_workers: 1}\n"
    )
    model = {**MANIFEST["model"], "configFile": "c.yaml"}  # type: ignore[dict-item]
    path = zipped(
        tmp_path / "m.mar",
        {"MAR-INF/MANIFEST.json": json.dumps({"model": model}).encode(), "c.yaml": yaml},
    )
    with caplog.at_level(logging.WARNING, "partita"):
        for _ in range(2):
            warn_of_config(path, manifest_of(path))
    said = [record.getMessage().removeprefix(f"{path}: c.yaml: ") for record in caplog.records]
    assert len(said) == 5
    assert said[0] == "deviceType = 'gpu' changes nothing here: archives are executed on the CPU"
    assert said[1].startswith("maxRetryTimeoutInSec = 10 changes nothing here")
    assert said[2] == "batchsize is no setting that is known; did you mean batchSize?"
    assert said[3].startswith("parallelType = 'pp' changes nothing")
    assert said[4] == "limit is no setting that is known, and is left to the handler"


def nested(levels: int) -> list[Any]:
    """Return what a few lines of YAML with aliases stand for; no memory could hold it in words."""
    value: list[Any] = ["x"] * 10
    for _ in range(levels):
        value = [value] * 10
    return value


@pytest.mark.parametrize("value", [nested(12), {"a": nested(12)}, 1 << 20000], ids=["list", "map", "number"])
def test_a_value_that_is_endless_in_words_is_named_in_a_few(value: Any) -> None:
    [said] = remarks({"deviceIds": value}, frozenset(), is_handlers=True)
    assert len(said) < 150
    with pytest.raises(InvalidInput, match="batchSize") as caught:
        settings_of({"batchSize": [value]}, "m")
    assert len(str(caught.value)) < 150


@pytest.mark.parametrize(
    "document",
    [
        *({"batchSize": "many"}, {"batchSize": True}, {"batchSize": 10**10}),
        *({"maxBatchDelay": -1}, {"maxBatchDelay": float("nan")}, {"responseTimeout": float("inf")}),
    ],
)
def test_a_wrong_configuration_is_named(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="m: "):
        settings_of(document, "m")


def test_limits_that_contradict_each_other_are_named() -> None:
    with pytest.raises(InvalidInput, match="less than min_workers"):
        under(ModelSettings(), {"min_workers": 3, "max_workers": 2}, "m")


def tiny_wheel() -> bytes:
    """A package with one module, as a wheel."""
    info = "tiny_package-1.0.dist-info"
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as wheel:
        wheel.writestr("tiny_package.py", "answer = 42\n")
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return data.getvalue()


def test_packages_are_refused_ignored_or_installed_beside_the_archive(tmp_path: Path) -> None:
    model = {**MANIFEST["model"], "requirementsFile": "requirements.txt"}  # type: ignore[dict-item]
    name = "tiny_package-1.0-py3-none-any.whl"
    wanted = f"--no-index\n./{name}\n".encode()
    files = {"MAR-INF/MANIFEST.json": json.dumps({"model": model}).encode(), "requirements.txt": wanted}
    (source,) = find_models(zipped(tmp_path / "m.mar", {**files, name: tiny_wheel()}))
    with pytest.raises(InvalidInput, match="not allowed"):
        unpacked(source, "refuse")
    assert not (unpacked(source, "ignore").path / "partita-packages").exists()
    assert (unpacked(source, "install").path / "partita-packages" / "tiny_package.py").is_file()


def test_a_default_handler_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="image_classifier"):
        find_handler(tmp_path, "image_clasifier")
    (tmp_path / "wants.py").write_text("import torchtext\n")
    with pytest.raises(MissingExtra, match="pip install torchtext"):
        find_handler(tmp_path, "wants.py")
    (tmp_path / "breaks.py").write_text("x = 1 / 0\n")
    with pytest.raises(LoadFailed, match=r"breaks\.py:1"):
        find_handler(tmp_path, "breaks.py")


# --- fetching -------------------------------------------------------------------------------------


class Files(BaseHTTPRequestHandler):
    """Answers archives, redirects and errors by the path."""

    protocol_version = "HTTP/1.0"

    def do_GET(self) -> None:
        match self.path.strip("/").split("/"):
            case ["m.mar"]:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"x" * 1000)
            case ["local", _]:
                self.send_response(302)
                self.send_header("Location", "/m.mar")
                self.end_headers()
            case ["nowhere", _]:
                self.send_response(302)
                self.send_header("Location", "http://[here/m.mar")
                self.end_headers()
            case ["short" | "unsaid" as which, _]:
                self.send_response(200)
                self.send_header("Content-Length", "1000" if which == "short" else "many")
                self.end_headers()
                self.wfile.write(b"x" * 500)
            case _:
                self.send_response(404)
                self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def files() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_allowed_url_is_fetched(files: str, tmp_path: Path) -> None:
    place = fetch(f"{files}/m.mar", (f"{files}/.*",), tmp_path)
    assert (place.name, place.read_bytes()) == ("m.mar", b"x" * 1000)
    (tmp_path / "own.mar").write_bytes(b"own")
    assert fetch(f"file://{tmp_path}/own.mar", ("file://.*",), tmp_path).read_bytes() == b"own"


REFUSED = {
    "nothing is allowed": ("{}/m.mar", (), "does not match any allowed"),
    "only the beginning matches": ("{}/m.mar", ("http://127",), "does not match any allowed"),
    "no archive's name": ("{}/m.exe", (".*",), "not named as an archive"),
    "up and away": ("{}/a/%2e%2e/m.mar", (".*",), "not allowed"),
    "somebody's name": ("http://me:secret@127.0.0.1/m.mar", (".*",), "not allowed"),
    "another scheme": ("ftp://127.0.0.1/m.mar", (".*",), "only http"),
    "not there": ("{}/no.mar", (".*",), "status 404"),
    "a redirect to our own network": ("{}/local/m.mar", (".*",), "private address"),
    "no such file": ("file:///nowhere/m.mar", (".*",), "no file here"),
    "no name of a file": (f"file:///{'a' * 5000}.mar", (".*",), "no file here"),
    "no name of a host": (f"http://{'a' * 70}.net/m.mar", (".*",), "label"),
    "a redirect to no place": ("{}/nowhere/m.mar", (".*",), "leads to"),
    "half of it": ("{}/short/m.mar", (".*",), "ended after 500 of 1000 bytes"),
}


@pytest.mark.parametrize(("url", "allowed", "says"), REFUSED.values(), ids=REFUSED)
def test_what_may_not_be_fetched(
    url: str, allowed: tuple[str, ...], says: str, files: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        fetch(url.format(files), allowed, tmp_path)
    assert (caught.value.code == "download_failed") == str(caught.value).startswith("Failed to download")
    assert list(tmp_path.iterdir()) == []


def test_a_length_that_is_no_number_counts_for_nothing(files: str, tmp_path: Path) -> None:
    assert fetch(f"{files}/unsaid/m.mar", (".*",), tmp_path).read_bytes() == b"x" * 500


def test_what_is_too_large_is_not_kept(files: str, tmp_path: Path) -> None:
    for path, most in (("m.mar", 999), ("short/m.mar", 999)):
        with pytest.raises(InvalidInput, match="larger than 999"):
            fetch(f"{files}/{path}", (".*",), tmp_path, max_bytes=most)
    assert list(tmp_path.iterdir()) == []
