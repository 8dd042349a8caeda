"""Keys as the document that TorchServe's users know: ``key_file.json``."""

from datetime import UTC, datetime
from typing import Any

from partita.protocols.access import Key, Keys


def key_document(keys: Keys) -> dict[str, Any]:
    """Return the document of all keys."""
    return {**{kind: key_entry(key) for kind, key in keys.current.items()}, "API": {"key": keys.api.value}}


def key_entry(key: Key) -> dict[str, str]:
    """Return one key's entry."""
    entry = {"key": key.value}
    if key.expires_s is not None:
        entry["expiration time"] = (
            datetime.fromtimestamp(key.expires_s, UTC).isoformat().replace("+00:00", "Z")
        )
    return entry
