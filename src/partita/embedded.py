"""The engine inside another Python program: numpy in, numpy out, no socket needed."""

import asyncio
import mmap
import threading
import weakref
from collections.abc import Coroutine, Mapping, Sequence
from concurrent.futures import Future
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import numpy as np
import uvloop
from numpy.typing import ArrayLike, NDArray

from partita.catalogue import Catalogue
from partita.core.errors import InvalidRequest, PartitaError, RequestError
from partita.core.plan import Plan
from partita.core.tensors import DataType, Signature
from partita.deploy import deployments
from partita.engine.request import Buffer, Request, Shapes, missing_members
from partita.engine.service import Service
from partita.head import Head
from partita.profiles import saved_or_measured
from partita.protocols.oip.documents import InferRequest, InputParameters, InputTensor
from partita.protocols.oip.inference import split_items
from partita.protocols.oip.templates import Template, make_template
from partita.protocols.oip.tensors import elements
from partita.protocols.plans import InstancesAsked, unplaced
from partita.settings import ServerSettings, Settings
from partita.sources import ModelSource, find_all
from partita.system.cpus import read_topology

Arrays = dict[str, NDArray[Any]]


class Answer(Arrays):
    """A model's outputs by name. `missing` names an ensemble's members that have no part in them."""

    missing: tuple[str, ...] = ()


T = TypeVar("T")


