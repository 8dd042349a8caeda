"""The server under load: where it is, and whether it is ours to load."""

import http.client
import json
import time
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from partita.core.errors import InvalidInput, PartitaError
from partita.system.addresses import Address

_TIMEOUT_S = 10.0


class Unreachable(PartitaError):
    """The server does not answer, or not as the protocol says."""

    code = "unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server's address and the path that its routes begin with (empty, or ``/prefix``)."""

    address: Address
    prefix: str = ""

    @classmethod
    def parse(cls, url: str, *, allow_remote: bool = False) -> "Target":
        """Read ``http://HOST:PORT[/PREFIX]`` or ``HOST:PORT``.

        Raises `InvalidInput` for anything else, and for another machine unless that is allowed: load can
        take a service down.
        """
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port or 80
        except ValueError as error:
            raise InvalidInput(f"{url!r}: {error}") from error
        if parts.scheme != "http" or not parts.hostname:
            raise InvalidInput(f"{url!r} is not http://HOST:PORT (https is not spoken here)")
        target = cls(address=Address(parts.hostname, port), prefix=parts.path.rstrip("/"))
        if not (target.address.is_loopback or allow_remote):
            raise InvalidInput(
                f"{target.address} is not this machine; load can take a service down, "
                "so another machine needs --allow-remote"
            )
        return target

    def get_json(self, path: str, timeout_s: float = _TIMEOUT_S) -> Any:
        """Return what ``GET path`` answers; raises `Unreachable` with what the server says."""
        connection = http.client.HTTPConnection(self.address.host, self.address.port, timeout=timeout_s)
        try:
            connection.request("GET", f"{self.prefix}/{path}")
            response = connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"no answer from {self}: {error or type(error).__name__}") from error
        finally:
            connection.close()
        if response.status != 200:
            said = body.decode(errors="replace")[:200]
            raise Unreachable(f"{self} answers {response.status} to GET {self.prefix}/{path}: {said}")
        try:
            return json.loads(body) if body else None
        except ValueError as error:
            raise Unreachable(f"{self} answers GET {self.prefix}/{path} with no JSON") from error

    def wait_ready(self, timeout_s: float) -> None:
        """Return once the server says that it is ready; raises `Unreachable` when it does not in time."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                self.get_json("v2/health/ready", timeout_s=1.0)
                return
            except Unreachable:
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(0.02)

    def __str__(self) -> str:
        return f"http://{self.address}{self.prefix}"
