"""What the CPU's instructions are, by the kernel's names."""

from pathlib import Path

from partita.system.cgroups import ROOT, read_text


def instructions(root: Path = ROOT) -> frozenset[str]:
    """Return what instructions the CPUs have, such as ``avx512_vnni``; none where it is not told."""
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
