"""A torch model as an ``.onnx`` file, made once and kept: how it reaches ONNX Runtime and OpenVINO."""

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from partita.core.errors import LoadFailed
from partita.core.formats import FACTORY
from partita.core.tensors import DYNAMIC, Signature
from partita.worker.preparing import prepared
from partita.worker.runtimes.interface import LoadRequest

KIND = "onnx"
FILE = "model.onnx"
ALL_ROWS = "all_rows"
OPTIONS = (ALL_ROWS, FACTORY, "output_names", "unpickle_may_run_code")
"""What may be set of a model that is exported, whatever executes it then."""
_OPSET = 17
_FORM = 2
"""Counts what is done to a file once it is exported: one of another form is made anew."""
_SIZES = ((2, 64), (3, 48))
"""Two runs, (items, size of free axes), show which axes of the outputs differ."""


def onnx_file(request: LoadRequest) -> Path:
    """Return the model's ``.onnx`` file: itself, or what was exported of it.

    Raises `InvalidInput`, `MissingExtra` or `LoadFailed`.
    """
    if request.file.suffix not in (".pt", ".pt2", ".pth", ".bin", ".safetensors"):
        return request.file
    about = {key: value for key, value in request.options.items() if key in (*OPTIONS, "batched")}
    only = LoadRequest(path=request.path, model=request.model, options=about, inputs=request.inputs)
    return prepared(KIND, only, _versions(), _FORM, find_spec("onnx") is not None) / FILE


def make(request: LoadRequest, folder: Path) -> None:
    """Export into a folder; raises `InvalidInput`, `MissingExtra`, or `LoadFailed` with torch's reason."""
    import torch

    from partita.worker.runtimes.torch_files import is_script, short

    try:
        with warnings.catch_warnings(), torch.inference_mode():
            warnings.simplefilter("ignore")
            if request.file.suffix == ".pt" and not request.option(FACTORY, "") and is_script(request.file):
                _export_script(request, folder / FILE)
            else:
                _export_program(request, folder / FILE)
        if not request.option(ALL_ROWS, False):
            _narrow(folder / FILE)
    except (MemoryError, ModuleNotFoundError):
        raise
    except Exception as error:
        raise LoadFailed(f"torch cannot export {request.file.name} to ONNX: {short(error)}") from error


def _versions() -> str:
    from importlib import metadata

    return metadata.version("torch")


def _narrow(file: Path) -> None:
    """Leave out the rows that nobody reads. Where that cannot be done, the model is executed as it is."""
    try:
        import onnx

        from partita.worker.runtimes.onnx_narrow import narrow
    except ModuleNotFoundError:  # torch exports its scripts without it
        return
    try:
        model = onnx.load(file, load_external_data=False)
        products = narrow(model)
    except (RuntimeError, ValueError):  # shapes that do not go together, a file of 2 GiB
        return
    if products:
        onnx.save(model, file)


def _export_program(request: LoadRequest, file: Path) -> None:
    import onnxscript  # noqa: F401 torch needs it and says so at length
    import torch

    from partita.worker.runtimes.torch_built import program_of
    from partita.worker.runtimes.torch_program import signature_of

    with torch.inference_mode(mode=False), torch.no_grad():
        program = program_of(request)
        signature = signature_of(program, request)
        torch.onnx.export(
            program,
            (),
            str(file),
            dynamo=True,
            input_names=[spec.name for spec in signature.inputs],
            output_names=[spec.name for spec in signature.outputs],
        )


def _export_script(request: LoadRequest, file: Path) -> None:
    import torch

    from partita.worker.runtimes.torch_script import read_script

    module, inputs = read_script(request)
    signature = Signature(inputs=inputs, outputs=(), batched=request.option("batched", True))
    examples = _examples(signature, *_SIZES[0])
    first, again = (_outputs(module, _examples(signature, *sizes), request) for sizes in _SIZES)
    axes: dict[str, dict[int, str]] = {}
    for spec in signature.inputs:
        names = {
            k + signature.batched: f"{spec.name}_{k}" for k, size in enumerate(spec.shape) if size == DYNAMIC
        }
        axes[spec.name] = {**({0: "batch"} if signature.batched else {}), **names}
    for name, shape in first.items():
        changed = [k for k, (one, other) in enumerate(zip(shape, again[name], strict=True)) if one != other]
        axes[name] = {k: "batch" if k == 0 and signature.batched else f"{name}_{k}" for k in changed}
    torch.onnx.export(
        module,
        examples,
        str(file),
        dynamo=False,
        opset_version=_OPSET,
        input_names=[spec.name for spec in signature.inputs],
        output_names=list(first),
        dynamic_axes=axes,
    )


def _examples(signature: Signature, rows: int, free: int) -> Any:
    from partita.worker.runtimes.torch_built import example_inputs

    return example_inputs(signature, rows=rows, free=free)


def _outputs(module: Any, examples: Any, request: LoadRequest) -> dict[str, tuple[int, ...]]:
    from partita.worker.runtimes.torch_network import output_names
    from partita.worker.runtimes.torch_tensors import named_outputs

    found = {name: tuple(tensor.shape) for name, tensor in named_outputs(module(*examples))}
    names = output_names(request)
    if names and len(names) == len(found):
        return dict(zip(names, found.values(), strict=True))
    return found
