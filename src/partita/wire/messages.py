"""The closed set of messages between the head and one worker.

One message is one frame of the channel. Item data never travel here: they lie in shared memory, and
messages carry offsets into it. Two files accompany messages as descriptors: the arena of inputs X with
`Start` (mapped read-only by the worker) and the arena of outputs P with `Ready`.
"""

import msgspec

from partita.core.tensors import Signature, TensorSpec

PART_BYTES = 64 << 10
"""Content of one part of an answer; more goes in several."""


class Message(msgspec.Struct, frozen=True, array_like=False, tag=True, omit_defaults=True):
    """Root of all messages: a plain map with a ``type`` tag on the wire."""


# --- head to worker -------------------------------------------------------------------------------


class Gpu(msgspec.Struct, frozen=True):
    """The GPU that a model is to be loaded onto, as the process sees it."""

    name: str
    """What the head calls it, ``cuda:0``."""
    driver: str = ""
    """``package.module:Class`` of what drives it; "" = CUDA."""
    index: int = 0
    memory_bytes: int | None = None
    """What all models of the process may hold there together; None = as much as there is."""


class Adopt(Message, frozen=True):
    """To a process of many models: serve one more. The worker's end of its channel comes along."""

    instance: int


class Start(Message, frozen=True, kw_only=True):
    """First message: everything that the worker needs to load its model. X's descriptor comes along."""

    instance: int
    model: str
    path: str
    runtime: str
    threads: int
    cores: tuple[int, ...]
    """Logical CPUs to pin to; empty = wherever the head may run."""
    owns_cores: bool = True
    """Whether no other instance shares the cores, so that threads may spin."""
    max_batch: int
    handler: str | None = None
    """``FILE.py:Class``, absolute."""
    options: dict[str, str | int | float | bool] = {}
    """Settings of the runtime, named in its own documentation."""
    inputs: tuple[TensorSpec, ...] | None = None
    """The inputs of the handler, where the model file itself does not say them."""
    dimensions: dict[str, int] = {}
    """Sizes for symbolic axes, for warm-up."""
    gpu: Gpu | None = None
    """Where the model is to be; None = on the cores."""
    memory_at: tuple[int, ...] = ()
    """Batch sizes to execute once while it warms up, so that `Ready` can say what is held after each."""
    input_arena_bytes: int
    output_slots: int = 3
    max_output_bytes: int = 1 << 40
    """Most that the outputs of one item may have."""


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A run of consecutive items in X: `rows` items, and where each input's first one begins, bytes."""

    rows: int
    offsets: tuple[int, ...]


class Execute(Message, frozen=True):
    """Run one batch: its items are the chunks' items in order."""

    batch_id: int
    slot: int
    chunks: tuple[Chunk, ...]
    shapes: tuple[tuple[int, ...], ...] | None = None
    """Item shape of each input where the signature is not static."""
    sizes: tuple[tuple[int, ...], ...] | None = None
    """Bytes of each chunk's inputs, for models with BYTES inputs (one item a chunk)."""
    executions: tuple[int, ...] = ()
    """Micro-batch sizes to run one after another; empty = all at once."""


class Stop(Message, frozen=True):
    """Finish the batch at hand and exit."""


# --- worker to head -------------------------------------------------------------------------------


class Left(Message, frozen=True):
    """From a process of many models: this one's worker is gone, the others go on."""

    instance: int
    code: int


class Held(msgspec.Struct, frozen=True, array_like=True):
    """What a model held once a batch of so many items had been executed, bytes."""

    batch: int
    nbytes: int


class Ready(Message, frozen=True, kw_only=True):
    """The model is loaded and warm. The descriptor of P comes along."""

    signature: Signature
    load_s: float
    resident_bytes: int
    """Of the whole process, where it has several models."""
    device_bytes: int | None = None
    """What the model holds on its GPU; None on cores."""
    output_arena_bytes: int
    runtime_version: str
    memory: tuple[Held, ...] = ()
    """For each size of `Start.memory_at` that could be executed, fewest items first."""
    threads_seen: int | None = None
    """What the runtime itself says its thread count is; None where it cannot be asked."""
    pinned: bool = True
    warnings: tuple[str, ...] = ()


class StartFailed(Message, frozen=True):
    """The model cannot be loaded; the worker exits after this."""

    code: str
    reason: str


class Output(msgspec.Struct, frozen=True, array_like=True):
    """One output of a batch in P: the first byte, its length, and the shape with the batch axis."""

    offset: int
    size: int
    shape: tuple[int, ...]


class Measured(msgspec.Struct, frozen=True, array_like=True):
    """One metric of a user's handler: how much a counter has grown, or the newest value of another."""

    name: str
    labels: tuple[tuple[str, str], ...]
    value: float
    is_sum: bool


class BatchDone(Message, frozen=True):
    """A batch was executed; its outputs are in the slot that `Execute` named.

    Times are nanoseconds: all of it, and of that the inference alone.
    """

    batch_id: int
    outputs: tuple[Output, ...]
    begun_ns: int
    """When it began, on the machine's monotonic clock: that of all its processes."""
    total_ns: int
    infer_ns: int
    output_arena_bytes: int = 0
    """Non-zero when P has grown and must be mapped anew."""
    measured: tuple[Measured, ...] = ()
    """What the handler's metrics have come to since the last batch."""


class PartDone(Message, frozen=True):
    """A part of the answer to one item of the batch that is being executed, ahead of the rest.

    The one case where data of an answer travel here: parts are small, and nobody knows how many will come.
    """

    batch_id: int
    row: int
    """Which item of the batch."""
    part: bytes
    """At most `PART_BYTES` of content, as the runtime and the protocol agree on it."""


class BatchFailed(Message, frozen=True):
    """The model or the user's code raised on this batch; nothing was written."""

    batch_id: int
    reason: str
    code: str = "inference_failed"


HeadToWorker = Start | Execute | Stop
WorkerToHead = Ready | StartFailed | PartDone | BatchDone | BatchFailed
HeadToHost = Adopt | Stop
HostToHead = Left
