"""The GPUs of this machine, asked of the driver: nothing numeric is imported for it."""

import csv
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from partita.core.devices import MIB

_AS_TABLE = "--format=csv,noheader,nounits"
ASK = ("--query-gpu=index,memory.total", _AS_TABLE)
ASK_USE = ("--query-gpu=index,utilization.gpu,memory.used,memory.total", _AS_TABLE)
_LIMIT_S = 10.0


def gpu_memory(
    root: Path = Path("/"), command: str = "nvidia-smi", environ: Mapping[str, str] | None = None
) -> dict[int, int | None]:
    """Return the memory in bytes of every NVIDIA GPU by its number; {} on a machine without any.

    Those that ``CUDA_VISIBLE_DEVICES`` leaves out, by number, do not count.

    ``nvidia-smi`` is asked; where it is missing or fails, GPUs are counted below ``/proc/driver/nvidia`` of
    `root`, and their memory is None: not known.
    """
    program = shutil.which(command)
    if program is not None:
        try:
            done = subprocess.run(
                [program, *ASK], check=True, capture_output=True, text=True, timeout=_LIMIT_S
            )
            return _visible(_parsed(done.stdout), environ)
        except (OSError, subprocess.SubprocessError, ValueError):
            pass
    found = dict.fromkeys(range(len(list((root / "proc/driver/nvidia/gpus").glob("*/information")))))
    return _visible(found, environ)


@dataclass(frozen=True, slots=True)
class GpuUse:
    """What one GPU does at the moment."""

    index: int
    busy_percent: float | None
    """None = the driver does not say; so with the others."""
    used_bytes: int | None
    total_bytes: int | None


def gpus_in_use(command: str = "nvidia-smi") -> tuple[GpuUse, ...]:
    """Return what every NVIDIA GPU does now, by its number; () where there is none, or nobody to ask.

    Takes as long as the driver takes, up to ten seconds: for a thread.
    """
    program = shutil.which(command)
    if program is None:
        return ()
    try:
        done = subprocess.run(
            [program, *ASK_USE], check=True, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S
        )
        return tuple(_uses(done.stdout.decode("utf-8", "replace")))
    except (OSError, subprocess.SubprocessError, ValueError):
        return ()


def _uses(table: str) -> Iterator[GpuUse]:
    """Read lines of ``index, percent, MiB, MiB``. Raises `ValueError`."""
    for row in csv.reader(table.splitlines(), skipinitialspace=True):
        if row:
            index, busy, used, total = (int(field) if field.strip().isdecimal() else None for field in row)
            if index is None:
                raise ValueError(f"{row[0]!r} is not the number of a GPU")
            memory = [None if mib is None else mib * MIB for mib in (used, total)]
            yield GpuUse(index, busy, *memory)


def _visible(found: dict[int, int | None], environ: Mapping[str, str] | None) -> dict[int, int | None]:
    """Return those that whoever started us lets us use."""
    named = (os.environ if environ is None else environ).get("CUDA_VISIBLE_DEVICES")
    numbers = [part.strip() for part in (named or "").split(",") if part.strip()]
    if named is None or not all(part.lstrip("-").isdecimal() for part in numbers):  # as by their UUIDs
        return found
    return {index: memory for index, memory in found.items() if str(index) in numbers}


def _parsed(table: str) -> dict[int, int | None]:
    """Read lines of ``index, MiB``; a memory that is not a number is not known. Raises `ValueError`."""
    found: dict[int, int | None] = {}
    for row in csv.reader(table.splitlines(), skipinitialspace=True):
        if row:
            index, memory = row
            found[int(index)] = int(memory) * MIB if memory.strip().isdecimal() else None
    return found
