"""Who may change the server: keys for the routes that do, and the names that those may be asked by."""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from partita.core.clock import Clock
from partita.core.errors import ForeignCaller, NotAuthorized

KEY_BYTES = 18
KINDS = ("management", "inference")


@dataclass(frozen=True, slots=True)
class Key:
    """One secret, good until a wall-clock time, seconds since 1970; None = for ever."""

    value: str
    expires_s: float | None = None


class Keys:
    """The keys of one server: one for management, one for inference, and one that renews either.

    They are TorchServe's. `fixed` is a management key that a user has chosen; it does not expire.
    """

    def __init__(self, clock: Clock, *, lifetime_s: float, fixed: str | None = None) -> None:
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._fixed = fixed
        self.api = Key(secrets.token_urlsafe(KEY_BYTES))
        self.current = {kind: self._new() for kind in KINDS}
        self.changed: Callable[[], None] = lambda: None
        """Called when a key was renewed."""

    def _new(self) -> Key:
        return Key(secrets.token_urlsafe(KEY_BYTES), self._clock.wall_s() + self._lifetime_s)

    def renew(self, kind: str) -> Key:
        """Replace one of `KINDS` by a new key; the old one is good no longer."""
        key = self.current[kind] = self._new()
        self.changed()
        return key

    def allows(self, kind: str, given: str) -> bool:
        """Whether this is the key of its kind, and has not expired."""
        if kind == "management" and self._fixed is not None and _same(given, self._fixed):
            return True
        key = self.current[kind]
        return _same(given, key.value) and key.expires_s is not None and self._clock.wall_s() < key.expires_s

    def allows_renewal(self, given: str) -> bool:
        """Whether this is the key that renews the others."""
        return _same(given, self.api.value)


def _same(given: str, wanted: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode("utf-8", "replace"))


def bearer(value: str | None) -> str:
    """Return the token of an ``Authorization: Bearer`` header, empty where there is none."""
    scheme, _, token = (value or "").strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What a request must show before it may change anything."""

    keys: Keys | None
    """None = anybody who reaches the port may."""
    hosts: frozenset[str] = frozenset()
    """Names that the server may be called by, besides ``localhost`` and addresses in numbers."""
    origins: frozenset[str] = frozenset()
    """Origins whose pages may ask, besides those of `hosts` and of this machine; ``*`` is every one."""

    def check(self, authorization: str | None, host: str | None = None, origin: str | None = None) -> None:
        """Raise `ForeignCaller` unless ``Host`` and ``Origin`` are good, `NotAuthorized` unless the token is.

        A web page that had its own name point to this address (DNS rebinding) would send that name; one that
        just asks here would send its origin.
        """
        if origin is not None and not self.knows_origin(origin, host):
            raise ForeignCaller(
                f"pages of {origin[:80]!r} may not change this server; add it to cors_origins if they may"
            )
        if host is not None and not self.knows_host(host):
            raise ForeignCaller(
                f"host {host[:80]!r} is not one of this server's; use its address, or add it to allowed_hosts"
            )
        if self.keys is not None and not self.keys.allows("management", bearer(authorization)):
            raise NotAuthorized(
                "the management token is missing, wrong or expired; send it as Authorization: Bearer TOKEN"
            )

    def knows_origin(self, origin: str, host: str | None = None) -> bool:
        """Whether an ``Origin`` header names a place whose pages may change the server asked as `host`.

        An address in numbers proves nothing here: anybody has pages at one. That of this machine does, and
        so does the one that the request itself was sent to.
        """
        if "*" in self.origins or origin in self.origins:
            return True
        _, separator, authority = origin.strip().lower().partition("://")
        if not separator or not authority:
            return False
        if host is not None and authority == host.strip().lower():
            return True
        name = _name_in(authority)
        address = _address(name)
        return name == "localhost" or name in self.hosts or (address is not None and address.is_loopback)

    def knows_host(self, host: str) -> bool:
        """Whether a ``Host`` header names this server: DNS rebinding cannot make it an address."""
        name = _name_in(host.strip().lower())
        return name == "localhost" or name in self.hosts or _address(name) is not None


def _name_in(authority: str) -> str:
    """Return the host of ``HOST:PORT``, without the brackets of IPv6."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0] if authority.count(":") <= 1 else authority


def _address(name: str) -> IPv4Address | IPv6Address | None:
    """Return the address that a host is in numbers, None for a name."""
    try:
        return ip_address(name)
    except ValueError:
        return None
