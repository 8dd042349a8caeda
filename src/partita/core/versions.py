"""Which versions of a model are served at once, as a value, and what order versions have."""

from typing import Annotated, Literal

import msgspec

Version = Annotated[int, msgspec.Meta(ge=1)]


class LatestVersions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The highest so many."""

    latest: Version = 1


Versions = Literal["all"] | LatestVersions | tuple[Version, ...]
"""All there are, the highest few, or these."""


def version_order(version: str) -> tuple[int, str]:
    """Return what versions are sorted by: numbers as numbers, and what is none before them."""
    head = version.partition(".")[0]
    return (int(head) if head.isdecimal() else -1), version
