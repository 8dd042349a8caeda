"""Torch's compiler, Inductor: a program is compiled to a library once, which is kept on disk.

The library is made ahead of time, in a process of its own, with a batch of any size, for one count of threads
and this very CPU and version of torch. A second start loads it and needs no compiler.
"""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from partita.core.errors import LoadFailed
from partita.core.tensors import Signature
from partita.worker.preparing import prepared
from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.torch_built import OPTIONS, program_of
from partita.worker.runtimes.torch_files import short
from partita.worker.runtimes.torch_network import TorchNetwork, set_up_threads
from partita.worker.runtimes.torch_program import signature_of

KIND = "compiled"
_LIBRARY, _DOCUMENT = "model.so", "model.json"
_OPTIONS: dict[str, bool] = {
    "freezing": True,
    # Headers that are compiled beforehand pay from the second model on, and no folder is kept for those.
    "aot_inductor.precompile_headers": False,
    "cpp_cache_precompile_headers": False,
    "aot_inductor.enable_line_tables": False,
}


class Compiled(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be known of a library beside itself."""

    signature: Signature
    writes_inputs: bool
    """Whether the program writes to its inputs."""


def load(request: LoadRequest) -> TorchNetwork:
    """Load the library, compiled first where it is not there; raises `InvalidInput` or `LoadFailed`."""
    request.check_options("batched", "copy_inputs", "denormals_as_zero", "output_names", *OPTIONS)
    set_up_threads(request)
    folder = prepared(KIND, request, torch.__version__, request.threads, _cpu())
    document = msgspec.json.decode((folder / _DOCUMENT).read_bytes(), type=Compiled)
    try:
        runner = torch._C._aoti.AOTIModelContainerRunnerCpu(str(folder / _LIBRARY), 1)
    except (RuntimeError, AttributeError) as error:
        raise LoadFailed(f"the compiled {request.file.name} cannot be loaded: {short(error)}") from error
    _, out_spec = (torch.utils._pytree.treespec_loads(text) for text in runner.get_call_spec())

    def call(tensors: Sequence[torch.Tensor]) -> Any:
        return torch.utils._pytree.tree_unflatten(runner.run(list(tensors)), out_spec)

    return TorchNetwork(call, document.signature, request, writes_inputs=document.writes_inputs)


def make(request: LoadRequest, folder: Path) -> None:
    """Compile into an empty folder; raises `InvalidInput`, or `LoadFailed` with the compiler's reason."""
    import torch._inductor

    set_up_threads(request)
    program = program_of(request)
    document = Compiled(
        signature=signature_of(program, request),
        writes_inputs=bool(program.graph_signature.user_inputs_to_mutate),
    )
    args, kwargs = program.example_inputs or ((), {})
    try:
        with torch.no_grad():
            torch._inductor.aot_compile(
                program.module(),
                args,
                kwargs,
                options={**_known(_OPTIONS), "aot_inductor.output_path": str(folder / _LIBRARY)},
            )
    except MemoryError:
        raise
    except Exception as error:
        raise LoadFailed(f"torch cannot compile {request.file.name}: {short(error)}") from error
    for left in folder.iterdir():
        if left.name != _LIBRARY and left.is_file():
            left.unlink()
    (folder / _DOCUMENT).write_bytes(msgspec.json.encode(document))


def _known(options: dict[str, bool]) -> dict[str, bool]:
    """Return those options that this version of Inductor has."""
    names: Mapping[str, object] = torch._inductor.config.get_config_copy()
    return {name: value for name, value in options.items() if name in names}


def _cpu() -> str:
    """Return what tells CPUs apart that a library cannot move between."""
    capability: str = torch.backends.cpu.get_cpu_capability()
    model = next(
        (line for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines() if line.startswith("flags")),
        "",
    )
    return f"{platform.machine()} {capability} {model}"
