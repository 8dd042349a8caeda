"""Memory allocators that a worker can be started with, instead of the C library's as it is."""

from pathlib import Path

from partita.core.errors import InvalidInput
from partita.core.process_settings import ProcessSettings

KEEP, PLAIN = "keep", "plain"
_PLACES = ("usr/lib/*-linux-gnu", "usr/lib64", "usr/local/lib", "usr/lib", "lib64", "opt/*/lib")
_LIBRARIES = {"jemalloc": ("libjemalloc.so*",), "tcmalloc": ("libtcmalloc_minimal.so*", "libtcmalloc.so*")}
_KEEPING = {
    # glibc keeps what was freed: large activations are not mapped and zeroed anew for every batch.
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_ARENA_MAX": "2",
}


def installed_allocators(root: Path = Path("/")) -> dict[str, Path]:
    """Return the libraries of other allocators on this machine, by name."""
    found: dict[str, Path] = {}
    for name, patterns in _LIBRARIES.items():
        files = [
            file for pattern in patterns for place in _PLACES for file in root.glob(f"{place}/{pattern}")
        ]
        if files:
            found[name] = min(files, key=lambda file: len(file.name))
    return found


def allocator_environment(settings: ProcessSettings) -> dict[str, str]:
    """Return the variables that start a process with this allocator.

    Raises `InvalidInput` for one that is not on this machine.
    """
    env: dict[str, str] = {}
    if settings.allocator == KEEP:
        env.update(_KEEPING)
    elif settings.allocator != PLAIN:
        env["LD_PRELOAD"] = str(_library(settings.allocator))
    if settings.huge_pages:
        env["GLIBC_TUNABLES"] = "glibc.malloc.hugetlb=1"
    return env


def _library(allocator: str) -> Path:
    if allocator.startswith("/"):
        if (path := Path(allocator)).is_file():
            return path
        raise InvalidInput(f"process.allocator: there is no file {allocator}")
    installed = installed_allocators()
    if allocator in installed:
        return installed[allocator]
    if allocator in _LIBRARIES:
        raise InvalidInput(
            f"process.allocator: {allocator} is not installed here; install it, or give a library's path"
        )
    known = ", ".join([KEEP, PLAIN, *_LIBRARIES])
    raise InvalidInput(f"process.allocator = {allocator!r} is none of {known}, and no absolute path")
