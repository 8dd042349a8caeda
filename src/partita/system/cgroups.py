"""What the process's control groups allow: CPU quota, CPU set and memory, versions 1, 2 and both at once.

A limit may sit on any group between the process's own and the root of the mount, so all of them are read
and the least one counts. Everything is read below `root`, so that a test can describe a machine by files.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from partita.system.cpulists import parse_cpu_list

ROOT = Path("/")
_UNLIMITED_BYTES = 1 << 60
"""Version 1 says "no limit" as the largest page-aligned 63-bit number; anything near it means none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Mount:
    """One mounted hierarchy: `inside` is the group that `at` shows, not always the hierarchy's root."""

    at: PurePosixPath
    inside: PurePosixPath
    version: int
    controllers: frozenset[str]


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the CPU seconds per second that the groups allow, None where nothing limits them."""
    quotas = [
        quota
        for directory, version in _directories(root, "cpu")
        if (quota := _quota_v1(directory) if version == 1 else _quota_v2(directory)) is not None
    ]
    return min(quotas, default=None)


def cpu_set(root: Path = ROOT) -> frozenset[int] | None:
    """Return the logical CPUs that the groups allow, None where no group names any."""
    allowed: frozenset[int] | None = None
    for directory, version in _directories(root, "cpuset"):
        names = ("cpuset.effective_cpus", "cpuset.cpus") if version == 1 else ("cpuset.cpus.effective",)
        for text in filter(None, (read_text(directory / name) for name in names)):
            cpus = frozenset(parse_cpu_list(text))
            allowed = cpus if allowed is None else allowed & cpus
            break
    return allowed


def memory_limit(root: Path = ROOT) -> int | None:
    """Return the bytes of memory that the groups allow, None where nothing limits them."""
    return min((limit for _, limit, _ in _memory(root)), default=None)


def memory_headroom(root: Path = ROOT) -> int | None:
    """Return the bytes that may still be taken before some group's limit, None where nothing limits them."""
    return min((max(0, limit - used) for _, limit, used in _memory(root)), default=None)


def read_text(path: Path) -> str | None:
    """Return a small kernel file's text, stripped; None where it is missing, unreadable or empty."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip() or None
    except OSError:
        return None


def _memory(root: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield every group on the way that has a limit, with the limit and its present use, bytes."""
    files = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}
    for directory, version in _directories(root, "memory"):
        limit, used = (_number(read_text(directory / name)) for name in files[version])
        if limit is not None and 0 <= limit < _UNLIMITED_BYTES:
            yield directory, limit, used or 0


def _quota_v1(directory: Path) -> float | None:
    quota_us = _number(read_text(directory / "cpu.cfs_quota_us"))
    period_us = _number(read_text(directory / "cpu.cfs_period_us"))
    return quota_us / period_us if quota_us and period_us and quota_us > 0 and period_us > 0 else None


def _quota_v2(directory: Path) -> float | None:
    fields = (read_text(directory / "cpu.max") or "").split()
    quota_us = _number(fields[0]) if fields else None
    period_us = _number(fields[1]) if len(fields) > 1 else 100_000
    return quota_us / period_us if quota_us and period_us and quota_us > 0 and period_us > 0 else None


def _number(text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        return None


def _directories(root: Path, controller: str) -> Iterator[tuple[Path, int]]:
    """Yield (directory, version) of the process's group and its ancestors wherever `controller` may be."""
    groups = _groups(root)
    for mount in _mounts(root):
        if mount.version == 1 and controller not in mount.controllers:
            continue
        group = groups.get(controller if mount.version == 1 else "")
        if group is not None:
            for shown in _upwards(mount, group):
                yield root / shown.relative_to("/"), mount.version


def _upwards(mount: _Mount, group: PurePosixPath) -> Iterator[PurePosixPath]:
    """Yield the group's directory below the mount and all above it, down to the mount itself.

    A group that the mount does not show (another namespace's, or one written with ``..``) leaves only the
    mount itself, which then is the nearest ancestor that can be seen.
    """
    inside = group.is_relative_to(mount.inside) and ".." not in group.parts
    below = group.relative_to(mount.inside) if inside else PurePosixPath()
    for depth in range(len(below.parts), -1, -1):
        yield mount.at.joinpath(*below.parts[:depth])


def _groups(root: Path) -> dict[str, PurePosixPath]:
    """Return the process's group by controller of version 1, and by ``""`` for version 2."""
    groups: dict[str, PurePosixPath] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and fields[2].startswith("/"):
            groups.update(dict.fromkeys(fields[1].split(","), PurePosixPath(fields[2])))
    return groups


def _mounts(root: Path) -> Iterator[_Mount]:
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        before, separator, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if not separator or len(left) < 5 or len(right) < 3 or right[0] not in ("cgroup", "cgroup2"):
            continue
        yield _Mount(
            at=PurePosixPath(_unescaped(left[4])),
            inside=PurePosixPath(_unescaped(left[3])),
            version=2 if right[0] == "cgroup2" else 1,
            controllers=frozenset(right[2].split(",")),
        )


def _unescaped(field: str) -> str:
    """Undo the octal escapes that mountinfo writes for space, tab, newline and backslash."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)
