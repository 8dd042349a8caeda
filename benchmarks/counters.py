"""The server's counters beside its clients', after requests that were answered, refused, late or left.

Three loads on one server, with the real client packages: 1,000 gRPC calls with a deadline of 1 ms; 200 HTTP
clients that leave while their requests are queued behind one that holds the only worker; and 10,000 mixed
requests, of which some fail, some are refused because the queue is full, and some are cancelled. A handler
counts what it executes in a file, so that it is known whether what waited was ever run.

    python -m benchmarks.counters --quick
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import numpy as np
import tritonclient.grpc.aio as triton_grpc
import tritonclient.http.aio as triton_http
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from benchmarks.figures import Figure, options, report
from benchmarks.servers import free_port, started

MODEL = "steps"
HANDLER = """
    import os
    import time

    import numpy as np

    class Steps:
        inputs = {"x": {"shape": [-1, 1], "datatype": "FP32"}}
        outputs = {"y": {"shape": [-1, 1], "datatype": "FP32"}}

        def infer(self, batch):
            values = batch["x"]
            with open(os.environ["STEPS_LOG"], "a") as log:
                log.writelines(f"{value}\\n" for value in values[:, 0])
            if (values < -1).any():
                raise ValueError("values below -1 are not for us")
            if (values == -1).any():
                while not os.path.exists(os.environ["STEPS_GATE"]):
                    time.sleep(0.005)
            time.sleep(0.0005)
            return {"y": values * 2}
"""
QUEUE = 256
BATCH = 8
"""So many wait in the worker's channel behind the batch at hand; what waits in the queue comes after them."""
LEAVERS = 200
BURST, CANCELLED = 450, 30
"""Of the mixed requests: how many are sent at once, and how many before them wait and are cancelled."""
FIRST_LEAVER = 1_000_000.0
"""What those who leave ask for counts on from here, so that the handler's log tells them."""


@dataclass(frozen=True, slots=True)
class Served:
    """A server, and where its handler writes."""

    http: str
    grpc: str
    metrics: str
    log: Path
    gate: Path
    pid: int


@dataclass(frozen=True, slots=True)
class Seen:
    """The server's counters at one moment."""

    requests: Counter[str]
    """By outcome."""
    refused: Counter[str]
    """By error code."""
    pending: float
    queued: float
    restarts: float
    deaths: float

    def since(self, before: "Seen") -> tuple[Counter[str], Counter[str]]:
        """Return what was counted since then."""
        requests = Counter({key: n - before.requests[key] for key, n in self.requests.items()})
        refused = Counter({key: n - before.refused[key] for key, n in self.refused.items()})
        return +requests, +refused


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """Serve a class with one worker, whose queue is short."""
    (folder / MODEL).mkdir()
    (folder / MODEL / "handler.py").write_text(dedent(HANDLER), encoding="utf-8")
    (folder / "p.toml").write_text(
        f"[server]\ncores = 1\n[model.{MODEL}]\nqueue_size = {QUEUE}\nmax_batch = {BATCH}\n"
    )
    ports = {name: f"127.0.0.1:{free_port()}" for name in ("http", "metrics", "grpc")}
    log, gate = folder / "log", folder / "gate"
    argv = [
        sys.executable,
        "-m",
        "partita.cli",
        "serve",
        str(folder / MODEL),
        "--config",
        str(folder / "p.toml"),
    ]
    argv += [option for name, address in ports.items() for option in (f"--{name}", address)]
    argv += ["--management", "off", "--tune", "never", "--no-adapt", "--json"]
    environment = {**os.environ, "PARTITA_CACHE_DIR": str(folder / "cache")}
    environment |= {"STEPS_LOG": str(log), "STEPS_GATE": str(gate)}
    with started(argv, environment, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"partita did not start: status {process.wait()}")
        yield Served(ports["http"], ports["grpc"], ports["metrics"], log, gate, process.pid)


def look(served: Served) -> Seen:
    """Read the metrics port."""
    with urllib.request.urlopen(f"http://{served.metrics}/metrics", timeout=20) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    samples = [sample for family in families for sample in family.samples]

    def by(name: str, label: str) -> Counter[str]:
        return Counter({s.labels[label]: int(s.value) for s in samples if s.name == name})

    def total(name: str) -> float:
        return sum(s.value for s in samples if s.name == name)

    return Seen(
        by("partita_requests_total", "outcome"),
        by("partita_refusals_total", "code"),
        total("partita_requests_in_flight"),
        total("partita_queue_items"),
        total("partita_worker_restarts"),
        total("partita_worker_deaths_total"),
    )


