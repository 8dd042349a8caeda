"""A core for the head, where the head works as hard as the workers do (Partita's addition to Packrat)."""

from partita.core.profile import Profile

HEAD_REQUEST_MS = 0.03
"""What a request costs the head beside its execution (docs/decisions/0006-a-core-for-the-head.md)."""
LEAST_SHARE = 0.5
"""Share of a core from which on the head gets one."""


def worker_cores(profile: Profile | None, cores: int) -> int:
    """Return how many of a model's cores its instances get: all, or all but one that is left to the head.

    When all cores are busy with requests of one item, h ÷ (h + w) of their time is the head's: h is
    what a request costs it, w the least core time that an item costs a worker.
    """
    if profile is None or not profile.points or cores < 2:
        return cores
    item_ms = min(p.threads * p.mean_ms / p.batch for p in profile.points.values())
    head_cores = cores * HEAD_REQUEST_MS / (HEAD_REQUEST_MS + item_ms)
    return cores - 1 if head_cores >= LEAST_SHARE else cores
