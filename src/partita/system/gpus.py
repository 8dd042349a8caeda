"""The GPUs of this machine, asked of the driver: nothing numeric is imported for it."""

import csv
import shutil
import subprocess
from pathlib import Path

from partita.core.devices import MIB

ASK = ("--query-gpu=index,memory.total", "--format=csv,noheader,nounits")
_LIMIT_S = 10.0


def gpu_memory(root: Path = Path("/"), command: str = "nvidia-smi") -> dict[int, int | None]:
    """Return the memory in bytes of every NVIDIA GPU by its number; {} on a machine without any.

    ``nvidia-smi`` is asked; where it is missing or fails, GPUs are counted below ``/proc/driver/nvidia`` of
    `root`, and their memory is None: not known.
    """
    program = shutil.which(command)
    if program is not None:
        try:
            done = subprocess.run(
                [program, *ASK], check=True, capture_output=True, text=True, timeout=_LIMIT_S
            )
            return _parsed(done.stdout)
        except (OSError, subprocess.SubprocessError, ValueError):
            pass
    return dict.fromkeys(range(len(list((root / "proc/driver/nvidia/gpus").glob("*/information")))))


def _parsed(table: str) -> dict[int, int | None]:
    """Read lines of ``index, MiB``; a memory that is not a number is not known. Raises `ValueError`."""
    found: dict[int, int | None] = {}
    for row in csv.reader(table.splitlines(), skipinitialspace=True):
        if row:
            index, memory = row
            found[int(index)] = int(memory) * MIB if memory.strip().isdecimal() else None
    return found