class Server:
    """Serves models in this process: ``with partita.Server(["model.onnx"], cores=2) as server: ...``.

    `models` are paths (or `ModelSource`s), `cores` a count or a list as ``"0-3"``. With ``http`` set in
    `settings` and ``ports=True`` the same engine answers over the network as well. A model that has no
    profile is profiled first, unless `tune` is ``"background"`` or ``"never"``. The management port opens
    only where `settings` name another address for it than the usual one.
    """

    def __init__(
        self,
        models: Sequence[str | PathLike[str] | ModelSource],
        *,
        cores: int | str | None = None,
        tune: str | None = None,
        settings: Settings | None = None,
        ports: bool = False,
    ) -> None:
        self.settings = (settings or Settings()).with_server(cores=cores, tune=tune)
        found = [m for m in models if isinstance(m, ModelSource)]
        paths = tuple(Path(m) for m in models if not isinstance(m, ModelSource))
        self._sources = [*found, *(find_all(paths, self.settings) if paths else ())]
        self._catalogue = Catalogue(paths=paths, settings=self.settings)
        self._ports = ports
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._head: Head | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- life -------------------------------------------------------------------------------------

    def start(self) -> None:
        """Plan, start the workers and wait until every model can answer.

        Raises `PartitaError`, and `RuntimeError` if it was started and not stopped.
        """
        if self._thread is not None:
            raise RuntimeError("the server is already running; stop it first")
        server = self.settings.server
        planned = deployments(self._sources, server, read_topology(), saved_or_measured(server))
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="partita-head", daemon=True)
        self._thread.start()
        self._head = Head(
            _quiet_unless_asked(server), self._loop, catalogue=self._catalogue, sources=self._sources
        )
        try:
            self._call(self._head.start(planned, ports=self._ports))
        except BaseException:
            self.stop()
            raise

    def _run(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def stop(self) -> None:
        """Answer what was accepted, then end the workers and the thread; a second time does nothing."""
        if self._loop is None or self._thread is None:
            return
        if self._head is not None:
            self._call(self._head.stop(self.settings.server.drain_s))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop = self._thread = self._head = None

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    @property
    def head(self) -> Head:
        """The running head; raises `RuntimeError` before `start`."""
        if self._head is None:
            raise RuntimeError("the server is not running; use it in a with statement, or call start()")
        return self._head

    def url(self, port: str = "http") -> str:
        """Return ``http://HOST:PORT`` (or ``https``) of an open port."""
        return f"{self.head.scheme}://{self.head.ports[port]}"

    def segment(self, model: str) -> int | None:
        """Return how many items an ensemble's file wants to be handed in together offline; None elsewhere."""
        for source in self._sources:
            if source.name == model and source.ensemble is not None:
                return source.ensemble.segment
        return None

    def switch(self, model: str, *instances: tuple[int, int, int]) -> str:
        """Change a model's plan to these ⟨i, t, b⟩ while it serves; returns when new batches go to it.

        ``server.switch("resnet", (4, 2, 8))`` asks for 4 instances of 2 cores and 8 items each. No request is
        lost. Returns the plan in force. Raises `InvalidInput`, `NoFeasiblePlan` or `SwitchFailed`, and the
        old plan then goes on.
        """
        plan = unplaced([InstancesAsked(threads=t, batch=b, count=i) for i, t, b in instances])
        return self._call(self._switch(model, plan))

    async def _switch(self, model: str, plan: Plan) -> str:
        switch = self.head.adaptation.switch(model, plan, "asked for in Python")
        await switch.until_accepting()
        return str(switch.plan)

    # --- asking -----------------------------------------------------------------------------------

    def signature(self, model: str, version: str = "") -> Signature:
        """Return what a model takes and gives."""
        return self.head.engine.service(model, version).signature

    def predict(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike] | ArrayLike,
        *,
        version: str = "",
        timeout_s: float | None = None,
    ) -> Answer:
        """Run a model on arrays with their batch axis in front; returns its outputs by name.

        A model with one input takes the array itself; `version` is one of several that are served. BYTES
        tensors are arrays of `bytes` or `str`; outputs are arrays of `bytes`. Raises `InvalidRequest` for
        wrong names, dtypes or shapes, else `RequestError`.
        """
        return self.submit(model, inputs, version=version, timeout_s=timeout_s).result()

    async def apredict(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike] | ArrayLike,
        *,
        version: str = "",
        timeout_s: float | None = None,
    ) -> Answer:
        """Run `predict` without blocking the calling loop."""
        return await asyncio.wrap_future(self.submit(model, inputs, version=version, timeout_s=timeout_s))

    def submit(
        self,
        model: str,
        inputs: Mapping[str, ArrayLike] | ArrayLike,
        *,
        version: str = "",
        timeout_s: float | None = None,
        copy: bool = True,
    ) -> "Future[Answer]":
        """Hand a request in and return at once; cancelling the future cancels the request.

        Without `copy` nobody may write to the inputs before the answer is there.
        """
        service = self.head.engine.service(model, version)
        template, buffers = prepare(service.signature, inputs, copy=copy)
        asked = _Asked(service, template, buffers, timeout_s)
        assert self._loop is not None
        self._loop.call_soon_threadsafe(asked.submit)
        asked.future.add_done_callback(self._cancel_if_cancelled(asked))
        return asked.future

    def _cancel_if_cancelled(self, asked: "_Asked") -> Any:
        living = weakref.ref(asked)  # a cycle would keep inputs and answer until the collector comes by

        def done(future: "Future[Answer]") -> None:
            known = living()
            if known is not None and future.cancelled() and self._loop is not None:
                self._loop.call_soon_threadsafe(known.cancel)

        return done


def _quiet_unless_asked(server: ServerSettings) -> ServerSettings:
    """Return the settings without the management port, unless another than the usual one was chosen."""
    if server.management == ServerSettings().management:
        return msgspec.structs.replace(server, management=None)
    return server


