"""Are the default settings of runtimes and of workers' processes those that win here? A B A B.

A is a runtime as Partita sets it up, B the same with one setting changed, each as one worker with all cores.
A default that a change beats by more than 3 %, with its whole interval, is the wrong one for this machine.

    python -m benchmarks.runtime_settings --quick
    python -m benchmarks.runtime_settings --resume benchmarks/results/settings.json --within 250
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.compare import MIN_ALTERNATIONS, Comparison
from benchmarks.figures import Figure, load_average, options, report
from benchmarks.pairs import Pairs
from benchmarks.race import Race
from benchmarks.runtimes import CACHE
from benchmarks.torch_models import torch_model_path
from partita.choosing import with_candidate
from partita.core.choice import Candidate
from partita.core.plan import InstanceSpec, Plan
from partita.core.topology import Topology
from partita.engine.instance import ModelLaunch
from partita.launching import launch_of
from partita.planning.placement import place
from partita.sources import ModelSource, find_models
from partita.system.allocators import installed_allocators
from partita.system.cpus import read_topology, select_cores

ITEMS = 4
LEAST = 0.97

PLAIN: dict[str, str | int | float | bool] = {"allocator": "plain"}
CHANGES: dict[str, tuple[Candidate, ...]] = {
    "onnxruntime": (
        Candidate(runtime="onnxruntime", process=PLAIN),
        Candidate(runtime="onnxruntime", process={"huge_pages": True}),
        Candidate(runtime="onnxruntime", options={"spin": False}),
        Candidate(runtime="onnxruntime", options={"mem_pattern": False}),
        Candidate(runtime="onnxruntime", options={"arena": False}),
        Candidate(runtime="onnxruntime", options={"optimization": "extended"}),
        Candidate(runtime="onnxruntime", options={"denormals_as_zero": True}),
        Candidate(runtime="onnxruntime", options={"all_rows": True}),
    ),
    "openvino": (
        Candidate(runtime="openvino", process=PLAIN),
        Candidate(runtime="openvino", options={"hint": "throughput"}),
        Candidate(runtime="openvino", options={"streams": 2}),
        Candidate(runtime="openvino", options={"all_rows": True}),
    ),
    "torch-script": (
        Candidate(runtime="torch-script", process=PLAIN),
        Candidate(runtime="torch-script", process={"openmp_wait": "passive"}),
        Candidate(runtime="torch-script", process={"openmp_bind": "close"}),
        Candidate(runtime="torch-script", options={"freeze": False}),
    ),
}
"""One setting changed each, by runtime. Threads that always spin (``openmp_wait = "active"``) cannot be
compared side by side: they take the cores from whatever else is measured."""


def changes(runtime: str) -> tuple[Candidate, ...]:
    """Return what is compared with the defaults, other allocators that are installed among it."""
    others = [Candidate(runtime=runtime, process={"allocator": name}) for name in installed_allocators()]
    return (*CHANGES[runtime], *others)


def contest(
    name: str, path: Path, runtime: str, cores: Sequence[int], topology: Topology, pairs: Pairs, wanted: int
) -> list[Comparison]:
    """Return one comparison for each change: its time ÷ that of the defaults."""
    (source,) = find_models(path)
    source = replace(source, settings=msgspec.structs.replace(source.settings, runtime=runtime))
    one = InstanceSpec(threads=len(cores), batch=ITEMS)
    plan = place(Plan(instances=(one,), cores=len(cores), batch=ITEMS), topology, cores=cores)
    found = []
    with Race(path, largest=ITEMS, launch=_launch(source, Candidate(runtime=runtime))) as usual:
        for change in changes(runtime):
            with Race(path, largest=ITEMS, launch=_launch(source, change)) as changed:
                about = f"{name}, {change.key} ÷ defaults"
                sides = partial(usual.turn_ms, plan), partial(changed.turn_ms, plan)
                compared = pairs.run(about, *sides, wanted, unit="ms")
            if compared is not None:
                print(compared, flush=True)
                found.append(compared)
    return found


def _launch(source: ModelSource, candidate: Candidate) -> ModelLaunch:
    return launch_of(with_candidate(source, candidate))


def figures_of(compared: Sequence[Comparison]) -> list[Figure]:
    """Return one figure for each change."""
    return [
        Figure(
            name=one.name,
            figure=f"{one.ratio:.2f} [{one.low:.2f}, {one.high:.2f}]",
            bar=f"not wholly below {LEAST:g}",
            passed=one.high >= LEAST,
            details={"defaults_ms": one.a, "changed_ms": one.b},
        )
        for one in compared
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "runtime_settings")
    parser.add_argument("--models", default="resnet50", help="resnet50, bert_base, or both with a comma")
    parser.add_argument("--runtimes", default=",".join(CHANGES))
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep the alternations and go on there")
    parser.add_argument("--within", type=float, metavar="S", help="end after about so many seconds")
    given = parser.parse_args(argv)
    os.environ["PARTITA_CACHE_DIR"] = str(CACHE / "all")
    print(load_average(), flush=True)
    topology = read_topology()
    cores = select_cores(topology, None)
    pairs, wanted = (
        Pairs(given.resume, given.within),
        MIN_ALTERNATIONS // 2 if given.quick else MIN_ALTERNATIONS,
    )
    compared = []
    for name in given.models.split(","):
        for runtime in given.runtimes.split(","):
            compared += contest(name, torch_model_path(name), runtime, cores, topology, pairs, wanted)
    return report("runtime_settings", figures_of(compared), given.json)


if __name__ == "__main__":
    sys.exit(main())
