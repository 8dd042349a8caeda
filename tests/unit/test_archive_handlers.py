"""The handlers and envelopes that archives may use, called directly."""

import base64
import io
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("PIL")

import torch

from partita.worker.archive.handler import find_handler, make_ready
from partita.worker.archive.ts.context import Context, RequestProcessor
from partita.worker.archive.ts.torch_handler.frozen_script import FrozenScript
from partita.worker.archive.ts.torch_handler.text_handler import ngrams
from partita.worker.archive.ts.utils.util import load_label_mapping, map_class_to_label

Answer = Callable[[list[dict[str, Any]]], Any]


def scripted(module: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # which TorchScript is, and archives hold
        return torch.jit.script(module.eval())


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def ready(folder: Path, network: Any, handler: str, envelope: str = "", labels: Any = None) -> Answer:
    """Return what calls a default handler with a batch."""
    scripted(network).save(str(folder / "net.pt"))
    if labels is not None:
        (folder / "index_to_name.json").write_text(json.dumps(labels))
    found = find_handler(folder, handler, envelope)
    manifest = {"model": {"serializedFile": "net.pt"}}
    context = Context("m", str(folder), manifest, 8, None, "0.12.0")
    make_ready(found, context, folder)

    def answer(rows: list[dict[str, Any]]) -> Any:
        context.request_processor = [RequestProcessor({}) for _ in rows]
        return found.handle(rows, context)

    return answer


def png(width: int, height: int, colour: tuple[int, int, int]) -> bytes:
    from PIL import Image

    data = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(data, "PNG")
    return data.getvalue()


class Means(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        means = x.mean(dim=(2, 3))
        return torch.cat([means, -means], dim=1)


class Segments(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"out": torch.stack([x[:, 0], x[:, 1] - 100.0], dim=1)}


class Boxes(torch.nn.Module):  # type: ignore[misc]
    def forward(
        self, images: list[torch.Tensor]
    ) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]]]:
        found: list[dict[str, torch.Tensor]] = []
        for image in images:
            height = float(image.shape[1])
            boxes = torch.tensor([[0.0, 0.0, 1.0, height], [0.0, 0.0, 2.0, 2.0]])
            found.append(
                {"boxes": boxes, "labels": torch.tensor([1, 0]), "scores": torch.tensor([0.75, 0.25])}
            )
        return {}, found