class _Asked:
    """One request of this process; the engine's `Sink` for it."""

    def __init__(
        self, service: Service, template: Template, buffers: list[Buffer], timeout_s: float | None
    ) -> None:
        self.future: Future[Answer] = Future()
        self._service = service
        self._template = template
        self._buffers = buffers
        self._timeout_s = timeout_s
        self._request: Request | None = None

    def submit(self) -> None:
        template, service = self._template, self._service
        if self.future.cancelled():
            return
        try:
            if template.layout.is_ragged:
                items = split_items(service, template, self._buffers)
                self._request = service.submit_ragged(items, template.layout, self, None, self._timeout_s)
            else:
                self._request = service.submit(
                    self._buffers, template.n_items, template.layout, self, None, self._timeout_s
                )
        except RequestError as error:
            self.failed(None, error)

    def cancel(self) -> None:
        request, self._request = self._request, None
        if request is not None:
            self._service.cancel(request)

    def answered(self, request: Request, outputs: Sequence[Buffer], shapes: Shapes) -> None:  # noqa: ARG002
        arrays = Answer(
            (spec.name, _array(spec.datatype, data, shape))
            for spec, data, shape in zip(self._service.signature.outputs, outputs, shapes, strict=True)
        )
        arrays.missing = missing_members(shapes)
        self._request = None  # it knows this sink
        if self.future.set_running_or_notify_cancel():
            self.future.set_result(arrays)

    def failed(self, request: Request | None, error: PartitaError) -> None:  # noqa: ARG002
        self._request = None
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


def _array(datatype: DataType, data: Buffer, shape: tuple[int, ...]) -> NDArray[Any]:
    if datatype is DataType.BYTES:
        count = int(np.prod(shape))
        array = np.empty(count, dtype=object)
        array[:] = list(elements(data, count))
        return array.reshape(shape)
    return np.frombuffer(data, datatype.numpy).reshape(shape).copy()


def prepare(
    signature: Signature, inputs: Mapping[str, ArrayLike] | ArrayLike, *, copy: bool = True
) -> tuple[Template, list[Buffer]]:
    """Return arrays as a request's template and its inputs' bytes; raises `InvalidRequest`.

    Without `copy` the bytes are the arrays' own, where those lie in a row and in memory.
    """
    if not isinstance(inputs, Mapping):
        if len(signature.inputs) != 1:
            names = ", ".join(spec.name for spec in signature.inputs)
            raise InvalidRequest(f"the model has several inputs, give them by name: {names}")
        inputs = {signature.inputs[0].name: inputs}
    specs = {spec.name: spec for spec in signature.inputs}
    tensors: list[InputTensor] = []
    packed: dict[str, Buffer] = {}
    for name, value in inputs.items():
        spec = specs.get(name)
        is_text = spec is not None and spec.datatype is DataType.BYTES and not isinstance(value, np.ndarray)
        array = np.array(value, object) if is_text else np.asarray(value)  # numpy's own bytes drop zeros
        datatype = _datatype(name, array, spec.datatype if spec else None)
        packed[name] = _packed(array, datatype, copy=copy)
        parameters = InputParameters(binary_data_size=len(packed[name]))
        tensors.append(InputTensor(name, datatype.value, array.shape, parameters))
    template = make_template(InferRequest(inputs=tuple(tensors)), signature)
    return template, [packed[spec.name] for spec in signature.inputs]


def _datatype(name: str, array: NDArray[Any], wanted: DataType | None) -> DataType:
    if wanted is DataType.BF16 and array.dtype == np.uint16:
        return wanted
    try:
        return DataType.of(array.dtype)
    except KeyError:
        raise InvalidRequest(f"input {name!r}: dtype {array.dtype} has no datatype here") from None


def _packed(array: NDArray[Any], datatype: DataType, *, copy: bool = True) -> Buffer:
    if datatype is not DataType.BYTES:
        plain = np.ascontiguousarray(array).astype(datatype.numpy, copy=False)
        return plain.tobytes() if copy or not plain.size or _is_mapped(plain) else plain.data.cast("B")
    raws = [v if isinstance(v, bytes) else str(v).encode("utf-8") for v in array.ravel()]
    return b"".join(len(raw).to_bytes(4, "little") + raw for raw in raws)


def _is_mapped(array: NDArray[Any]) -> bool:
    """Whether it lies in a mapped file, which the head's loop would have to wait for."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return isinstance(base, mmap.mmap)