async def settled(
    served: Served, condition: Callable[[Seen], bool] = lambda seen: not seen.pending, limit_s: float = 30.0
) -> Seen:
    """Wait until nothing is in flight, or as the condition says; returns what was seen last."""
    end_s = time.monotonic() + limit_s
    while True:
        seen = await asyncio.to_thread(look, served)
        if condition(seen) or time.monotonic() > end_s:
            return seen
        await asyncio.sleep(0.02)


def grpc_input(value: float) -> list[triton_grpc.InferInput]:
    tensor = triton_grpc.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.full((1, 1), value, np.float32))
    return [tensor]


def http_input(value: float) -> list[triton_http.InferInput]:
    tensor = triton_http.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.full((1, 1), value, np.float32))
    return [tensor]


async def impatient(served: Served, count: int) -> Iterator[Figure]:
    """Calls whose deadline is 1 ms."""
    before = look(served)
    client = triton_grpc.InferenceServerClient(served.grpc)
    told: Counter[str] = Counter()

    async def ask() -> None:
        try:
            await client.infer(MODEL, grpc_input(1.0), client_timeout=0.001)
        except InferenceServerException as error:
            told[str(error.status())] += 1
        else:
            told["ok"] += 1

    for _ in range(count // 2):  # one by one, so that some get as far as the queue or a worker
        await ask()
    for _ in range(count // 2 // 50):
        await asyncio.gather(*(ask() for _ in range(50)))
    await client.close()
    after = await settled(served)
    requests, _ = after.since(before)
    odd = {key for key in told if key not in ("ok", "StatusCode.DEADLINE_EXCEEDED")}
    restarts = after.restarts - before.restarts + after.deaths - before.deaths
    return iter(
        [
            Figure(
                name=f"{count:,} gRPC calls with a deadline of 1 ms: worker restarts, left in flight",
                figure=f"{restarts:g}, {after.pending:g}",
                bar="0, 0",
                passed=not restarts and not after.pending,
                details={"clients": dict(told), "server": dict(requests)},
            ),
            Figure(
                name="what the clients were told is an answer or DEADLINE_EXCEEDED",
                figure=", ".join(f"{key}: {n}" for key, n in told.items()),
                bar="nothing else",
                passed=not odd and sum(told.values()) == count,
            ),
        ]
    )


@asynccontextmanager
async def held(served: Served) -> AsyncIterator[None]:
    """Within the block the worker is held by one request, and has its channel full: what comes is queued.

    These `BATCH` + 1 requests are answered at the end.
    """
    served.gate.unlink(missing_ok=True)
    client = triton_http.InferenceServerClient(served.http, conn_limit=BATCH + 1)
    before = executed(served).count(-1.0)
    tasks = [asyncio.create_task(client.infer(MODEL, http_input(-1.0)))]
    async with asyncio.timeout(60):
        while executed(served).count(-1.0) == before:
            await asyncio.sleep(0.005)
    tasks += [asyncio.create_task(client.infer(MODEL, http_input(1.0))) for _ in range(BATCH)]
    await settled(served, lambda seen: seen.pending == BATCH + 1 and not seen.queued)
    try:
        yield
    finally:
        served.gate.touch()
        await asyncio.gather(*tasks)
        await client.close()


async def leaving(served: Served) -> Iterator[Figure]:
    """Clients that close their connections while their requests wait."""
    before = look(served)
    async with held(served):
        writers = [await sent(served, FIRST_LEAVER + number) for number in range(LEAVERS)]
        queued = await settled(served, lambda seen: seen.queued == LEAVERS)
        for writer in writers:
            writer.close()
        left = await settled(served, lambda seen: not seen.queued)
    after = await settled(served)
    requests, _ = after.since(before)
    run = sum(value >= FIRST_LEAVER for value in executed(served))
    restarts = after.restarts - before.restarts + after.deaths - before.deaths
    figure = Figure(
        name=f"{LEAVERS} HTTP clients that leave while queued: executed, cancelled, restarts",
        figure=f"{run}, {requests['cancelled']}, {restarts:g}",
        bar=f"0, {LEAVERS}, 0",
        passed=(run, requests["cancelled"], restarts, queued.queued) == (0, LEAVERS, 0, LEAVERS),
        details={"queued": queued.queued, "queued after": left.queued, "server": dict(requests)},
    )
    return iter([figure])


async def sent(served: Served, value: float) -> asyncio.StreamWriter:
    """Send a request on a connection of its own, and do not wait for its answer."""
    _, writer = await asyncio.open_connection(*served.http.split(":"))
    writer.write(request(value))
    await writer.drain()
    return writer


def request(value: float) -> bytes:
    """Return an inference request as bytes."""
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [value]}
    body = json.dumps({"inputs": [tensor]}).encode()
    head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def executed(served: Served) -> list[float]:
    """Return every value that the handler has had in hand."""
    return [float(line) for line in served.log.read_text().split()] if served.log.exists() else []


async def mixed(served: Served, count: int) -> Iterator[Figure]:
    """Requests by HTTP and gRPC, some of which fail, are refused, or are cancelled while they wait."""
    before = look(served)
    http = triton_http.InferenceServerClient(served.http, conn_limit=BURST)
    grpc = triton_grpc.InferenceServerClient(served.grpc)
    told: Counter[str] = Counter()

    async def ask(number: int) -> None:
        value = -2.0 if number % 11 == 0 else float(number % 1000)
        try:
            if number % 2:
                await http.infer(MODEL, http_input(value))
            else:
                await grpc.infer(MODEL, grpc_input(value))
        except InferenceServerException as error:
            told[outcome(error)] += 1
        else:
            told["ok"] += 1

    while sum(told.values()) < count:
        async with held(served):
            told["cancelled"] += await cancelled(served, grpc)
        told["ok"] += BATCH + 1
        left = min(BURST, count - sum(told.values()))
        await asyncio.gather(*(ask(number) for number in range(left)))
    await http.close()
    await grpc.close()
    after = await settled(served)
    requests, refused = after.since(before)
    server = requests + refused
    said = ", ".join(f"{key} {told[key]}/{server[key]}" for key in sorted(server | told))
    counted = Figure(
        name=f"{sum(told.values()):,} mixed requests: as the clients count / as the server does",
        figure=said,
        bar="equal",
        passed=told == server
        and sum(told.values()) >= count
        and min(server.values()) > 0
        and len(server) == 4,
        details={"clients": dict(told), "server": dict(server)},
    )
    pending = Figure(
        name="pending after them, and queued",
        figure=f"{after.pending:g}, {after.queued:g}",
        bar="0, 0",
        passed=not after.pending and not after.queued,
    )
    return iter([counted, pending])


async def cancelled(served: Served, grpc: triton_grpc.InferenceServerClient) -> int:
    """Queue requests and cancel them, half by gRPC, half by closing the connection; returns how many."""
    calls = [asyncio.create_task(grpc.infer(MODEL, grpc_input(3.0))) for _ in range(CANCELLED // 2)]
    writers = [await sent(served, 3.0) for _ in range(CANCELLED // 2)]
    await settled(served, lambda seen: seen.queued == CANCELLED)
    for call in calls:
        call.cancel()
    for writer in writers:
        writer.close()
    await asyncio.gather(*calls, return_exceptions=True)
    await settled(served, lambda seen: not seen.queued)
    return CANCELLED


def outcome(error: InferenceServerException) -> str:
    """Return what the server must have counted a client's error as."""
    text = str(error)
    if "try again later" in text:
        return "queue_full"
    return "inference_failed" if "not for us" in text else f"odd: {text[:100]}"


async def run(given: argparse.Namespace) -> list[Figure]:
    calls, requests = (100, 1000) if given.quick else (1000, 10_000)
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as served:
        return [*await impatient(served, calls), *await leaving(served), *await mixed(served, requests)]


def main(argv: Sequence[str] | None = None) -> int:
    given = options(__doc__, "counters").parse_args(argv)
    return report("counters", asyncio.run(run(given)), given.json)


if __name__ == "__main__":
    sys.exit(main())
