"""The key file: how whoever started the server learns its keys."""

import logging
import os
from pathlib import Path

import msgspec

from partita.protocols.access import Keys
from partita.protocols.key_document import key_document

log = logging.getLogger("partita")


class KeyFile:
    """Keeps a file, readable by its owner alone, in step with the keys."""

    def __init__(self, path: Path, keys: Keys) -> None:
        self._path = path.absolute()
        self._keys = keys
        self._written = b""

    def start(self) -> None:
        """Write the file, and again whenever a key is renewed; where that cannot be, only warn."""
        self._keys.changed = self._write
        self._write()

    def _write(self) -> None:
        content = msgspec.json.format(msgspec.json.encode(key_document(self._keys)), indent=2) + b"\n"
        beside = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            beside.unlink(missing_ok=True)
            with os.fdopen(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(content)
            beside.replace(self._path)
        except OSError as error:
            log.warning("the management keys are in no file: cannot write %s: %s", self._path, error.strerror)
        else:
            self._written = content

    def remove(self) -> None:
        """Remove the file, unless another server has written its own there since."""
        try:
            if self._written and self._path.read_bytes() == self._written:
                self._path.unlink()
        except OSError as error:
            log.warning("cannot remove %s: %s", self._path, error.strerror)
