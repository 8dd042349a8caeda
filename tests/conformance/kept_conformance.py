"""What every runtime is tested for that keeps models as it has prepared them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from partita.testing.runtime_conformance import RuntimeConformance
from partita.worker.runtimes.interface import Runtime
from partita.worker.warmup import generated_inputs


class KeptConformance(RuntimeConformance):
    """What the second who loads a model gets. A subclass says how it is loaded, and which files are kept."""

    load: Callable[[Path], Runtime]
    kept: Callable[[Path], list[Path]]

    @pytest.fixture(autouse=True)
    def _model(self, model: Callable[[Path], Path], cache: Path) -> None:
        self.model, self.cache = model, cache

    def make(self, tmp_path: Path) -> Runtime:
        path = self.model(tmp_path / "model.onnx")
        type(self).load(path)
        assert type(self).kept(self.cache)
        return type(self).load(path)


def answer_alike(own: Runtime, others: Sequence[Runtime]) -> None:
    """Assert that all give the answers of the model itself, bit by bit."""
    for rows in (1, 4):
        inputs = generated_inputs(own.signature, own.signature.fixed_batch or rows, {})
        inputs = {
            key: array - array.dtype.type(0.5) if array.dtype.kind == "f" else array
            for key, array in inputs.items()
        }
        expected = own.infer(inputs)
        for runtime in others:
            assert runtime.signature == own.signature
            outputs = runtime.infer(inputs)
            assert outputs.keys() == expected.keys()
            for name, array in expected.items():
                assert outputs[name].dtype == array.dtype
                assert array.dtype != object or outputs[name].tolist() == array.tolist()
                assert array.dtype == object or outputs[name].tobytes() == array.tobytes()
