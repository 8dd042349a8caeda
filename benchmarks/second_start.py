"""What a second start costs beside the first, where a model is made into something that is kept.

A start is from the first instruction of a worker until it is ready. The first finds an empty cache folder and
compiles, exports or optimizes; the others find what it left there.

    python -m benchmarks.second_start
"""

import os
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

from benchmarks.figures import Figure, options, report
from benchmarks.models import model_path
from benchmarks.torch_models import Separable, Transformer
from partita.core.choice import Option
from partita.engine.engine import WORKER_ARGV
from partita.engine.instance import ModelLaunch
from partita.profiling.solo import InputRows, SoloWorker
from partita.system.cpus import read_topology, select_cores

BAR = 0.25

Case = tuple[str, Path, Mapping[str, Option], bool]


def make(folder: Path) -> list[Case]:
    """Write the models; returns (runtime, file, options, whether it is compiled)."""
    torch.manual_seed(0)
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, module, shape in (
            ("separable", Separable(), (3, 64, 64)),
            ("transformer", Transformer(), (64, 384)),
        ):
            example = (torch.zeros((2, *shape)),)
            program = torch.export.export(module.eval(), example, dynamic_shapes=({0: batch},))
            torch.export.save(program, folder / f"{name}.pt2")
    return [
        ("torch-compile", folder / "separable.pt2", {}, True),
        ("torch-compile", folder / "transformer.pt2", {}, True),
        ("onnxruntime", folder / "transformer.pt2", {}, False),
        ("openvino", folder / "transformer.pt2", {}, False),
        ("onnxruntime", model_path("big_dense"), {"precision": "int8"}, False),
        ("onnxruntime", model_path("resnet50"), {}, False),
        ("openvino", model_path("resnet50"), {}, False),
    ]


def started_s(case: Case) -> float:
    """Start one worker on one core, and end it; returns how long it took to be ready."""
    runtime, path, given, _ = case
    launch = ModelLaunch(
        name=path.stem, path=str(path), runtime=runtime, options=dict(given), load_limit_s=600.0
    )
    core = select_cores(read_topology(), None)[0]
    rows = InputRows(1 << 20)
    try:
        began = time.perf_counter()
        worker = SoloWorker(
            launch, cores=(core,), argv=WORKER_ARGV, inputs=rows.memory, execution_limit_s=60.0
        )
        try:
            worker.until_ready()
            return time.perf_counter() - began
        finally:
            worker.kill()
    finally:
        rows.close()


def measured(case: Case, times: int) -> Figure:
    """Start it with nothing kept, and then some more times."""
    runtime, path, given, is_compiled = case
    with TemporaryDirectory() as cache:
        os.environ["PARTITA_CACHE_DIR"] = cache
        first_s, *others_s = (started_s(case) for _ in range(1 + times))
    share = median(others_s) / first_s
    said = "".join(f", {key} = {value}" for key, value in given.items())
    return Figure(
        name=f"{runtime}, {path.name}{said}: the second start ÷ the first",
        figure=f"{median(others_s):.2f} ÷ {first_s:.2f} s = {share:.0%}",
        bar=f"≤ {BAR:.0%}" if is_compiled else "",
        passed=share <= BAR if is_compiled else None,
        details={"first_s": first_s, "others_s": others_s},
    )


def main(argv: Sequence[str] | None = None) -> int:
    given = options(__doc__, "second_start").parse_args(argv)
    figures = []
    with TemporaryDirectory() as folder:
        cases = make(Path(folder))
        for case in (case for case in cases if not given.quick or case != cases[1]):
            figures.append(measured(case, 2 if given.quick else 5))
            print(figures[-1].name, figures[-1].figure, flush=True)
    return report("second_start", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
