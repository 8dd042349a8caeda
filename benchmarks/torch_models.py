"""Torch models for the benchmarks, with seeded random weights: ResNet-50, BERT-base for 64 tokens, and small
ones for which not always the same runtime is the fastest.

``python -m benchmarks.torch_models [NAME…]`` makes them, in ``benchmarks/models/``; nothing is downloaded.
They are TorchScript, each archive with ``partita.json``, which says its inputs; but for those of `PROGRAMS`,
which are exported programs.
"""

import argparse
import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from benchmarks.models import FOLDER

TOKENS = 64
WORDS = 30522


class Bottleneck(nn.Module):  # type: ignore[misc]
    """1×1, 3×3 and 1×1 convolutions beside a shortcut."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        wide = 4 * width
        self.body = nn.Sequential(
            *_convolution(given, width, 1),
            nn.ReLU(inplace=True),
            *_convolution(width, width, 3, stride),
            nn.ReLU(inplace=True),
            *_convolution(width, wide, 1),
        )
        changes = stride != 1 or given != wide
        self.shortcut = nn.Sequential(*_convolution(given, wide, 1, stride)) if changes else nn.Identity()
        self.last = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, given, h, w) to (batch, 4 · width, h ÷ stride, w ÷ stride)."""
        y: Tensor = self.last(self.body(x) + self.shortcut(x))
        return y


class ResNet50(nn.Module):  # type: ignore[misc]
    """Images (batch, 3, 224, 224) to 1000 scores."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [*_convolution(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
        given = 64
        for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
            for k in range(count):
                layers.append(Bottleneck(given, width, stride if k == 0 else 1))
                given = 4 * width
        self.features = nn.Sequential(*layers)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.scores = nn.Linear(given, 1000)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, 224, 224) to (batch, 1000)."""
        y: Tensor = self.scores(self.pool(self.features(x)).flatten(1))
        return y


class Layer(nn.Module):  # type: ignore[misc]
    """One encoder layer of BERT: attention of 12 heads, then two dense layers."""

    def __init__(self, width: int = 768, heads: int = 12, inner: int = 3072) -> None:
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, inner), nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, tokens, width) to the same."""
        batch, tokens, width = x.shape
        shape = (batch, tokens, self.heads, self.size)
        q = self.query(x).view(shape).transpose(1, 2)
        k = self.key(x).view(shape).transpose(1, 2)
        v = self.value(x).view(shape).transpose(1, 2)
        weights = torch.softmax(torch.matmul(q, k.transpose(2, 3)) / float(self.size) ** 0.5, dim=-1)
        mixed = torch.matmul(weights, v).transpose(1, 2).reshape(batch, tokens, width)
        x = self.norm1(x + self.out(mixed))
        y: Tensor = self.norm2(x + self.down(nn.functional.gelu(self.up(x))))
        return y


class Bert(nn.Module):  # type: ignore[misc]
    """Token numbers (batch, 64) to the pooled state (batch, 768), as BERT-base computes it."""

    def __init__(self, width: int = 768, layers: int = 12) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Embedding(TOKENS, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(*(Layer(width) for _ in range(layers)))
        self.pooler = nn.Linear(width, width)
        self.register_buffer("positions", torch.arange(TOKENS))

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, 64) int64 to (batch, 768)."""
        x = self.norm(self.words(tokens) + self.places(self.positions))
        y: Tensor = torch.tanh(self.pooler(self.layers(x)[:, 0]))
        return y


class Separable(nn.Module):  # type: ignore[misc]
    """Depthwise-separable blocks on images (batch, 3, 64, 64)."""

    def __init__(self) -> None:
        super().__init__()
        layers, given = [*_convolution(3, 32, 3, 2), nn.ReLU(inplace=True)], 32
        for made, stride in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (256, 1)):
            depthwise = nn.Conv2d(given, given, 3, stride, 1, groups=given, bias=False)
            layers += [depthwise, nn.BatchNorm2d(given), nn.ReLU(inplace=True)]
            layers += [*_convolution(given, made, 1), nn.ReLU(inplace=True)]
            given = made
        for layer in layers:
            if isinstance(layer, nn.Conv2d):  # else so deep a network answers all images alike
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        self.features, self.scores = nn.Sequential(*layers), nn.Linear(given, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, 64, 64) to (batch, 10)."""
        y: Tensor = self.scores(self.features(x).mean((2, 3)))
        return y


class Recurrent(nn.Module):  # type: ignore[misc]
    """One LSTM layer of 256 units over 32 steps."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.scores = nn.LSTM(64, 256, batch_first=True), nn.Linear(256, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 32, 64) to (batch, 10)."""
        states, _ = self.lstm(x)
        y: Tensor = self.scores(states[:, -1])
        return y


class Lookup(nn.Module):  # type: ignore[misc]
    """256 rows of a table of 100,000, added up: memory, and hardly any arithmetic."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scores = nn.Embedding(100_000, 64), nn.Linear(64, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """(batch, 256) int64 to (batch, 10)."""
        y: Tensor = self.scores(torch.relu(self.table(rows).sum(1)))
        return y


class Bag(nn.Module):  # type: ignore[misc]
    """256 rows of a table of 100,000, added up as they are read: torch has one operator for that."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scores = nn.EmbeddingBag(100_000, 64, mode="sum"), nn.Linear(64, 10)

    def forward(self, rows: Tensor) -> Tensor:
        """(batch, 256) int64 to (batch, 10)."""
        y: Tensor = self.scores(torch.relu(self.table(rows)))
        return y


