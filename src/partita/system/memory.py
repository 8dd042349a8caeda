"""Memory of the machine and of processes, bytes."""

import os
from pathlib import Path

from partita.system.cgroups import ROOT, memory_headroom, read_text


def total_bytes(root: Path = ROOT) -> int | None:
    """Return the machine's memory, None where the system does not say. Control groups not counted."""
    return _meminfo(root, "MemTotal")


def available_bytes(root: Path = ROOT) -> int | None:
    """Return what can still be taken: available memory or what the control groups leave, the less."""
    known = [free for free in (_meminfo(root, "MemAvailable"), memory_headroom(root)) if free is not None]
    return min(known, default=None)


def resident_bytes(pid: int, root: Path = ROOT) -> int | None:
    """Return the resident memory of a process, shared mappings included; None when it is gone."""
    fields = (read_text(root / f"proc/{pid}/statm") or "").split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE") if len(fields) > 1 else None


def private_bytes(pid: int, root: Path = ROOT) -> int | None:
    """Return the memory of a process that no other process shares; None when it is gone or not ours."""
    found = [
        int(line.split()[1]) * 1024
        for line in (read_text(root / f"proc/{pid}/smaps_rollup") or "").splitlines()
        if line.startswith(("Private_Clean:", "Private_Dirty:"))
    ]
    return sum(found) if found else None


def _meminfo(root: Path, name: str) -> int | None:
    for line in (read_text(root / "proc/meminfo") or "").splitlines():
        key, _, value = line.partition(":")
        fields = value.split()
        if key == name and fields and fields[0].isdecimal():
            return int(fields[0]) * 1024
    return None
