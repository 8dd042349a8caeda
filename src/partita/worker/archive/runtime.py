"""A TorchServe archive as the model itself: a folder with ``MAR-INF/MANIFEST.json`` and a handler.

Its one input is BYTES, an element for each request (`partita.wire.archive_call`); so is its one output.
"""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from partita.core.errors import InferenceFailed, InvalidInput
from partita.core.tensors import DataType, Signature, TensorSpec
from partita.wire.archive_call import INPUT, OUTPUT, PROBE, Answer, pack_answer, unpack_call
from partita.wire.messages import Measured
from partita.worker.archive.answers import (
    MISMATCHED,
    NOT_A_LIST,
    answer_of,
    body_call,
    checked,
    elements_of,
    row_of,
)
from partita.worker.archive.handler import find_handler, make_ready
from partita.worker.archive.importing import offer_ts
from partita.worker.archive.parts import Parts
from partita.worker.archive.ts.context import Context
from partita.worker.archive.ts.utils.util import PredictionException
from partita.worker.archive.ts.version import __version__
from partita.worker.handlers import Stages
from partita.worker.runtimes.interface import Batch, LoadRequest, SendPart
from partita.worker.user_code import describe

PACKAGES = "partita-packages"
_FAILED_BATCHES = 2
"""After so many failed batches of requests that succeed alone, the handler serves one at a time."""


def load(request: LoadRequest) -> "ArchiveRuntime":
    """Load an archive's handler. Raises `InvalidInput`, `MissingExtra` or `LoadFailed`."""
    request.check_options("archive", "handler", "envelope", "decode_input_request", "limit_max_image_pixels")
    return ArchiveRuntime(request)


class ArchiveRuntime:
    """A handler that is ready."""

    version = __version__

    def __init__(self, request: LoadRequest) -> None:
        self._folder = folder = Path(request.path).resolve()
        manifest = _manifest(folder)
        sys.dont_write_bytecode = True  # the folder may be the user's own
        sys.path[:0] = [str(folder), *([str(folder / PACKAGES)] if (folder / PACKAGES).is_dir() else [])]
        offer_ts()
        os.chdir(folder)
        reference = str(request.option("handler", "")) or manifest["model"]["handler"]
        handler = find_handler(folder, reference, str(request.option("envelope", "")))
        self._handle = handler.handle
        self._decodes = bool(request.option("decode_input_request", True))
        self._context = Context(
            request.model,
            str(folder),
            manifest,
            request.max_batch,
            None,
            __version__,
            bool(request.option("limit_max_image_pixels", True)),
            model_yaml_config=_yaml(folder, manifest),
        )
        _limit_torch(request.threads)
        make_ready(handler, self._context, folder)
        _limit_torch(request.threads)
        self.signature = Signature(
            inputs=(TensorSpec(INPUT, DataType.BYTES, ()),), outputs=(TensorSpec(OUTPUT, DataType.BYTES, ()),)
        )
        self.stages = Stages(folder=folder, examples=_probes)
        self._failed_batches = 0
        """Batches that raised, with no request since then that raised alone."""
        self._takes_several = True
        self._send_part: SendPart | None = None

    def offer_parts(self, send: SendPart) -> None:
        """Take whom to tell parts of answers, ahead of the rest."""
        self._send_part = send

    @property
    def threads_seen(self) -> int | None:
        """The threads that torch computes with, where the handler has imported it."""
        torch = sys.modules.get("torch")
        return None if torch is None else int(torch.get_num_threads())

    def take_metrics(self) -> tuple[Measured, ...]:
        """Return what the handler has measured since the last time."""
        taken: tuple[Measured, ...] = self._context.metrics.take()
        return taken

    def infer(self, batch: Batch) -> Batch:
        """Answer a batch; one after another where the handler has shown that it does not take several."""
        elements: list[bytes] = batch[INPUT].tolist()
        if len(elements) == 1:
            answers = [self._alone(elements[0])]
        elif not self._takes_several or self._failed_batches >= _FAILED_BATCHES:
            answers = [self._alone(element, index) for index, element in enumerate(elements)]
        else:
            answers = self._together(elements)
        array = np.empty(len(answers), dtype=object)
        array[:] = answers
        return {OUTPUT: array}

    def _together(self, elements: list[bytes]) -> list[bytes]:
        try:
            return self._answers(elements)
        except InferenceFailed as error:
            if str(error) in (NOT_A_LIST, MISMATCHED):
                self._takes_several = False
            raise
        except PredictionException:
            raise  # of one request, as a rule, which says so again alone
        except Exception:
            self._failed_batches += 1
            raise

    def _alone(self, element: bytes, row: int = 0) -> bytes:
        """Answer one element, that of this number in the batch."""
        try:
            return self._answers([element], row)[0]
        except PredictionException as error:
            answer = Answer(b"", int(error.error_code), error=str(error.message))
            return elements_of([answer], [unpack_call(element) is not None])[0]
        except Exception:
            self._failed_batches = 0  # it was a request's own fault
            raise

    def _answers(self, elements: Sequence[bytes], first: int = 0) -> list[bytes]:
        """Answer the batch's elements from `first` on."""
        calls = [unpack_call(element) for element in elements]
        if any(call is not None and call.is_probe for call in calls):
            return [pack_answer(Answer(b"")) for _ in elements]
        told = [
            body_call(element) if call is None else call
            for element, call in zip(elements, calls, strict=True)
        ]
        rows = [row_of(call, decodes=self._decodes) for call in told]
        context = self._context
        context.request_ids = {index: call.request_id for index, call in enumerate(told)}
        context.request_processor = [processor for _, processor in rows]
        started_s = perf_counter()
        with Parts(context, [call.takes_parts for call in told], self._send_part, first) as parts:
            returned = checked(self._handle([row for row, _ in rows], context), len(rows))
        context.metrics.add_time("PredictionTime", (perf_counter() - started_s) * 1000)
        answers = [
            answer_of(value, context, index, parts.kept(index)) for index, value in enumerate(returned)
        ]
        return elements_of(answers, [call is not None for call in calls])


def _probes(rows: int) -> Batch:
    array = np.empty(rows, dtype=object)
    array[:] = [PROBE] * rows
    return {INPUT: array}


def _manifest(folder: Path) -> dict[str, Any]:
    file = folder / "MAR-INF" / "MANIFEST.json"
    try:
        manifest: dict[str, Any] = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidInput(f"{file} cannot be read: {error}") from None
    return manifest


def _yaml(folder: Path, manifest: dict[str, Any]) -> dict[str, Any]:
    name = manifest["model"].get("configFile")
    if not name:
        return {}
    from partita.worker.archive.ts.utils.util import get_yaml_config

    try:
        found = get_yaml_config(str(folder / name))
    except Exception as error:
        raise InvalidInput(f"{name} cannot be read: {describe(error)}") from None
    return found if isinstance(found, dict) else {}


def _limit_torch(threads: int) -> None:
    """Let torch compute with this many threads, whatever the handler thinks."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
