"""Lists of logical CPUs as the kernel and users write them: ``0-3,8``."""

from collections.abc import Iterable
from itertools import pairwise

from partita.core.errors import InvalidInput

MAX_CPUS = 8192
"""Linux's own upper limit; a larger number is a typing mistake, and expanding it would only use memory."""


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the CPUs of a list such as ``0-3,8``, ascending and each once; raises `InvalidInput`."""
    cpus: set[int] = set()
    for part in text.split(","):
        first, dash, last = (field.strip() for field in part.partition("-"))
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise InvalidInput(
                f"cores {text!r}: {part.strip()!r} is not a CPU number or range; write e.g. 0-3,8"
            )
        low, high = int(first), int(last) if dash else int(first)
        if high < low:
            raise InvalidInput(
                f"cores {text!r}: the range {part.strip()!r} runs backwards; write {high}-{low}"
            )
        if high >= MAX_CPUS:
            raise InvalidInput(f"cores {text!r}: CPU numbers are below {MAX_CPUS}")
        cpus.update(range(low, high + 1))
    return tuple(sorted(cpus))


def format_cpu_list(cpus: Iterable[int]) -> str:
    """Return the shortest list that `parse_cpu_list` reads back as these CPUs; empty for none."""
    ordered = sorted(set(cpus))
    starts = [cpu for i, cpu in enumerate(ordered) if i == 0 or ordered[i - 1] != cpu - 1]
    bounds = [*(ordered.index(start) for start in starts), len(ordered)]
    runs = [ordered[begin:end] for begin, end in pairwise(bounds)]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
