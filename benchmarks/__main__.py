"""Runs every benchmark that this machine can run, one after another, and sums up which bars are met.

    python -m benchmarks --quick          # a first look, minutes
    python -m benchmarks                  # the figures, on a machine that does nothing else
    python -m benchmarks regret planner   # only these

The figures of each go to ``benchmarks/results/NAME.json``, all of them to ``summary.json``. The exit code is
1 if a benchmark failed or missed a bar.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.figures import Figure, load_average, report
from partita.system.parent import die_with_parent

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One benchmark; `quick` are the arguments that make it short.

    With `may_lack` its status 2 says that this machine lacks what it needs: then it is passed over.
    """

    name: str
    quick: tuple[str, ...] = ("--quick",)
    may_lack: bool = False


ENTRIES = (
    Entry(name="planner"),
    Entry(name="simulation"),
    Entry(name="lazy_replay", quick=()),
    Entry(name="http_small"),
    Entry(name="http_resnet"),
    Entry(name="regret"),
    Entry(name="runtimes"),
    Entry(name="runtime_regret"),
    Entry(name="runtime_settings"),
    Entry(name="openvino_hints"),
    Entry(name="instance_memory", quick=()),
    Entry(name="second_start"),
    Entry(name="ensembles"),
    Entry(name="chaos"),
    Entry(name="switches"),
    Entry(name="loading"),
    Entry(name="background"),
    Entry(name="endurance"),
    Entry(name="spinning"),
    Entry(name="torchserve"),
    Entry(name="fuzz"),
    Entry(name="counters"),
    Entry(name="sixteen_cores", quick=("--quick", "--cores", "2"), may_lack=True),
    Entry(name="gpu_ensemble", may_lack=True),
)


def run(entry: Entry, *, quick: bool, folder: Path) -> list[Figure]:
    """Run one benchmark in a process of its own and return its figures."""
    file = folder / f"{entry.name}.json"
    file.unlink(missing_ok=True)
    argv = [sys.executable, "-m", f"benchmarks.{entry.name}", "--json", str(file)]
    done = subprocess.run(
        [*argv, *(entry.quick if quick else ())],
        check=False,
        preexec_fn=partial(die_with_parent, os.getpid()),
    )
    if not file.exists():
        status = done.returncode
        if status == 0:
            return [Figure(name=entry.name, figure="it left no figures", bar="", passed=None)]
        if status == 2 and entry.may_lack:
            return [Figure(name=entry.name, figure="not on this machine: see above", bar="", passed=None)]
        return [Figure(name=entry.name, figure=f"failed with status {status}", bar="", passed=False)]
    return read(entry.name, json.loads(file.read_text(encoding="utf-8")), passed=done.returncode == 0)


def read(name: str, document: Any, *, passed: bool) -> list[Figure]:
    """Return the figures of a benchmark's file; one that has none of its own counts as one figure."""
    if isinstance(document, dict) and isinstance(document.get("figures"), list):
        return [Figure(**one) for one in document["figures"]]
    if isinstance(document, list) and document and all("passed" in one for one in document):
        met = sum(bool(one["passed"]) for one in document)
        text = f"{met} of {len(document)} cases"
        return [Figure(name=name, figure=text, bar="all", passed=met == len(document))]
    return [Figure(name=name, figure="see its file", bar="its own", passed=passed)]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, prog="python -m benchmarks", formatter_class=argparse.RawTextHelpFormatter
    )
    known = [entry.name for entry in ENTRIES if find_spec(f"benchmarks.{entry.name}") is not None]
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes for each")
    parser.add_argument("--output", type=Path, default=RESULTS, metavar="FOLDER")
    given = parser.parse_args(argv)
    if unknown := [name for name in given.names if name not in known]:
        parser.error(f"no benchmark named {', '.join(unknown)}; there are {', '.join(known)}")
    given.output.mkdir(parents=True, exist_ok=True)
    figures: list[Figure] = []
    for entry in ENTRIES:
        if entry.name in known and entry.name in (given.names or known):
            print(f"\n=== {entry.name} ({load_average()})", flush=True)
            figures += run(entry, quick=given.quick, folder=given.output)
    return report("summary", figures, given.output / "summary.json")


if __name__ == "__main__":
    sys.exit(main())