class Bag(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(10, 2, mode="mean")
        with torch.no_grad():
            self.embedding.weight.copy_(torch.arange(20.0).reshape(10, 2) * torch.tensor([1.0, -1.0]))

    def forward(self, text: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        return self.embedding(text, offsets)


def test_pictures_of_any_size_and_form_are_classified_together(tmp_path: Path) -> None:
    answer = ready(tmp_path, Means(), "image_classifier", labels={str(k): f"c{k}" for k in range(6)})
    red = png(500, 300, (255, 0, 0))
    tensor = torch.ones(3, 224, 224).tolist()
    first, second, third = answer([{"data": red}, {"body": base64.b64encode(red).decode()}, {"data": tensor}])
    assert first == pytest.approx(second)
    assert next(iter(first)) == "c0"
    assert len(first) == len(third) == 5
    assert list(first.values()) == sorted(first.values(), reverse=True)


def test_segments_are_a_class_and_its_probability_for_each_pixel(tmp_path: Path) -> None:
    (segments,) = ready(tmp_path, Segments(), "image_segmenter")([{"data": png(300, 300, (9, 9, 9))}])
    assert torch.tensor(segments).shape == (224, 224, 2)
    assert segments[0][0] == pytest.approx([0.0, 1.0])


def test_objects_are_those_that_are_sure_in_pictures_of_different_sizes(tmp_path: Path) -> None:
    answer = ready(tmp_path, Boxes(), "object_detector", labels={"object_type_names": ["nothing", "thing"]})
    found = answer([{"data": png(20, 10, (0, 0, 0))}, {"data": png(20, 30, (0, 0, 0))}])
    assert found == [
        [{"thing": [0.0, 0.0, 1.0, 10.0], "score": 0.75}],
        [{"thing": [0.0, 0.0, 1.0, 30.0], "score": 0.75}],
    ]


def test_texts_are_classified_together_as_alone(tmp_path: Path) -> None:
    torch.save({"<unk>": 0, "good": 3, "bad": 1, "very good": 5, "cannot": 7}, tmp_path / "source_vocab.pt")
    answer = ready(tmp_path, Bag(), "text_classifier", labels={"0": ["up"], "1": ["down"]})
    texts: list[dict[str, Any]] = [{"data": b"<b>Very</b> good!"}, {"body": "bad"}, {"data": "I can't"}]
    together = answer(texts)
    alone = [answer([text])[0] for text in texts]
    assert together == [pytest.approx(one) for one in alone]
    numbers = torch.tensor([0, 3, 5])  # very, good, very good
    scores = torch.softmax(torch.stack([numbers.float() * 2, -(numbers.float() * 2 + 1)]).mean(dim=1), dim=0)
    assert alone[0] == pytest.approx({"up": scores[0].item(), "down": scores[1].item()})
    assert list(ngrams(["a", "b", "c"], 2)) == ["a", "b", "c", "a b", "b c"]


def test_a_vocabulary_that_is_an_object_is_refused(tmp_path: Path) -> None:
    torch.save(Bag(), tmp_path / "source_vocab.pt")
    with pytest.raises(Exception, match="save it as a dict"):
        ready(tmp_path, Bag(), "text_classifier")


ECHO = """
def handle(data, context):
    return None if data is None else [row for row in data]
"""


def enveloped(folder: Path, envelope: str) -> Answer:
    (folder / "echo.py").write_text(ECHO)
    return ready(folder, Means(), "echo.py", envelope)


def test_envelopes_open_requests_and_wrap_answers(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"body": {"instances": [1, {"b64": "YQ=="}]}},
        {"data": b'{"instances": [[2]]}'},
    ]
    body, kserve = enveloped(tmp_path, "body"), enveloped(tmp_path, "kserve")
    assert body([{"data": 1}, {"body": b"2"}]) == [1, b"2"]
    assert kserve(rows) == [{"predictions": [1, {"b64": "YQ=="}]}, {"predictions": [[2]]}]
    as_json = enveloped(tmp_path, "json")
    plain: list[dict[str, Any]] = [{"body": {"instances": [1, 2]}}, {"data": b'{"instances": [[2]]}'}]
    assert [json.loads(one) for one in as_json(plain)] == [{"predictions": [1, 2]}, {"predictions": [[2]]}]
    with pytest.raises(ValueError, match="instances"):
        kserve([{"body": b"{}"}])


def test_labels_may_be_lists_and_are_checked(tmp_path: Path) -> None:
    file = tmp_path / "index_to_name.json"
    assert load_label_mapping(str(file)) is None
    file.write_text('{"0": ["n01", "cat"], "1": "dog"}')
    assert load_label_mapping(str(file)) == {"0": "cat", "1": "dog"}
    file.write_text('{"0": 1}')
    with pytest.raises(ValueError, match="a label is a text"):
        load_label_mapping(str(file))
    assert map_class_to_label([[0.5, 0.25]]) == [{"0": 0.5, "1": 0.25}]


# --- freezing -------------------------------------------------------------------------------------


class Conv(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Random(torch.nn.Module):  # type: ignore[misc]
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand_like(x)


def test_a_frozen_network_is_used_where_it_answers_alike() -> None:
    original = scripted(Conv())
    frozen = FrozenScript(original)
    data = torch.ones(2, 3, 5, 5)
    with torch.inference_mode():
        first, second = frozen(data), frozen(data)
        assert frozen._frozen is not None
        assert torch.allclose(first, second, atol=1e-5)
        assert torch.allclose(frozen(data * 2), original(data * 2), atol=1e-5)


def test_a_frozen_network_that_answers_otherwise_later_is_given_up() -> None:
    original = scripted(Conv())
    frozen = FrozenScript(original)
    data = torch.ones(2, 3, 5, 5)
    with torch.inference_mode():
        for _ in range(5):
            frozen(data)
        for weights in original.parameters():
            weights.data.zero_()  # by a handler that learns
        answers = [frozen(data) for _ in range(4)]
        assert frozen._frozen is None
        assert torch.equal(answers[2], original(data)), "at the eighth they are compared"
        assert torch.equal(answers[3], original(data))


class InPlace(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1.0)
        return self.layer(x)


def test_a_network_that_writes_to_its_input_is_asked_once_for_each_answer() -> None:
    original = scripted(InPlace())
    frozen = FrozenScript(original)
    with torch.inference_mode():
        expected = original(torch.ones(1, 4))
        for _ in range(6):
            data = torch.ones(1, 4)
            assert torch.allclose(frozen(data), expected, atol=1e-5)
            assert torch.equal(data, torch.full((1, 4), 2.0))
    assert frozen._frozen is not None


def test_a_network_whose_answers_differ_stays_as_it_is() -> None:
    frozen = FrozenScript(scripted(Random()))
    with torch.inference_mode():
        frozen(torch.ones(4))
        frozen(torch.ones(4))
    assert frozen._frozen is None


def test_ts_is_there_in_a_worker_alone() -> None:
    code = (
        "from partita.worker.archive.importing import offer_ts; offer_ts();"
        "import ts, ts.context; from ts.utils.util import PredictionException as P;"
        "from partita.worker.archive.ts.utils.util import PredictionException as Q; assert P is Q;"
        "assert ts.__version__ == '0.12.0'; from ts.torch_handler.request_envelope import json"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert "ts" not in sys.modules
