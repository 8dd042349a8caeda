"""How fast an ensemble answers, from the executions of its members' workers.

Answers come in bursts where members take turns on a core, so that few of them say little of the rate.
Executions are short and overlap the measured time by a known part. Every item needs one passage through every
member, so that an ensemble whose members spend cₘ seconds on an item and whose workers are busy for u seconds
in a second answers u ÷ Σ cₘ items a second, whoever is ahead just now.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Execution(NamedTuple):
    """One batch that a worker executed: `items` of member `member`, for `busy_s` seconds until `end_s`."""

    member: int
    items: int
    busy_s: float
    end_s: float


def items_per_s(executions: Iterable[Execution], *, members: int, begin_s: float, end_s: float) -> float:
    """Return the rate between two moments; 0 where some member executed nothing.

    Executions before and after count for what an item costs, and those on the border for their part of the
    time in between.
    """
    items = [0] * members
    spent_s = [0.0] * members
    busy_s = 0.0
    for one in executions:
        items[one.member] += one.items
        spent_s[one.member] += one.busy_s
        busy_s += max(0.0, min(one.end_s, end_s) - max(one.end_s - one.busy_s, begin_s))
    if not all(items):
        return 0.0
    per_item_s = sum(s / n for s, n in zip(spent_s, items, strict=True))
    return busy_s / per_item_s / (end_s - begin_s) if per_item_s > 0.0 else 0.0