class Video(nn.Module):  # type: ignore[misc]
    """Convolutions over time, height and width of (batch, 3, 8, 32, 32)."""

    def __init__(self) -> None:
        super().__init__()
        layers, given = list[nn.Module](), 3
        for made, stride in ((16, 1), (32, 2), (32, 1), (64, 2)):
            convolution = nn.Conv3d(given, made, 3, stride, 1, bias=False)
            nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
            layers += [convolution, nn.BatchNorm3d(made), nn.ReLU(inplace=True)]
            given = made
        self.features, self.scores = nn.Sequential(*layers), nn.Linear(given, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 3, 8, 32, 32) to (batch, 10)."""
        y: Tensor = self.scores(self.features(x).mean((2, 3, 4)))
        return y


class Chain(nn.Module):  # type: ignore[misc]
    """Sixty functions of single numbers, one after another, on 16,384 of them: a compiler makes one loop."""

    def __init__(self) -> None:
        super().__init__()
        self.scales, self.scores = nn.Parameter(torch.randn(6, 16384)), nn.Linear(16384, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 16384) to (batch, 10)."""
        for k in range(6):
            y = x * self.scales[k]
            bent = torch.where(y > 0, torch.log1p(y * y), 0.1 * torch.atan(y))
            x = bent + torch.cos(y) * nn.functional.softplus(-y) + torch.sqrt(y.abs() + 1e-3)
        z: Tensor = self.scores(x)
        return z


class Dense(nn.Module):  # type: ignore[misc]
    """Four dense layers of 16 MiB each."""

    def __init__(self, width: int = 2048) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 2048) to the same."""
        y: Tensor = self.layers(x)
        return y


class Transformer(nn.Module):  # type: ignore[misc]
    """Four encoder layers of width 384 over 64 states."""

    def __init__(self, width: int = 384) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer(width, 12, 4 * width) for _ in range(4)))
        self.scores = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 64, 384) to (batch, 10)."""
        y: Tensor = self.scores(self.layers(x)[:, 0])
        return y


def _convolution(given: int, made: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [nn.Conv2d(given, made, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(made)]


_Maker = Callable[[], nn.Module]
_MODELS: dict[str, tuple[_Maker, str, tuple[int, ...], str]] = {
    "resnet50": (ResNet50, "x", (3, 224, 224), "FP32"),
    "bert_base": (Bert, "tokens", (TOKENS,), "INT64"),
    "separable": (Separable, "x", (3, 64, 64), "FP32"),
    "recurrent": (Recurrent, "x", (32, 64), "FP32"),
    "lookup": (Lookup, "rows", (256,), "INT64"),
    "bag": (Bag, "rows", (256,), "INT64"),
    "video": (Video, "x", (3, 8, 32, 32), "FP32"),
    "chain": (Chain, "x", (16384,), "FP32"),
    "dense": (Dense, "x", (2048,), "FP32"),
    "transformer": (Transformer, "x", (64, 384), "FP32"),
}
"""By name: what builds it, and its input's name, item shape and datatype."""


PROGRAMS = ("chain",)
"""Those that are kept as ``.pt2``, which torch's compiler takes."""

VARIED = ("separable", "recurrent", "bag", "dense", "transformer", "video", "chain")
"""For the benchmark of the choice among runtimes."""


def torch_model_path(name: str, folder: Path = FOLDER) -> Path:
    """Return the archive of a model, made now if it is missing."""
    path = folder / f"{name}.pt{'2' if name in PROGRAMS else ''}"
    if not path.exists():
        make(name, path)
    return path


def make(name: str, path: Path) -> None:
    """Script or export one model, for batches of any size, and write its archive."""
    build, argument, shape, datatype = _MODELS[name]
    torch.manual_seed(0)
    network = build().eval()
    example = torch.zeros((2, *shape), dtype=torch.int64 if datatype == "INT64" else torch.float32)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{os.getpid()}.{path.name}")
    if name in PROGRAMS:
        dynamic = {argument: {0: torch.export.Dim("batch", max=1 << 16)}}
        torch.export.save(torch.export.export(network, (example,), dynamic_shapes=dynamic), beside)
    else:
        _save_script(network, example, beside, {argument: {"shape": [-1, *shape], "datatype": datatype}})
    beside.replace(path)


def _save_script(network: nn.Module, example: Tensor, path: Path, inputs: dict[str, object]) -> None:
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scripted = torch.jit.script(network)
        scripted(example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(scripted, str(path), _extra_files={"partita.json": json.dumps({"inputs": inputs})})


def main(argv: Sequence[str] | None = None) -> None:
    """Make the models named, all of them by default."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *_MODELS], metavar="NAME")
    for name in parser.parse_args(argv).names or list(_MODELS):
        print(torch_model_path(name))


if __name__ == "__main__":
    main()
