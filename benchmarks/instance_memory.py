"""What a second instance of a 100 MB model costs in each runtime: memory that it shares with nobody.

It is of dense layers in all of them, and a ResNet-50 in ONNX Runtime beside them.

Every instance has one core and has answered batches. The first one's private memory is read before the second
starts; then both are alive, and what both hold of the same file is shared.

    python -m benchmarks.instance_memory
"""

import json
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx
import torch
from safetensors.torch import save_file

from benchmarks.figures import Figure, options, report
from benchmarks.models import model_path
from partita.core.choice import Option
from partita.core.tensors import DataType, TensorSpec
from partita.engine.engine import WORKER_ARGV
from partita.engine.instance import ModelLaunch
from partita.profiling.inputs import calibration
from partita.profiling.solo import InputRows, SoloWorker
from partita.system.cpus import read_topology, select_cores
from partita.system.memory import private_bytes

BAR = 0.5
WIDTH, LAYERS = 2240, 5
"""100 MB of weights."""
FACTORY = f"""
import torch

def build():
    return torch.nn.Sequential(*(torch.nn.Linear({WIDTH}, {WIDTH}) for _ in range({LAYERS})))
"""
_MB = 1e6

Case = tuple[str, Path, Mapping[str, Option]]


def make(folder: Path) -> list[Case]:
    """Write the model in all formats; returns (runtime, file, options)."""
    torch.manual_seed(0)
    module = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).eval()
    save_file(module.state_dict(), folder / "weights.safetensors")
    (folder / "network.py").write_text(FACTORY)
    example = torch.zeros((2, WIDTH))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        document = {"inputs": {"input": {"shape": [-1, WIDTH], "datatype": "FP32"}}}
        script = torch.jit.script(module)
        torch.jit.save(script, folder / "script.pt", _extra_files={"partita.json": json.dumps(document)})
        axes = {"input": {0: "batch"}, "output": {0: "batch"}}
        names = {"input_names": ["input"], "output_names": ["output"]}
        torch.onnx.export(
            script, (example,), str(folder / "one.onnx"), dynamo=False, dynamic_axes=axes, **names
        )
        batch = torch.export.Dim("batch")
        program = torch.export.export(module, (example,), dynamic_shapes=({0: batch},))
        torch.export.save(program, folder / "program.pt2")
    onnx.save(
        onnx.load(folder / "one.onnx"),
        folder / "apart.onnx",
        save_as_external_data=True,
        location="apart.data",
    )
    return [
        ("torch-eager", folder / "weights.safetensors", {"factory": "network.py:build"}),
        ("torch-eager", folder / "program.pt2", {}),
        ("torch-script", folder / "script.pt", {}),
        ("onnxruntime", folder / "one.onnx", {}),
        ("onnxruntime", folder / "apart.onnx", {}),
        ("onnxruntime", folder / "one.onnx", {"share_weights": True}),
        ("onnxruntime", model_path("resnet50"), {}),
        ("openvino", folder / "one.onnx", {}),
        ("openvino", folder / "apart.onnx", {}),
    ]


def measured(case: Case) -> tuple[int, int, int]:
    """Return private bytes: of the first alone, then with both alive of the first and of the second."""
    runtime, path, given = case
    launch = ModelLaunch(
        name=path.stem,
        path=str(path),
        runtime=runtime,
        options=dict(given),
        load_limit_s=600.0,
        inputs=(TensorSpec("input", DataType.FP32, (WIDTH,)),) if path.suffix == ".safetensors" else None,
    )
    cores = select_cores(read_topology(), None)
    rows = InputRows(1 << 26)
    try:
        with _worked(launch, cores[0], rows) as first:
            alone = _private(first)
            with _worked(launch, cores[-1], rows) as second:
                return alone, _private(first), _private(second)
    finally:
        rows.close()


@contextmanager
def _worked(launch: ModelLaunch, core: int, rows: InputRows) -> Iterator[SoloWorker]:
    """Yield a worker that has answered a few batches."""
    worker = SoloWorker(launch, cores=(core,), argv=WORKER_ARGV, inputs=rows.memory, execution_limit_s=60.0)
    try:
        rows.use(calibration(worker.until_ready().signature).items, largest=8)
        for count in (1, 8, 1):
            worker.run(rows.batch(count))
        yield worker
    finally:
        worker.kill()


def _said(given: Mapping[str, Option]) -> str:
    return "".join(f", {key}" for key, value in given.items() if value is True)


def _private(worker: SoloWorker) -> int:
    found = private_bytes(worker.pid)
    assert found is not None
    return found


def main(argv: Sequence[str] | None = None) -> int:
    given = options(__doc__, "instance_memory").parse_args(argv)
    figures, shares = [], []
    with TemporaryDirectory() as folder:
        os.environ["PARTITA_CACHE_DIR"] = str(Path(folder) / "cache")
        for case in make(Path(folder)):
            alone, first, second = measured(case)
            shares.append(second / alone)
            figures.append(
                Figure(
                    name=f"{case[0]}, {case[1].name}{_said(case[2])}: private MB of the second ÷ the first",
                    figure=f"{second / _MB:.0f} ÷ {alone / _MB:.0f} = {second / alone:.0%}",
                    bar="",
                    passed=None,
                    details={"alone": alone, "first_of_two": first, "second_of_two": second},
                )
            )
            print(figures[-1].name, figures[-1].figure, flush=True)
    best = min(shares)
    figures.append(
        Figure(name="the least of them", figure=f"{best:.0%}", bar=f"≤ {BAR:.0%}", passed=best <= BAR)
    )
    return report("instance_memory", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
