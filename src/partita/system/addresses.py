"""Where to listen, ``HOST:PORT``, and where pages come from, ``SCHEME://HOST:PORT``."""

import re
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address

from partita.core.errors import InvalidInput

_ORIGIN = re.compile(r"([a-z][a-z0-9+.-]*)://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_PORTS = {"http": 80, "https": 443}
"""Ports that browsers leave out of an origin."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a TCP port; port 0 lets the system choose a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "Address":
        """Read ``HOST:PORT``, ``[IPv6]:PORT``, or ``:PORT`` on loopback; raises `InvalidInput`."""
        host, colon, port = text.strip().rpartition(":")
        host = host.removeprefix("[").removesuffix("]") if host.startswith("[") else host
        bare_v6 = ":" in host and not text.strip().startswith("[")
        if not colon or bare_v6 or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
            raise InvalidInput(f"{text!r} is not HOST:PORT; write e.g. 127.0.0.1:8080 or [::1]:8080")
        return cls(host or "127.0.0.1", int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect; a name other than ``localhost`` is taken as not."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_origin(text: str) -> str:
    """Read ``SCHEME://HOST`` or ``SCHEME://HOST:PORT``; raises `InvalidInput`.

    Returns it as browsers write it: in lower case, without the port that goes without saying.
    """
    match = _ORIGIN.fullmatch(text.lower())
    try:
        if match is None:
            raise ValueError
        scheme, host, port = match.groups()
        if host.startswith("["):
            host = f"[{IPv6Address(host[1:-1])}]"
        number = None if port is None else int(port)
        if number is not None and number > 65535:
            raise ValueError
    except ValueError:
        raise InvalidInput(f"{text!r} is not SCHEME://HOST or SCHEME://HOST:PORT") from None
    return f"{scheme}://{host}" if number in (None, _PORTS.get(scheme)) else f"{scheme}://{host}:{number}"
