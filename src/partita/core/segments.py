"""Segments: the pieces that a large request is cut into (ensembles paper, §II)."""


def segment_count(n_items: int, size: int) -> int:
    """Return how many segments of `size` items n items make; the last may be shorter."""
    return -(-n_items // size)


def segment_rows(segment: int, size: int, n_items: int) -> slice:
    """Return the items of segment s: s·N up to, and without, min((s + 1)·N, n)."""
    return slice(segment * size, min((segment + 1) * size, n_items))
