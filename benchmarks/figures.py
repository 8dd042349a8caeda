"""What a benchmark says in the end: each figure, the bar that it is held to, and whether it is met."""

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measured figure beside its bar. `passed` is None where it could not be judged."""

    name: str
    figure: str
    bar: str
    passed: bool | None
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def verdict(self) -> str:
        """`met`, `missed`, or `skipped`."""
        return "skipped" if self.passed is None else "met" if self.passed else "missed"


def table(figures: Sequence[Figure]) -> str:
    """Return an aligned table, one figure a line."""
    rows = [("what", "figure", "bar", "verdict"), *((f.name, f.figure, f.bar, f.verdict) for f in figures)]
    widths = [max(len(row[k]) for row in rows) for k in range(4)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def load_average() -> str:
    """Return the machine's load over 1 and 5 minutes: who else was at work while we measured."""
    one, five, _ = os.getloadavg()
    return f"load average {one:.2f} (1 min), {five:.2f} (5 min)"


def options(doc: str | None, name: str) -> argparse.ArgumentParser:
    """Return a parser with what every benchmark takes: ``--json FILE`` and ``--quick``."""
    parser = argparse.ArgumentParser(
        description=doc, prog=f"python -m benchmarks.{name}", formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes, for a first look")
    return parser


def report(name: str, figures: Sequence[Figure], file: Path | None) -> int:
    """Print the table, write the file, and return the exit code: 1 if a bar was missed."""
    print(f"\n{name}, {load_average()}\n{table(figures)}", flush=True)
    if file is not None:
        write(name, figures, file)
    return int(any(figure.passed is False for figure in figures))


def write(name: str, figures: Iterable[Figure], file: Path) -> None:
    """Write the figures as one JSON document."""
    document = {"name": name, "load": load_average(), "figures": [asdict(figure) for figure in figures]}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
