"""TLS: certificate and key from files, read again when they were renewed."""

import logging
import os
import ssl
from dataclasses import dataclass
from pathlib import Path

from partita.core.errors import InvalidInput

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateFiles:
    """Where they are, PEM."""

    certificate: Path
    """The server's certificate, followed by those between it and its root."""
    key: Path
    client_ca: Path | None = None
    """Who signs clients' certificates; None = clients need none."""


class Certificate:
    """What is in the files now, as a context that all listeners share."""

    def __init__(self, files: CertificateFiles) -> None:
        """Read the files; raises `InvalidInput`."""
        self.files = files
        self._stamp = self._stamps()
        self.context = self._context()
        self.pem = self._pem()
        """Key and certificate as they were last read, for whoever does not take a context."""
        self.client_ca = None if files.client_ca is None else _read(files.client_ca)

    def _context(self) -> ssl.SSLContext:
        files = self.files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        self._load_into(context)
        if files.client_ca is not None:
            try:
                context.load_verify_locations(files.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise InvalidInput(f"tls_client_ca {files.client_ca}: {_reason(error)}") from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _load_into(self, context: ssl.SSLContext) -> None:
        files = self.files
        for name, path in (("tls_certificate", files.certificate), ("tls_key", files.key)):
            if not path.is_file():
                raise InvalidInput(f"{name}: there is no file {path}")
        try:
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise InvalidInput(
                f"tls_certificate {files.certificate} and tls_key {files.key} are no PEM certificate with "
                f"its key: {_reason(error)}"
            ) from error

    def _pem(self) -> tuple[bytes, bytes]:
        return _read(self.files.key), _read(self.files.certificate)

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in (self.files.certificate, self.files.key))

    def renew(self) -> bool:
        """Read the files again if they have changed; returns whether they had.

        New connections get the new certificate. Files that are no pair (yet) are warned of, and the old
        certificate is kept.
        """
        stamp = self._stamps()
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._load_into(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER))
            self._load_into(self.context)
            self.pem = self._pem()
        except InvalidInput as error:
            log.warning("the old certificate is kept: %s", error)
            return False
        log.info("certificate %s was renewed", self.files.certificate)
        return True


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error


def _no_password() -> str:
    raise ValueError("the key is encrypted; store it without a password, readable by the server alone")


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
