"""The handler that most others inherit from: loads a network, and runs it between two stages."""

import abc
import importlib
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

import torch

from partita.worker.archive.ts.handler_utils.timer import timed
from partita.worker.archive.ts.torch_handler.frozen_script import FrozenScript
from partita.worker.archive.ts.utils.util import list_classes_from_module, load_label_mapping

MAPPING_FILE = "index_to_name.json"


class BaseHandler(abc.ABC):  # noqa: B024 whoever inherits decides what to replace
    """Loads TorchScript, a state dict beside its class, or ONNX; `preprocess`, `inference`, `postprocess`."""

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: dict[str, str] | None = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None
        self.manifest: Any = None
        self.map_location: str | None = None
        self.explain = False
        self.target: Any = 0
        self.profiler_args: dict[str, Any] = {}
        self.model_yaml_config: dict[str, Any] = {}
        self._frozen: FrozenScript | None = None

    def initialize(self, context: Any) -> None:
        """Load the network and the classes' labels."""
        self.context = context
        self.model_yaml_config = getattr(context, "model_yaml_config", None) or {}
        properties = context.system_properties
        gpu = properties.get("gpu_id")
        self.map_location = "cuda" if gpu is not None and torch.cuda.is_available() else "cpu"
        self.device = torch.device(f"cuda:{gpu}" if self.map_location == "cuda" else "cpu")
        self.manifest = context.manifest
        described = self.manifest["model"]
        folder = str(properties.get("model_dir"))
        serialized = described.get("serializedFile")
        self.model_pt_path = os.path.join(folder, serialized) if serialized else None
        self.model = self._loaded(folder, described.get("modelFile") or "", self.model_pt_path or "")
        self.model = self._compiled(self.model)
        self.mapping = load_label_mapping(os.path.join(folder, MAPPING_FILE))
        self.initialized = True

    def _loaded(self, folder: str, model_file: str, weights: str) -> Any:
        if model_file:
            model = self._load_pickled_model(folder, model_file, weights)
            model.to(self.device)
            model.eval()
            return model
        if weights.endswith((".pt", ".pth")):
            model = self._load_torchscript_model(weights)
            model.eval()
            self._frozen = FrozenScript(model)
            return model
        if weights.endswith(".onnx"):
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            return onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
        raise RuntimeError("No model weights could be loaded")

    def _compiled(self, model: Any) -> Any:
        """Return the network as the configuration's ``pt2`` wants it compiled."""
        wanted = self.model_yaml_config.get("pt2")
        if isinstance(wanted, str):
            wanted = {"compile": {"enable": True, "backend": wanted}}
        options = wanted.get("compile") if isinstance(wanted, dict) else None
        if not isinstance(options, dict) or not options.get("enable"):
            return model
        return torch.compile(model, **{key: value for key, value in options.items() if key != "enable"})

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        """Return a TorchScript network."""
        return torch.jit.load(model_pt_path, map_location=self.device)

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str) -> Any:
        """Return the one class of a file, with a state dict, which may hold nothing but weights."""
        if not os.path.isfile(os.path.join(model_dir, model_file)):
            raise RuntimeError("Missing the model.py file")
        classes = list_classes_from_module(_module(model_dir, model_file))
        if len(classes) > 1:
            classes = [cls for cls in classes if issubclass(cls, torch.nn.Module)]
        if len(classes) != 1:
            raise ValueError(f"Expected only one class as model definition. {classes}")
        model = classes[0]()
        if model_pt_path:
            state = torch.load(model_pt_path, map_location=self.device, weights_only=True)
            model.load_state_dict(state)
        return model

    @timed
    def preprocess(self, data: Any) -> Any:
        """Return the network's input, a tensor."""
        return torch.as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the network."""
        with torch.inference_mode():
            data = data.to(self.device)
            if self._frozen is not None and self._frozen.original is self.model and not args and not kwargs:
                return self._frozen(data)
            return self.model(data, *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> Any:
        """Return one answer for each request."""
        return data.tolist()

    def handle(self, data: Any, context: Any) -> Any:
        """Return the answers to a batch of requests."""
        started_s = time.perf_counter()
        self.context = context
        if self._is_describe():
            output: Any = [self.describe_handle()]
        else:
            prepared = self.preprocess(data)
            if self._is_explain():
                output = self.explain_handle(prepared, data)
            else:
                output = self.postprocess(self.inference(prepared))
        taken_ms = round((time.perf_counter() - started_s) * 1000, 2)
        context.metrics.add_time("HandlerTime", taken_ms, None, "ms")
        return output

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> Any:
        """Return explanations by `get_insights`, which whoever inherits brings along."""
        row, inputs, target = raw_data[0], None, 0
        if isinstance(row, dict):
            inputs = row.get("data") or row.get("body")
            target = row.get("target") or 0
        return self.get_insights(data_preprocess, inputs, target)  # type: ignore[attr-defined]

    def describe_handle(self) -> Any:
        """Return what the handler says of itself."""
        return None

    def get_device(self) -> Any:
        """Return the device that the network is on."""
        return self.device

    def _is_explain(self) -> bool:
        self.explain = self._is_asked("explain")
        return self.explain

    def _is_describe(self) -> bool:
        return self._is_asked("describe")

    def _is_asked(self, header: str) -> bool:
        return bool(self.context) and self.context.get_request_header(0, header) == "True"


def _module(folder: str, file: str) -> Any:
    """Return the module of a file in the archive, whatever else is called so."""
    name = Path(file).stem
    spec = importlib.util.spec_from_file_location(name, os.path.join(folder, file))
    if spec is None or spec.loader is None:
        return importlib.import_module(name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
