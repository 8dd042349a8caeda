"""Where to listen: ``HOST:PORT``."""

from dataclasses import dataclass
from ipaddress import ip_address

from partita.core.errors import InvalidInput


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
