"""Hugging Face folders: transformers' own networks, no pickles, and no code of the folder."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.core.errors import PartitaError
from partita.profiling.identity import model_hash
from partita.sources import find_models
from partita.worker.runtimes.interface import LoadRequest, Runtime
from partita.worker.runtimes.registry import runtime_loader

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytest.importorskip("tqdm").tqdm.monitor_interval = 0  # else saving starts a thread for its bar
pytestmark = pytest.mark.filterwarnings("default")

CODE = """
import pathlib

pathlib.Path(__file__).with_name("ran").touch()
"""


def save(network: Any, folder: Path) -> Path:
    network.eval().save_pretrained(folder)
    return folder / "model.safetensors"


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = transformers.BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=80,
        num_labels=3,
    )
    network = transformers.BertForSequenceClassification(config)
    return save(network, tmp_path_factory.mktemp("bert") / "bert")


def loaded(runtime: str, path: Path, **options: str | int | float | bool) -> Runtime:
    return runtime_loader(runtime)(LoadRequest(path=str(path), model="test", max_batch=4, options=options))


def texts(rows: int, length: int) -> dict[str, np.ndarray]:
    ids = np.random.default_rng(length).integers(0, 50, (rows, length))
    mask = np.ones_like(ids)
    mask[0, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def own(path: Path, batch: dict[str, np.ndarray]) -> np.ndarray:
    """Return what transformers itself computes."""
    import torch

    network = transformers.AutoModelForSequenceClassification.from_pretrained(path.parent).eval()
    with torch.inference_mode():
        given = {name: torch.from_numpy(array) for name, array in batch.items()}
        logits: np.ndarray = network(**given).logits.numpy()
    return logits


def test_a_folder_of_texts(bert: Path) -> None:
    (source,) = find_models(bert.parent)
    assert (source.name, source.path, source.runtime) == ("bert", bert, "torch-eager")
    runtime = loaded("torch-eager", bert)
    assert [(i.name, i.shape) for i in runtime.signature.inputs] == [
        ("input_ids", (-1,)),
        ("attention_mask", (-1,)),
    ]
    for batch in (texts(1, 5), texts(3, 9)):
        np.testing.assert_allclose(runtime.infer(batch)["logits"], own(bert, batch), rtol=1e-5, atol=1e-6)


def test_texts_of_any_length_can_be_exported(bert: Path) -> None:
    """The program is what ONNX Runtime, OpenVINO and Inductor are given."""
    import torch

    from partita.worker.runtimes.torch_built import program_of
    from partita.worker.runtimes.torch_program import signature_of

    request = LoadRequest(path=str(bert), model="test")
    program = program_of(request)
    assert [i.shape for i in signature_of(program, request).inputs] == [(-1,), (-1,)]
    assert [o.name for o in signature_of(program, request).outputs] == ["logits"]
    for batch in (texts(1, 5), texts(3, 9)):
        with torch.inference_mode():
            given = {name: torch.from_numpy(array) for name, array in batch.items()}
            logits = program.module()(**given).logits.numpy()
        np.testing.assert_allclose(logits, own(bert, batch), rtol=1e-4, atol=1e-5)


def test_a_folder_of_images(tmp_path: Path) -> None:
    config = transformers.ViTConfig(
        image_size=16,
        patch_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    path = save(transformers.ViTForImageClassification(config), tmp_path / "vit")
    runtime = loaded("torch-eager", path)
    assert [(i.name, i.shape) for i in runtime.signature.inputs] == [("pixel_values", (3, 16, 16))]
    images = np.random.default_rng(0).standard_normal((2, 3, 16, 16), np.float32)
    assert runtime.infer({"pixel_values": images})["logits"].shape == (2, 2)


def test_code_that_comes_with_a_folder_is_not_run(bert: Path) -> None:
    folder = bert.parent.parent / "mine"
    folder.mkdir()
    (folder / "modeling_mine.py").write_text(CODE)
    (folder / bert.name).write_bytes(bert.read_bytes())
    document = json.loads((bert.parent / "config.json").read_text())
    for changed, reason in (
        ({"architectures": ["Mine"]}, "the architecture Mine is none of transformers' own"),
        ({"architectures": ["logging"]}, "is none of transformers' own"),
        ({"model_type": "mine"}, "transformers cannot load mine"),
    ):
        remote = {"auto_map": {"AutoConfig": "modeling_mine.Mine", "AutoModel": "modeling_mine.Mine"}}
        (folder / "config.json").write_text(json.dumps({**document, **remote, **changed}))
        with pytest.raises(PartitaError, match=reason):
            loaded("torch-eager", folder / bert.name)
        assert not (folder / "ran").exists()


def test_pickled_weights_are_refused_unless_allowed(bert: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    torch.save(load_file(bert), tmp_path / "pytorch_model.bin")
    (tmp_path / "config.json").write_bytes((bert.parent / "config.json").read_bytes())
    with pytest.raises(PartitaError, match=r"save the model as model\.safetensors"):
        loaded("torch-eager", tmp_path / "pytorch_model.bin")
    runtime = loaded("torch-eager", tmp_path / "pytorch_model.bin", unpickle_may_run_code=True)
    batch = texts(2, 4)
    np.testing.assert_allclose(runtime.infer(batch)["logits"], own(bert, batch), rtol=1e-5, atol=1e-6)


def test_weights_that_are_not_those_of_the_configuration(bert: Path, tmp_path: Path) -> None:
    (tmp_path / bert.name).write_bytes(b"no weights at all")
    (tmp_path / "config.json").write_bytes((bert.parent / "config.json").read_bytes())
    with pytest.raises(PartitaError, match="transformers cannot load"):
        loaded("torch-eager", tmp_path / bert.name)


def test_the_configuration_is_a_part_of_the_model(bert: Path, tmp_path: Path) -> None:
    (tmp_path / bert.name).write_bytes(bert.read_bytes())
    before = model_hash(tmp_path / bert.name)
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    assert model_hash(tmp_path / bert.name) != before
