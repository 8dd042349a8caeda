"""Labels of classes, classes of a module, and the error that names a status."""

import enum
import inspect
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

log = logging.getLogger(__name__)


class PredictionException(Exception):
    """The status and text that a handler wants a request answered with."""

    def __init__(self, message: str, error_code: int = 500) -> None:
        super().__init__(message)
        self.message = message
        self.error_code = error_code

    def __str__(self) -> str:
        return f"message : {self.message}, error_code : {self.error_code}"


class PT2Backend(str, enum.Enum):  # noqa: UP042 compared with plain strings
    """Backends of ``torch.compile``."""

    EAGER = "eager"
    AOT_EAGER = "aot_eager"
    INDUCTOR = "inductor"
    OPENVINO = "openvino"


def check_valid_pt2_backend(backend: str) -> bool:
    """Whether a backend of ``torch.compile`` is known."""
    return backend in {member.value for member in PT2Backend}


def list_classes_from_module(module: ModuleType, parent_class: type | None = None) -> list[type[Any]]:
    """Return the classes that a module itself defines, below one class where it is given."""
    own = [cls for _, cls in inspect.getmembers(module, inspect.isclass) if cls.__module__ == module.__name__]
    return [cls for cls in own if parent_class is None or issubclass(cls, parent_class)]


def load_label_mapping(mapping_file_path: str) -> dict[str, str] | None:
    """Return the labels of classes by their number as text; None where there is no such file."""
    path = Path(mapping_file_path)
    if not path.is_file():
        log.info("there is no %s: answers name classes by their number", path.name)
        return None
    given = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(given, dict):
        raise ValueError(f"{path.name} must map a class to its label")
    names = given.get("object_type_names")
    if isinstance(names, list):
        return {str(index): str(name) for index, name in enumerate(names)}
    labels = {
        str(key): value[-1] if isinstance(value, list) and value else value for key, value in given.items()
    }
    if not all(isinstance(label, str) for label in labels.values()):
        raise ValueError(f"{path.name}: a label is a text, or a list of texts whose last is taken")
    return labels


def map_class_to_label(
    probs: Sequence[Sequence[float]],
    mapping: Mapping[str, str] | None = None,
    lbl_classes: Sequence[Sequence[int]] | None = None,
) -> list[dict[str, float]]:
    """Return one dict from label to probability for each row."""
    found = []
    for index, row in enumerate(probs):
        classes = range(len(row)) if lbl_classes is None else lbl_classes[index]
        names = [str(one) if mapping is None else mapping[str(one)] for one in classes]
        found.append(dict(zip(names, row, strict=False)))
    return found


def get_yaml_config(yaml_file_path: str) -> dict[str, Any]:
    """Return what a YAML file holds."""
    import yaml

    with open(yaml_file_path, encoding="utf-8") as file:
        return yaml.safe_load(file) or {}
