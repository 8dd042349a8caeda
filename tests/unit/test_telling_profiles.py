"""When a profile that time cut short is good for a plan."""

import pytest

from partita.core.profile import Profile, ProfilePoint
from partita.profiles import is_telling


def profile(*rows: tuple[int, tuple[float, ...]]) -> Profile:
    """Return a profile of batches 1, 2, 4, … of these thread counts."""
    return Profile(
        ProfilePoint(threads=threads, batch=1 << k, mean_ms=ms)
        for threads, times in rows
        for k, ms in enumerate(times)
    )


@pytest.mark.parametrize(
    ("rows", "tells"),
    [
        ([(1, (1.0, 1.5, 2.5, 4.5)), (2, (0.9, 1.2, 1.8, 3.0))], True),
        ([(1, (1.0, 1.5)), (2, (0.9, 1.2, 1.8, 3.0))], False),
        ([(1, (1.0, 1.99)), (2, (0.9, 1.2, 1.8, 3.0))], True),
        ([(1, (1.0,)), (2, (0.9, 1.2, 1.8, 3.0))], False),
        ([(2, (0.9, 1.2, 1.8, 3.0))], False),
    ],
)
def test_all_thread_counts_are_known_up_to_where_batches_gain(
    rows: list[tuple[int, tuple[float, ...]]], tells: bool
) -> None:
    assert is_telling(profile(*rows), 2, 32) is tells


def test_no_more_is_asked_than_the_model_takes() -> None:
    assert is_telling(profile((1, (1.0,)), (2, (0.9,))), 2, 1)
