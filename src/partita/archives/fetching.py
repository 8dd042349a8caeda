"""Fetching an archive from a URL that the server's owner allows.

A URL must match one of the allowed expressions as a whole; with none, as is the default, nothing is fetched.
So must whatever it redirects to, and that may not be a private address: an allowed server must not be able to
send us to our own network. The address that was looked at is the one that is connected to.
"""

import http.client
import ipaddress
import re
import shutil
import socket
import ssl
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import SplitResult, unquote, urljoin, urlsplit

from partita.archives.containers import SUFFIXES
from partita.core.errors import DownloadFailed, InvalidInput

MAX_REDIRECTS = 5
MAX_BYTES = 16 << 30
TIMEOUT_S = 60.0
_CHUNK_BYTES = 1 << 20
_FAILED = "Failed to download archive from"


def fetch(url: str, allowed: Sequence[str], folder: Path, max_bytes: int = MAX_BYTES) -> Path:
    """Return a file of our own with what a URL gives. Raises `InvalidInput` that says why it may not be
    fetched, `DownloadFailed` why it could not.
    """
    for redirects in range(MAX_REDIRECTS + 1):
        parts = _checked(url, allowed)
        if parts.scheme == "file":
            return _local(url, parts)
        found = _get(url, parts, folder, max_bytes, may_be_private=not redirects)
        if isinstance(found, Path):
            return found
        url = _led(url, found)
    raise DownloadFailed(f"{_FAILED}: {url[:200]} (it redirects more than {MAX_REDIRECTS} times)")


def _checked(url: str, allowed: Sequence[str]) -> SplitResult:
    shown = url[:200]
    if not any(re.fullmatch(expression, url) for expression in allowed):
        raise InvalidInput(f"Given URL {shown} does not match any allowed URL(s)")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise InvalidInput(f"{shown} is no URL: {error}") from None
    if ".." in unquote(parts.path).split("/") or parts.username is not None:
        raise InvalidInput(f"Given URL {shown} is not allowed: it has a .. or a user's name in it")
    if parts.scheme not in ("http", "https", "file"):
        raise InvalidInput(f"{shown}: only http, https and file are known")
    if not _name(parts).endswith(SUFFIXES):
        raise InvalidInput(f"{shown} is not named as an archive is: {', '.join(SUFFIXES)}")
    return parts


def _led(url: str, to: str) -> str:
    """Return where a redirect leads."""
    try:
        return urljoin(url, to)
    except ValueError as error:
        raise DownloadFailed(f"{_FAILED}: {url[:200]} (it leads to {to[:200]}: {error})") from None


def _name(parts: SplitResult) -> str:
    return unquote(parts.path).rsplit("/", maxsplit=1)[-1]


def _local(url: str, parts: SplitResult) -> Path:
    path = Path(unquote(parts.path))
    with suppress(OSError):  # a name that is too long
        if parts.netloc in ("", "localhost") and path.is_file():
            return path
    raise DownloadFailed(f"{_FAILED}: {url[:200]} (there is no file here)")


def _get(url: str, parts: SplitResult, folder: Path, max_bytes: int, *, may_be_private: bool) -> Path | str:
    """Return the file, or where it is said to be."""
    host = parts.hostname or ""
    port = parts.port or (443 if parts.scheme == "https" else 80)
    shown = url[:200]
    try:
        with closing(_connection(parts, host, port, may_be_private=may_be_private)) as connection:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", target, headers={"Accept": "*/*", "User-Agent": "partita"})
            with connection.getresponse() as answer:
                if answer.status in (301, 302, 303, 307, 308):
                    return answer.getheader("Location") or ""
                if answer.status != 200:
                    raise DownloadFailed(f"{_FAILED}: {shown} (status {answer.status})")
                return _saved(answer, folder, _name(parts), shown, max_bytes)
    except (OSError, UnicodeError, http.client.HTTPException) as error:  # no host can be named so
        raise DownloadFailed(f"{_FAILED}: {shown} ({error})") from None


def _connection(
    parts: SplitResult, host: str, port: int, *, may_be_private: bool
) -> http.client.HTTPConnection:
    """Return a connection to an address of the host that was checked, whatever its name means next."""
    address = _address(host, port, may_be_private=may_be_private)
    own: http.client.HTTPConnection = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    own.sock = socket.create_connection((address, port), TIMEOUT_S)
    if parts.scheme == "https":
        context = ssl.create_default_context()
        own.sock = context.wrap_socket(own.sock, server_hostname=host)
    return own


def _address(host: str, port: int, *, may_be_private: bool) -> str:
    found = [str(info[4][0]) for info in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    public = [address for address in found if ipaddress.ip_address(address.partition("%")[0]).is_global]
    if may_be_private:
        return found[0]
    if len(public) < len(found):
        raise InvalidInput(f"a redirect leads to {host}, which is a private address")
    return public[0]


def _saved(answer: http.client.HTTPResponse, folder: Path, name: str, shown: str, max_bytes: int) -> Path:
    """Write the answer into a folder of its own, of which nothing is left if it does not come as a whole."""
    expected = answer.length  # None where the server does not say
    place = Path(tempfile.mkdtemp(dir=folder)) / name
    written = 0
    try:
        if (expected or 0) > max_bytes:
            raise DownloadFailed(f"{_FAILED}: {shown} (it is larger than {max_bytes} bytes)")
        with place.open("wb") as file:
            while chunk := answer.read(_CHUNK_BYTES):
                written += len(chunk)
                if written > max_bytes:
                    raise DownloadFailed(f"{_FAILED}: {shown} (it is larger than {max_bytes} bytes)")
                file.write(chunk)
        if expected is not None and written < expected:
            raise DownloadFailed(f"{_FAILED}: {shown} (it ended after {written} of {expected} bytes)")
    except BaseException:
        shutil.rmtree(place.parent, ignore_errors=True)
        raise
    return place
