"""Archives for tests, made by the real `torch-model-archiver`."""

import subprocess
import sys
import warnings
from pathlib import Path
from textwrap import dedent

EAGER_MODEL = """
    import torch

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x):
            return self.linear(x)
"""

EAGER_HANDLER = """
    import json

    import torch
    from ts.context import Context
    from ts.torch_handler.base_handler import BaseHandler
    from ts.utils.util import PredictionException

    class Numbers(BaseHandler):
        def initialize(self, context):
            super().initialize(context)
            self.scale = context.model_yaml_config.get("handler", {}).get("scale", 1.0)
            with open(context.system_properties["model_dir"] + "/offset.json") as file:
                self.offset = json.load(file)

        def preprocess(self, data):
            rows = []
            for row in data:
                value = row.get("data") or row.get("body")
                if isinstance(value, (bytes, bytearray)):
                    value = json.loads(value)
                rows.append(value)
            if any(value == "refuse" for value in rows):
                raise PredictionException("such a value is not served", 422)
            return torch.tensor(rows, dtype=torch.float32)

        def postprocess(self, data):
            context = self.context
            answers = []
            for index, row in enumerate((data * self.scale + self.offset).tolist()):
                context.set_response_content_type(index, "application/json")
                context.set_response_header(index, "x-items", str(len(row)))
                if row[0] > 1e6:
                    context.set_response_status(418, "too much", index)
                answers.append({"scores": row, "who": context.get_request_header(index, "X-Who")})
            return answers

        def describe_handle(self):
            return {"knows": "numbers"}

        def get_insights(self, data, inputs, target):
            return [[1.0] * data.shape[1]]
"""

FUNCTION_HANDLER = """
    seen = {}

    def handle(data, context):
        if data is None:
            seen["dir"] = context.system_properties["model_dir"]
            return
        import helper
        return [helper.shout(row.get("body") or row.get("data")) for row in data]
"""

HELPER = """
    def shout(text):
        if isinstance(text, (bytes, bytearray)):
            text = text.decode()
        return text.upper()
"""


def archive(folder: Path, name: str, *options: str, **files: str) -> Path:
    """Run the archiver; `files` are written beside first, under names with `__` for the dot."""
    work = folder / f"{name}-files"
    work.mkdir(parents=True)
    for file, text in files.items():
        (work / file.replace("__", ".")).write_text(dedent(text), encoding="utf-8")
    script = Path(sys.executable).with_name("torch-model-archiver")
    argv = [str(script), "--model-name", name, "--version", "1.0", "--export-path", str(folder)]
    done = subprocess.run(
        [*argv, *options], cwd=work, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return next(path for path in folder.glob(f"{name}*") if path != work)


def eager_archive(folder: Path, name: str = "numbers", *more: str) -> Path:
    """An eager network with a state dict, a handler below `BaseHandler`, an extra file, a configuration."""
    import torch

    work = folder / "weights"
    work.mkdir(parents=True, exist_ok=True)
    weights = {"linear.weight": torch.arange(12.0).reshape(3, 4), "linear.bias": torch.zeros(3)}
    torch.save(weights, work / "net.pth")
    return archive(
        folder,
        name,
        *("--serialized-file", str(work / "net.pth"), "--model-file", "model.py", "--handler", "numbers.py"),
        *("--extra-files", "offset.json", "--config-file", "model-config.yaml", *more),
        model__py=EAGER_MODEL,
        numbers__py=EAGER_HANDLER,
        offset__json="0.5",
        **{"model-config__yaml": "batchSize: 8\nmaxBatchDelay: 0\nhandler:\n  scale: 2.0\n"},
    )


def function_archive(folder: Path, name: str = "shout", *more: str) -> Path:
    """A module-level `handle`, with another module of the archive's."""
    return archive(
        folder,
        name,
        *("--handler", "service.py", "--extra-files", "helper.py", *more),
        service__py=FUNCTION_HANDLER,
        helper__py=HELPER,
    )


def picture_archive(folder: Path, name: str = "pictures", *more: str) -> Path:
    """A TorchScript network with the default handler `image_classifier`."""
    import torch

    class Means(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            means = x.mean(dim=(2, 3))
            return torch.cat([means, means * 0, -means], dim=1)

    work = folder / "script"
    work.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # which torch.jit is now, and archives hold
        script = torch.jit.trace(Means(), torch.zeros(1, 3, 224, 224))
        script.save(str(work / "means.pt"))
    labels = ", ".join(f'"{index}": ["n{index}", "label{index}"]' for index in range(9))
    return archive(
        folder,
        name,
        *("--serialized-file", str(work / "means.pt"), "--handler", "image_classifier"),
        *("--extra-files", "index_to_name.json", *more),
        index_to_name__json="{" + labels + "}",
    )
