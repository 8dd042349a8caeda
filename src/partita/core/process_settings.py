"""How a worker's process is set up before anything is loaded into it: memory, and threads that wait."""

from typing import Literal

import msgspec

Wait = Literal["", "active", "passive"]
Bind = Literal["", "close", "spread"]


class ProcessSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``[model.NAME] process``. The defaults are those that were fastest where Partita was measured."""

    allocator: str = "keep"
    """``keep``: the C library's, told to keep what was freed; ``plain``: as it is; ``jemalloc``,
    ``tcmalloc``, or the absolute path of another library to load instead."""
    huge_pages: bool = False
    """Whether the C library's allocator asks for transparent huge pages."""
    openmp_wait: Wait = ""
    """Whether OpenMP's threads spin (``active``) or sleep (``passive``) between loops; "" = its default."""
    openmp_bind: Bind = ""
    """Whether OpenMP's threads stay on one core each of the worker's own; "" = they move among them."""
    environment: dict[str, str] = {}
    """Further variables; those of the thread counts are the plan's."""
