"""Tiny torch models for everybody's tests, in each of torch's formats; weights as in `tests.models`."""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.models import linear_weights, two_inputs_table

FACTORY = """
import torch

def build():
    return torch.nn.Linear(4, 3)

class Branch(torch.nn.Module):  # type: ignore[misc]
    inputs = {"x": {"shape": [-1, 4], "datatype": "FP32"}}
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)
    def forward(self, x):
        return self.inner(x) if x.sum() > 0 else -self.inner(x)

def branch():
    return Branch()

def nothing():
    return 3

def fails():
    raise OSError("no such layer")
"""


class Linear(torch.nn.Module):  # type: ignore[misc]
    """``x @ W + b`` of four numbers."""

    def __init__(self) -> None:
        super().__init__()
        weight, bias = linear_weights()
        self.inner = torch.nn.Linear(4, 3)
        self.inner.weight = torch.nn.Parameter(torch.from_numpy(weight.T.copy()))
        self.inner.bias = torch.nn.Parameter(torch.from_numpy(bias))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


class TwoInputs(torch.nn.Module):  # type: ignore[misc]
    """``x + table[index]`` and ``2 · index``."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.from_numpy(two_inputs_table()))

    def forward(self, x: torch.Tensor, index: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x + self.table[index], index + index


class InPlace(torch.nn.Module):  # type: ignore[misc]
    """Writes to its input before it doubles it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2


class Sequences(torch.nn.Module):  # type: ignore[misc]
    """The sum over an axis of any length, and the double."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sum(dim=1), x * 2


class Images(torch.nn.Module):  # type: ignore[misc]
    """A normalised convolution: what freezing folds, and oneDNN takes over."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x))).mean((2, 3))


class Bag(torch.nn.Module):  # type: ignore[misc]
    """Sums rows of a table, which torch cannot export as a script."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scores = torch.nn.EmbeddingBag(10, 3, mode="sum"), torch.nn.Linear(3, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.scores(torch.relu(self.table(rows)))


X4 = {"x": {"shape": [-1, 4], "datatype": "FP32"}}
TWO = {**X4, "index": {"shape": [-1], "datatype": "INT64"}}
SEQUENCES = {"x": {"shape": [-1, -1, 4], "datatype": "FP32"}}
CASES: dict[str, tuple[type[torch.nn.Module], dict[str, Any]]] = {
    "linear": (Linear, X4),
    "two_inputs": (TwoInputs, TWO),
    "in_place": (InPlace, X4),
    "sequences": (Sequences, SEQUENCES),
    "bag": (Bag, {"rows": {"shape": [-1, 4], "datatype": "INT64"}}),
    "images": (Images, {"x": {"shape": [-1, 3, 12, 12], "datatype": "FP32"}}),
}


def script(path: Path, name: str = "linear", inputs: Mapping[str, Any] | None = None) -> Path:
    """Write a TorchScript archive; `inputs` is what it says of them, {} for nothing."""
    make, said = CASES[name]
    document = {"inputs": said if inputs is None else inputs}
    files = {"partita.json": json.dumps(document)} if inputs != {} else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(make().eval()), path, _extra_files=files)
    return path


def program(path: Path, name: str = "linear") -> Path:
    """Write an exported program with a batch of any size."""
    make, said = CASES[name]
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    examples = tuple(
        torch.ones(
            [2 if k == 0 else 6 if size < 0 else size for k, size in enumerate(one["shape"])],
            dtype=torch.float32 if one["datatype"] == "FP32" else torch.int64,
        )
        for one in said.values()
    )
    free = tuple(
        {k: (batch, length)[k] for k, size in enumerate(one["shape"]) if size < 0} for one in said.values()
    )
    torch.export.save(torch.export.export(make().eval(), examples, dynamic_shapes=free), path)
    return path


def weights(path: Path, prefix: str = "") -> Path:
    """Write the linear model's weights, as safetensors or as torch's own file."""
    state = {prefix + key.removeprefix("inner."): value for key, value in Linear().state_dict().items()}
    if path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(state, path)
    else:
        torch.save(state, path)
    return path


def factory(path: Path) -> Path:
    """Write the functions that build networks."""
    path.write_text(FACTORY)
    return path
