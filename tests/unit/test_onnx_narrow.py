"""Rows that nobody reads are not computed, and those that are read come out as before."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn

from partita.worker.runtimes.interface import LoadRequest
from partita.worker.runtimes.onnx_export import onnx_file
from partita.worker.runtimes.onnx_narrow import narrow
from partita.worker.runtimes.onnx_picks import END, Pick, picked_range

TOKENS, WIDTH, HEADS = 6, 8, 2


class Encoder(nn.Module):  # type: ignore[misc]
    """Attention and two dense layers over (items, tokens, 8), and then whatever reads them."""

    def __init__(self, read: Callable[[Tensor], Tensor], *, mask: bool = False, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.read, self.mask = read, mask

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        shape = (batch, tokens, HEADS, width // HEADS)
        q, k, v = (f(x).view(shape).transpose(1, 2) for f in (self.query, self.key, self.value))
        scores = q @ k.transpose(2, 3)
        if self.mask:
            scores = scores + torch.ones(TOKENS, TOKENS).triu(1) * -9.0
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, tokens, width)
        x = self.norm1(x + self.out(mixed))
        return self.read(self.norm2(x + self.down(nn.functional.gelu(self.up(x)))))


def exported(network: nn.Module, file: Path, *, free_tokens: bool = False) -> onnx.ModelProto:
    axes = {0: "batch", 1: "tokens"} if free_tokens else {0: "batch"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network.eval(),
            (torch.randn(2, TOKENS, WIDTH),),
            str(file),
            dynamo=False,
            opset_version=17,
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": axes, "y": {0: "batch"}},
        )
    return onnx.load(file)


def outputs(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    settings = ort.SessionOptions()
    settings.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    return np.asarray(y)


def assert_the_same(before: onnx.ModelProto, after: onnx.ModelProto, tokens: int = TOKENS) -> None:
    onnx.checker.check_model(after, full_check=True)
    for items in (1, 2, 5):
        x = np.random.default_rng(items).standard_normal((items, tokens, WIDTH)).astype(np.float32)
        np.testing.assert_allclose(outputs(after, x), outputs(before, x), rtol=1e-4, atol=1e-5)


def rows_of_products(model: onnx.ModelProto) -> list[int]:
    """Return the rows of each item that the products with constant weights make."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    shapes = {info.name: info.type.tensor_type.shape.dim for info in (*inferred.value_info, *inferred.output)}
    weights = {one.name for one in inferred.initializer}
    return [
        shapes[node.output[0]][1].dim_value
        for node in inferred.node
        if node.op_type == "MatMul" and node.input[1] in weights
    ]


READERS: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "first": (lambda x: x[:, 0], 1),
    "last": (lambda x: x[:, -1], 1),
    "third": (lambda x: x[:, 2].tanh(), 1),
    "last but one": (lambda x: x[:, -2], 1),
    "two": (lambda x: x[:, 1:3], 2),
    "last two": (lambda x: x[:, -2:], 2),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("mask", [False, True])
def test_only_the_rows_that_are_read_are_computed(name: str, mask: bool, tmp_path: Path) -> None:
    read, count = READERS[name]
    before = exported(Encoder(read, mask=mask), tmp_path / "model.onnx")
    after = onnx.ModelProto()
    after.CopyFrom(before)
    assert narrow(after) == 6
    assert sorted(rows_of_products(before)) == [TOKENS] * 6
    assert sorted(rows_of_products(after)) == sorted([TOKENS] * 2 + [count] * 4), (
        "keys and values are for all"
    )
    assert_the_same(before, after)


def test_layers_before_the_last_one_are_computed_whole(tmp_path: Path) -> None:
    network = nn.Sequential(Encoder(lambda x: x), Encoder(lambda x: x[:, 0], seed=1))
    before = exported(network, tmp_path / "model.onnx")
    after = onnx.ModelProto()
    after.CopyFrom(before)
    assert narrow(after) == 6
    assert sorted(rows_of_products(after)) == [1] * 4 + [TOKENS] * 8
    assert_the_same(before, after)


def test_an_axis_of_any_size_is_narrowed_too(tmp_path: Path) -> None:
    before = exported(Encoder(lambda x: x[:, 0]), tmp_path / "model.onnx", free_tokens=True)
    after = onnx.ModelProto()
    after.CopyFrom(before)
    assert narrow(after) == 6
    for tokens in (1, 4, 9):
        assert_the_same(before, after, tokens)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x,
        lambda x: x.mean(1),
        lambda x: x.softmax(1)[:, 0],
        lambda x: x[:, 0] + x[:, 1],
        lambda x: torch.cat([x[:, 0], x.mean(1)], 1),
        lambda x: x[..., 0],
        lambda x: x[:, ::2],
    ],
    ids=["all", "mean", "mixed", "two heads", "one reads all", "a column", "every other"],
)
def test_a_model_whose_rows_are_all_needed_is_left_alone(
    read: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    before = exported(Encoder(read), tmp_path / "model.onnx")
    after = onnx.ModelProto()
    after.CopyFrom(before)
    assert narrow(after) == 0
    assert after == before


def test_rows_without_a_product_behind_them_are_left_alone(tmp_path: Path) -> None:
    class Plain(nn.Module):  # type: ignore[misc]
        def forward(self, x: Tensor) -> Tensor:
            return (x.tanh() + 1.0)[:, 0]

    before = exported(Plain(), tmp_path / "model.onnx")
    assert narrow(before) == 0


def test_a_range_counts_only_where_its_axis_is_known_to_have_it() -> None:
    assert picked_range(1, 0, 4, 6) == Pick(1, 0, 4, 4)
    assert picked_range(1, 0, 4, "tokens") is None, "there may be fewer"
    assert picked_range(1, 0, 9, 6) is None
    assert picked_range(1, 0, 1, "tokens") == Pick(1, 0, 1, 1)
    assert picked_range(1, -3, END, 6) == Pick(1, -3, END, 3)
    assert picked_range(1, -3, END, "tokens") is None
    assert picked_range(1, -3, 5, 6) is None


@pytest.mark.parametrize("all_rows", [False, True])
def test_what_torch_exports_is_narrowed_unless_told_not_to(
    all_rows: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Script(Encoder):
        def __init__(self) -> None:
            super().__init__(lambda x: x)

        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, 0]

    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "model.pt"
    document = f'{{"inputs": {{"x": {{"shape": [-1, {TOKENS}, {WIDTH}], "datatype": "FP32"}}}}}}'
    network = Script().eval()
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(network, torch.randn(2, TOKENS, WIDTH))
        torch.jit.save(traced, str(path), _extra_files={"partita.json": document})
        options: dict[str, str | int | float | bool] = {"all_rows": True} if all_rows else {}
        made = onnx.load(onnx_file(LoadRequest(path=str(path), options=options)))
        x = torch.randn(3, TOKENS, WIDTH)
        expected = network(x).numpy()
    assert (1 in rows_of_products(made)) is not all_rows
    np.testing.assert_allclose(outputs(made, x.numpy()), expected, rtol=1e-4, atol=1e-5)
