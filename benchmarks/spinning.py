"""What threads that wait for each other by spinning are worth, model by model, two threads on two cores.

Sessions that differ in one setting take turns; each figure is a setting's quickest turn ÷ that of spinning.
It holds nothing to a bar: it is what docs/decisions/0002-worker-is-one-loop.md rests on.

    python -m benchmarks.spinning --quick
"""

import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort

from benchmarks.figures import Figure, load_average, options, report
from benchmarks.models import model_path

SETTINGS: Mapping[str, Mapping[str, str]] = {
    "spinning": {"session.intra_op.allow_spinning": "1"},
    "without": {"session.intra_op.allow_spinning": "0"},
    "until the end": {"session.intra_op.allow_spinning": "1", "session.force_spinning_stop": "1"},
    "at most 0.2 ms": {"session.intra_op.allow_spinning": "1", "session.intra_op.spin_duration_us": "200"},
    "at most 1 ms": {"session.intra_op.allow_spinning": "1", "session.intra_op.spin_duration_us": "1000"},
}
MODELS = ("resnet50", "branchy", "tiny_cnn")
BATCHES = (1, 4)
TURN_S = 0.05
REST_S = 0.003


def session(model: str, entries: Mapping[str, str]) -> ort.InferenceSession:
    """Return a session of two threads with these settings."""
    made = ort.SessionOptions()
    made.intra_op_num_threads, made.inter_op_num_threads = 2, 1
    for key, value in entries.items():
        made.add_session_config_entry(key, value)
    return ort.InferenceSession(str(model_path(model)), made, providers=["CPUExecutionProvider"])


def turn_ms(one: ort.InferenceSession, batch: Mapping[str, np.ndarray]) -> float:
    """Return the mean time of an execution over one turn; the first wakes the threads and is not counted."""
    one.run(None, batch)
    begun, count = time.perf_counter(), 0
    while count == 0 or time.perf_counter() - begun < TURN_S:
        one.run(None, batch)
        count += 1
    return (time.perf_counter() - begun) / count * 1e3


def compared(model: str, *, turns: int) -> list[Figure]:
    """Return one figure for each batch size."""
    sessions = {name: session(model, entries) for name, entries in SETTINGS.items()}
    (given,) = sessions["spinning"].get_inputs()
    figures = []
    for size in BATCHES:
        batch = {given.name: np.ones((size, *given.shape[1:]), np.float32)}
        best = dict.fromkeys(sessions, float("inf"))
        for _ in range(turns):
            for name, one in sessions.items():
                best[name] = min(best[name], turn_ms(one, batch))
                time.sleep(REST_S)
        base = best["spinning"]
        text = ", ".join(f"{name} {ms / base:.2f}" for name, ms in best.items() if name != "spinning")
        figures.append(
            Figure(
                name=f"{model}, batch {size} ({base:.2f} ms)", figure=text, bar="", passed=None, details=best
            )
        )
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    given = options(__doc__, "spinning").parse_args(argv)
    print(load_average(), flush=True)
    figures = [one for model in MODELS for one in compared(model, turns=3 if given.quick else 10)]
    return report("spinning", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
