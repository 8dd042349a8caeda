"""The peer of `http_small`: mosec over one model, raw FP32 in and out. Settings come by environment."""

import os
from typing import Any

import numpy as np
from mosec import Server, Worker
from numpy.typing import NDArray


class Model(Worker):  # type: ignore[misc, unused-ignore]
    """Runs a batch of rows in ONNX Runtime on one thread."""

    def __init__(self) -> None:
        import onnxruntime as ort

        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        self._session = ort.InferenceSession(os.environ["MOSEC_MODEL"], options)

    def deserialize(self, data: bytes) -> NDArray[np.float32]:
        """Take a body as it is."""
        return np.frombuffer(data, np.float32)

    def serialize(self, data: NDArray[np.float32]) -> bytes:
        """Give a row as it is."""
        return data.tobytes()

    def forward(self, data: Any) -> Any:
        """Run one batch; a lone request comes bare where mosec does not batch."""
        return list(self._session.run(None, {"x": np.stack(data)})[0])


def main() -> None:
    server: Any = Server()  # type: ignore[no-untyped-call, unused-ignore]
    server.append_worker(
        Model,
        num=int(os.environ["MOSEC_WORKERS"]),
        max_batch_size=int(os.environ["MOSEC_MAX_BATCH"]),
        max_wait_time=int(os.environ["MOSEC_WAIT_MS"]),
    )
    server.run()


if __name__ == "__main__":
    main()
