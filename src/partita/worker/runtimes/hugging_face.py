"""Hugging Face folders: ``config.json`` beside ``model.safetensors``, a network of the package transformers.

The class is the one that the configuration names and transformers itself has. Code that lies in the folder is
never run, nothing is fetched, and weights in pickles (``pytorch_model.bin``) are read only where allowed.
"""

import json
import os
import warnings
from inspect import signature
from pathlib import Path
from typing import Any

from partita.core.errors import InvalidInput, LoadFailed, MissingExtra
from partita.core.formats import CONFIG
from partita.core.tensors import DYNAMIC, DataType, TensorSpec
from partita.worker.runtimes.torch_files import UNPICKLE, check_file, short

EXTRA = "transformers"
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY")


def is_hugging_face(file: Path) -> bool:
    """Whether a file of weights lies in a Hugging Face folder: beside what says its kind of model."""
    try:
        document = json.loads((file.parent / CONFIG).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(document, dict) and ("model_type" in document or "architectures" in document)


def build(file: Path, *, may_unpickle: bool) -> Any:
    """Return the network of a folder's configuration, with its weights, in evaluation mode.

    Raises `MissingExtra`, `InvalidInput` for what is not to be loaded, `LoadFailed` for what cannot be.
    """
    check_file(file)
    is_safe = file.suffix == ".safetensors"
    if not is_safe and not may_unpickle:
        raise InvalidInput(
            f"{file.name} holds pickled weights: save the model as model.safetensors, or set the option "
            f"{UNPICKLE} = true"
        )
    transformers = _package()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
            config = transformers.AutoConfig.from_pretrained(file.parent, **settings)
            config.use_cache = False  # else decoders return what only generating text needs
            module = _class(transformers, config, file).from_pretrained(
                file.parent, config=config, local_files_only=True, use_safetensors=is_safe
            )
    except (MemoryError, InvalidInput):
        raise
    except Exception as error:
        raise LoadFailed(f"transformers cannot load {file.parent.name}: {short(error)}") from error
    return module.eval()


def inputs_of(module: Any) -> tuple[TensorSpec, ...] | None:
    """Return the inputs of a network for texts or images, as its configuration has them; None for others."""
    main, config = module.main_input_name, module.config
    if main == "input_ids":
        takes = signature(module.forward).parameters
        names = ["input_ids", *(["attention_mask"] if "attention_mask" in takes else [])]
        return tuple(TensorSpec(name, DataType.INT64, (DYNAMIC,), ("tokens",)) for name in names)
    size = getattr(config, "image_size", None)
    if main == "pixel_values" and size is not None:
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        channels = int(getattr(config, "num_channels", 3))
        return (TensorSpec(main, DataType.FP32, (channels, int(height), int(width))),)
    return None


def _package() -> Any:
    os.environ.update(dict.fromkeys(_OFFLINE, "1"))  # read when the package is imported
    try:
        import tqdm
        import transformers
    except ModuleNotFoundError as error:
        raise MissingExtra(
            f"a Hugging Face folder needs the package {error.name}: pip install 'partita[{EXTRA}]'"
        ) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tqdm.tqdm.monitor_interval = 0  # else there is a thread for bars even so
    return transformers


def _class(transformers: Any, config: Any, file: Path) -> Any:
    """Return the class for the task, by the architecture that was trained; raises `InvalidInput`."""
    names = list(getattr(config, "architectures", None) or [])
    if not names:
        return transformers.AutoModel
    found = getattr(transformers, str(names[0]), None)
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise InvalidInput(
            f"{file.parent.name}/{CONFIG}: the architecture {names[0]} is none of transformers' own; code "
            "that comes with a model is not run. Use a factory of yours"
        )
    return found
