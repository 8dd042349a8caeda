"""The README's Python examples do what they say, with the demo's models as the files that they name."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import partita
from partita.demo import digits
from partita.embedded import Server
from partita.settings import InputSettings, ModelSettings, ServerSettings, Settings
from partita.system.addresses import Address

README = Path(__file__).resolve().parents[2] / "README.md"


def example(containing: str) -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if containing in block]
    return str(found)


def run(block: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(block, str(README), "exec"), names)
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copy(digits.model_files()["digits_cnn"], tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.e2e
def test_tritonclient(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(server=ServerSettings(http=Address("127.0.0.1", 0), management=None, metrics=None))
    with Server([folder / "digits_cnn.onnx"], settings=settings, tune="never", ports=True) as server:
        run(example("tritonclient").replace("localhost:8080", server.url().removeprefix("http://")))
    assert re.fullmatch(r"\[\d \d \d\]\n", capsys.readouterr().out)


@pytest.mark.e2e
@pytest.mark.alone
def test_the_engine_in_python(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    partita.plan("digits_cnn.onnx", cores=2, batch=32, budget_s=3.0)  # kept, so that the example is quick
    run(example("partita.Server"))
    assert re.search(r"⟨\d+,\d+,\d+⟩.* \(3, 10\)", capsys.readouterr().out)


@pytest.mark.e2e
def test_the_handler(folder: Path) -> None:
    version = folder / "digits" / "1"
    version.mkdir(parents=True)
    (folder / "digits_cnn.onnx").rename(version / "model.onnx")
    (folder / "digits" / "handler.py").write_text(example("class Digits"), encoding="utf-8")
    image = InputSettings(shape=(-1, 8, 8), datatype="FP32")
    settings = Settings(model={"digits": ModelSettings(inputs={"image": image})})
    data = digits.load_digits()
    with Server([folder / "digits"], settings=settings, tune="never") as server:
        answer = server.predict("digits", {"image": data.images[:32].reshape(-1, 8, 8)})
    right = answer["digit"] == data.labels[:32]
    assert right.sum() >= 31
