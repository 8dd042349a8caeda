"""Which versions of a model are served at once, as a value, and what order versions have."""

from typing import Annotated, Literal

import msgspec

Version = Annotated[int, msgspec.Meta(ge=1)]


class LatestVersions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The highest so many."""

    latest: Version = 1


Versions = Literal["all"] | LatestVersions | tuple[Version, ...]
"""All there are, the highest few, or these."""


def version_order(version: str) -> tuple[tuple[tuple[int, str], ...], str]:
    """Return what versions are sorted by: part by part, numbers as numbers, and what is none before them."""
    parts = version.split(".")
    return tuple((int(part), "") if part.isdecimal() else (-1, part) for part in parts), version
