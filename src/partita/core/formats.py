"""Formats of models and runtimes: what executes which file, and what each runtime needs installed."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

ENTRY_POINT_GROUP = "partita.runtimes"
"""Of runtimes that other packages offer."""
FACTORY = "factory"
"""Option that names the function which builds a network for a file of weights, ``FILE.py:function``."""
CALIBRATION = "calibration"
"""Option that says which items a model is quantised with; and the folder in the cache that keeps such."""
CONFIG = "config.json"
"""What lies beside a file of weights in a Hugging Face folder, and says which network they are of."""


@dataclass(frozen=True, slots=True)
class Package:
    """The Python package that a runtime executes with, and the extra of Partita's that brings it."""

    module: str
    distribution: str
    extra: str


_TORCH = Package("torch", "torch", "torch")
PACKAGES: Mapping[str, Package] = {
    "onnxruntime": Package("onnxruntime", "onnxruntime", "onnxruntime"),
    "openvino": Package("openvino", "openvino", "openvino"),
    "torch-script": _TORCH,
    "torch-eager": _TORCH,
    "torch-compile": _TORCH,
    "boxes": Package("ensemble_boxes", "ensemble-boxes", "detection"),
}
"""By runtime; those that are not here need nothing."""

ON_GPUS = ("onnxruntime", "torch-script", "torch-eager", "python")
"""Runtimes that can execute on a GPU."""

_BY_SUFFIX: Mapping[str, tuple[str, ...]] = {
    ".onnx": ("onnxruntime", "openvino"),
    ".xml": ("openvino",),
    ".pt": ("torch-script", "onnxruntime", "openvino"),
    ".pt2": ("torch-eager", "torch-compile", "onnxruntime", "openvino"),
    ".py": ("python",),
}
_WEIGHTS = frozenset({".pt", ".pth", ".bin", ".safetensors"})
_BUILT = ("torch-eager", "torch-compile", "onnxruntime", "openvino")

SUFFIXES = tuple(dict.fromkeys([*_BY_SUFFIX, *sorted(_WEIGHTS)]))
"""Of all files that can be a model, in the order in which a folder is searched for one."""


def runtimes_for(file: PurePath, *, factory: bool = False) -> tuple[str, ...]:
    """Return the runtimes that can execute a file, its format's own first; empty if it is no model.

    `factory` says whether a function builds the network, so that the file holds no more than its weights.
    A torch model reaches onnxruntime and openvino by being exported to ONNX once.
    """
    if factory and file.suffix in _WEIGHTS:
        return _BUILT
    return _BY_SUFFIX.get(file.suffix, ())


def is_made_first(file: PurePath, runtime: str) -> bool:
    """Whether a file is exported or compiled, once, before this runtime can load it."""
    return runtime == "torch-compile" or (
        runtime in ("onnxruntime", "openvino") and file.suffix in {".pt2", *_WEIGHTS}
    )


def needs_factory(file: PurePath) -> bool:
    """Whether a file holds weights alone, whatever else is said about it."""
    return file.suffix in _WEIGHTS - set(_BY_SUFFIX)


def extra_of(runtime: str) -> str:
    """Return the extra that brings a runtime; its own name where it is none of ours."""
    return PACKAGES[runtime].extra if runtime in PACKAGES else runtime
