"""The order of versions."""

import random

from partita.core.versions import version_order

RISING = ["beta", "1", "1.0", "1.0.1", "1.2", "1.10", "2.rc", "2.0", "10", "10.0"]


def test_versions_are_ordered_part_by_part() -> None:
    for seed in range(5):
        mixed = random.Random(seed).sample(RISING, len(RISING))
        assert sorted(mixed, key=version_order) == RISING
