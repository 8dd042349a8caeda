"""A contest in several runs: its pairs are kept in a file, and a run adds as many as it has time for."""

import json
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.compare import Comparison

Side = Callable[[], float]
HEADROOM = 1.25
"""Of the time that the last pair took, what must be left for another."""


class Pairs:
    """Figures by the contest's name, as (A's, B's); `file` None keeps them in memory alone."""

    def __init__(self, file: Path | None, within_s: float | None) -> None:
        self._file = file
        self._end_s = None if within_s is None else time.monotonic() + within_s
        self._known: dict[str, list[list[float]]] = {}
        if file is not None and file.exists():
            self._known = json.loads(file.read_text(encoding="utf-8"))

    def run(self, name: str, a: Side, b: Side, wanted: int, *, unit: str) -> Comparison | None:
        """Run A B A B … until there are as many pairs as wanted, or no time is left for one more.

        The first pair of every run is thrown away. Returns what all runs have found, None if nothing.
        """
        pairs = self._known.setdefault(name, [])
        took_s, is_warm = 0.0, False
        while len(pairs) < wanted and self._has_time(HEADROOM * took_s):
            begun_s = time.monotonic()
            pair = [a(), b()]
            took_s = time.monotonic() - begun_s
            if is_warm:
                pairs.append(pair)
                self._keep()
            is_warm = True
        return Comparison.of(name, *zip(*pairs, strict=True), unit=unit) if pairs else None

    def _has_time(self, needed_s: float) -> bool:
        return self._end_s is None or time.monotonic() + needed_s < self._end_s

    def _keep(self) -> None:
        if self._file is not None:
            self._file.write_text(json.dumps(self._known), encoding="utf-8")
