"""What a model is turned into once before it is loaded, kept on disk: compiled, or in another format.

It is made in a process of its own, so that neither its memory nor a crash of the compiler is the worker's.
That process dies with the worker.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import msgspec

from partita.core.errors import InvalidInput, LoadFailed, MissingExtra, PartitaError
from partita.core.formats import FACTORY
from partita.system.artefacts import artefact_key, cache_dir, kept
from partita.system.model_files import files_beside
from partita.system.parent import die_with_parent
from partita.worker.runtimes.interface import LoadRequest

FOLDER = "prepared"
_ERROR, _SCRATCH = "error.json", "scratch"
_LONGEST_LINE = 300
_LIBRARIES_OF_THE_COMPILER = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
_MAKERS = {
    "compiled": "partita.worker.runtimes.torch_compile",
    "int8": "partita.worker.runtimes.onnx_int8",
    "onnx": "partita.worker.runtimes.onnx_export",
}
_CLASSES: dict[str, type[PartitaError]] = {cls.code: cls for cls in (InvalidInput, LoadFailed, MissingExtra)}


class Failure(msgspec.Struct, frozen=True):
    """Why there is nothing, as the process that tried says."""

    code: str
    reason: str


def prepared(kind: str, request: LoadRequest, *facts: object) -> Path:
    """Return the folder of what was made of a request's model, by this process or another, now or before.

    `facts` are what else it depends on, such as the library's version. Raises `InvalidInput`, `MissingExtra`
    or `LoadFailed`.
    """
    if not request.file.is_file():
        raise InvalidInput(f"there is no file {request.path}")
    files = [request.file, *_more_files(request)]
    described = (kind, repr(request.inputs), sorted(request.options.items()), *facts)
    try:
        return kept(
            cache_dir() / FOLDER, artefact_key(files, *described), lambda folder: _run(kind, request, folder)
        )
    except OSError as error:
        raise LoadFailed(f"{request.file.name} cannot be kept as {kind}: {error}") from error


def main(kind: str, folder: str, parent: str) -> int:
    """Make one; the request comes on standard input. The exit code says whether it was made."""
    die_with_parent(int(parent))
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=LoadRequest)
    try:
        maker: Callable[[LoadRequest, Path], None] = import_module(_MAKERS[kind]).make
        maker(request, Path(folder))
    except PartitaError as error:
        _fail(folder, error.code, str(error))
        return 1
    except ModuleNotFoundError as error:
        _fail(
            folder, MissingExtra.code, f"this needs the package {error.name}: pip install 'partita[export]'"
        )
        return 1
    except MemoryError:
        _fail(folder, LoadFailed.code, "out of memory")
        return 1
    return 0


def _more_files(request: LoadRequest) -> list[Path]:
    """Return what belongs to the model, and the factory's file; who loads it says that it is not there."""
    beside = files_beside(request.file)
    given = str(request.options.get(FACTORY, ""))
    file = request.file.parent / given.rpartition(":")[0]
    return [*beside, file] if given and file.is_file() else beside


def _run(kind: str, request: LoadRequest, folder: Path) -> None:
    scratch = folder / _SCRATCH
    scratch.mkdir()
    env = {
        **os.environ,
        **_LIBRARIES_OF_THE_COMPILER,
        "TORCHINDUCTOR_CACHE_DIR": str(scratch),
        "TMPDIR": str(scratch),
    }
    code = "import sys; from partita.worker.preparing import main; sys.exit(main(*sys.argv[1:]))"
    finished = subprocess.run(
        [sys.executable, "-P", "-c", code, kind, str(folder), str(os.getpid())],
        input=msgspec.json.encode(request),
        stdout=subprocess.PIPE,  # libraries tell at length what they do, and why they cannot
        stderr=subprocess.STDOUT,
        env=env,
        check=False,
    )
    shutil.rmtree(scratch, ignore_errors=True)
    if finished.returncode == 0:
        return
    try:
        failure = msgspec.json.decode((folder / _ERROR).read_bytes(), type=Failure)
    except (OSError, msgspec.DecodeError):
        raise LoadFailed(
            f"{request.file.name} could not be made into {kind}: the process that tried exited with status "
            f"{finished.returncode}{_last_line(finished.stdout)}"
        ) from None
    raise _CLASSES.get(failure.code, LoadFailed)(failure.reason)


def _last_line(output: bytes) -> str:
    """Return what a process said last, as the end of a sentence."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return f"; it said last: {lines[-1][-_LONGEST_LINE:]}" if lines else ""


def _fail(folder: str, code: str, reason: str) -> None:
    (Path(folder) / _ERROR).write_bytes(msgspec.json.encode(Failure(code, reason)))
