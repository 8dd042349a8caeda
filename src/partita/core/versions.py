"""Which versions of a model are served at once: a policy as a value."""

from typing import Annotated, Literal

import msgspec

Version = Annotated[int, msgspec.Meta(ge=1)]


class LatestVersions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The highest so many."""

    latest: Version = 1


Versions = Literal["all"] | LatestVersions | tuple[Version, ...]
"""All there are, the highest few, or these."""
