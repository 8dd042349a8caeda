"""The same archives in TorchServe 0.12 and in Partita, no setting touched: 8 clients for throughput, then 1.

Both servers stand all the time and take turns under the same client (`wrk`), which shares their cores. The
archives are made by `torch-model-archiver`: a perceptron 64 → 10 with a state dict, and ResNet-50 as
TorchScript, both with a handler that takes an item's raw float32. The answers must agree. Before the contest
Partita gets 40 requests and is left alone until it has tuned the archive with them, for half a minute.

TorchServe needs Java and an environment of its own, which is made in the folder given if it is not there.

    python -m benchmarks.torchserve --quick --torchserve /tmp/torchserve

Where the machine is not free for long enough, several runs make one contest:

    python -m benchmarks.torchserve --model mlp --clients 8 --within 280 --resume pairs.json ...
"""

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import venv
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from textwrap import dedent
from typing import Any

import numpy as np

from benchmarks import wrk
from benchmarks.compare import Comparison
from benchmarks.figures import Figure, load_average, options, report
from benchmarks.pairs import Pairs
from benchmarks.servers import READY_S, Running, free_port, started
from benchmarks.wrk import Post

BARS = {1: 1.0, 8: 1.5}
"""Least ratio of the requests/s, by clients."""
TUNED_S = 120.0
"""Longest wait for the tuning, whose budget is 30 s."""
PACKAGES = ("torchserve==0.12.0", "torch", "numpy", "pyyaml", "packaging", "psutil", "pillow", "requests")
MODELS = {"mlp": (64,), "resnet50": (3, 224, 224)}

MLP = """
    import torch

    class Perceptron(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(
                torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
            )

        def forward(self, x):
            return self.layers(x)
"""
HANDLER = """
    import torch
    from ts.torch_handler.base_handler import BaseHandler

    class Raw(BaseHandler):
        def preprocess(self, data):
            rows = [row.get("data") or row.get("body") for row in data]
            return torch.stack([torch.frombuffer(row, dtype=torch.float32).reshape(SHAPE) for row in rows])
"""


def resnet50() -> Any:
    """Return ResNet-50 with made-up weights, ready to be scripted."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, inputs: int, width: int, stride: int) -> None:
            super().__init__()
            outputs = 4 * width
            layers = [(inputs, width, 1, 1), (width, width, 3, stride), (width, outputs, 1, 1)]
            parts: list[nn.Module] = []
            for a, b, kernel, step in layers:
                parts += [
                    nn.Conv2d(a, b, kernel, step, kernel // 2, bias=False),
                    nn.BatchNorm2d(b),
                    nn.ReLU(),
                ]
            self.body = nn.Sequential(*parts[:-1])
            same = inputs == outputs and stride == 1
            down = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            self.side: nn.Module = nn.Identity() if same else down

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(self.body(x) + self.side(x))

    torch.manual_seed(0)
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = 64
    for width, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for index in range(blocks):
            layers.append(Block(inputs, width, stride if index == 0 else 1))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)).eval()


def make_archive(name: str, store: Path) -> Path:
    """Return an archive made by `torch-model-archiver`."""
    import torch

    work = store.parent / f"{name}-files"
    work.mkdir()
    shape = MODELS[name]
    (work / "raw.py").write_text(dedent(HANDLER).replace("SHAPE", str(shape)), encoding="utf-8")
    more: tuple[str, ...] = ()
    if name == "mlp":
        (work / "model.py").write_text(dedent(MLP), encoding="utf-8")
        generator = torch.Generator().manual_seed(0)
        sizes = {"0.weight": (64, 64), "0.bias": (64,), "2.weight": (10, 64), "2.bias": (10,)}
        state = {f"layers.{key}": torch.randn(size, generator=generator) for key, size in sizes.items()}
        torch.save(state, work / "weights.pt")
        more = ("--model-file", "model.py")
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # TorchScript is what archives hold, deprecated or not
            torch.jit.trace(resnet50(), torch.zeros(1, *shape)).save(str(work / "weights.pt"))
    archiver = Path(sys.executable).with_name("torch-model-archiver")
    argv = [str(archiver), "--model-name", name, "--version", "1.0", "--handler", "raw.py"]
    argv += ["--serialized-file", "weights.pt", "--export-path", str(store), *more]
    subprocess.run(argv, cwd=work, check=True, stdout=subprocess.DEVNULL)
    return store / f"{name}.mar"


def torchserve_in(folder: Path) -> Path:
    """Return the `torchserve` command of an environment, which is made if it is not there."""
    command = folder / "bin" / "torchserve"
    if not command.exists():
        print(f"installing TorchServe in {folder}", flush=True)
        venv.create(folder, with_pip=True)
        subprocess.run([str(folder / "bin" / "pip"), "install", "--quiet", *PACKAGES], check=True)
    return command


@contextmanager
def torchserve(command: Path, archive: Path) -> Iterator[Running]:
    """Serve one archive with TorchServe as it comes: only the ports are set."""
    ports = [free_port() for _ in range(5)]
    with tempfile.TemporaryDirectory() as folder:
        names = ("inference_address", "management_address", "metrics_address")
        lines = [f"{name}=http://127.0.0.1:{port}" for name, port in zip(names, ports, strict=False)]
        lines += [f"grpc_inference_port={ports[3]}", f"grpc_management_port={ports[4]}"]
        config = Path(folder, "config.properties")
        config.write_text("\n".join(lines) + "\n", encoding="utf-8")
        argv = [str(command), "--foreground", "--ncs", "--disable-token-auth", "--ts-config", str(config)]
        argv += ["--model-store", str(archive.parent), "--models", archive.name]
        environment = {**os.environ, "PATH": f"{command.parent}:{os.environ['PATH']}", "LOG_LOCATION": folder}
        environment.pop("PYTHONPATH", None)
        environment |= {"METRICS_LOCATION": folder, "TMPDIR": folder}
        with (
            Path(folder, "log").open("wb") as log,
            started(argv, environment, stdout=log.fileno(), cwd=folder) as child,
        ):
            try:
                yield _ready(ports[0], archive.stem, child, "as it comes")
            finally:
                os.killpg(child.pid, signal.SIGTERM)  # its Java outlives the command that started it


@contextmanager
def partita(archive: Path) -> Iterator[Running]:
    """Serve one archive with Partita as it comes: only the ports are set. It is tuned then."""
    port, management = free_port(), free_port()
    argv = [sys.executable, "-m", "partita.cli", "serve", str(archive), "--http", f"127.0.0.1:{port}"]
    argv += ["--management", f"127.0.0.1:{management}", "--metrics", "off", "--json"]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PARTITA_CACHE_DIR": folder, "PARTITA_KEY_FILE": f"{folder}/keys"}
        with started(argv, environment, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            line = child.stdout.readline()
            if not line:
                raise RuntimeError(f"partita did not start: status {child.wait()}")
            ready = _ready(port, archive.stem, child, json.loads(line)["models"][0]["plan"])
            yield replace(ready, plan=tuned(archive.stem, ready.url, f"http://127.0.0.1:{management}"))


def tuned(model: str, url: str, management: str) -> str:
    """Let Partita tune an archive with some requests; returns the plan that it has then, and how it came."""
    port = int(url.rpartition(":")[2])
    for item in _items(model, 40):
        _ask(port, model, item)
    begun_s = time.monotonic()
    while True:
        with urllib.request.urlopen(f"{management}/v2/models/{model}/plan", timeout=60) as answer:
            shown = json.load(answer)
        tuning = shown.get("tuning") or {"state": "none"}
        took_s = time.monotonic() - begun_s
        if tuning["state"] in ("finished", "failed") or took_s > TUNED_S:
            return (
                f"{shown['plan']}, tuning {tuning['state']} after {took_s:.0f} s {tuning.get('reason', '')}"
            )
        time.sleep(0.2)


def _items(model: str, count: int) -> list[bytes]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(MODELS[model], np.float32).tobytes() for _ in range(count)]


def _ready(port: int, model: str, child: "subprocess.Popen[bytes]", plan: str) -> Running:
    body = np.zeros(MODELS[model], np.float32).tobytes()
    end_s = time.monotonic() + READY_S
    while time.monotonic() < end_s and child.poll() is None:
        status, _ = _ask(port, model, body)
        if status == 200:
            return Running(f"http://127.0.0.1:{port}", plan, child.pid)
        time.sleep(0.2)
    raise RuntimeError(f"no server answered within {READY_S:g} s")


def _ask(port: int, model: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", f"/predictions/{model}", body=body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def answers(server: Running, model: str, items: Sequence[bytes]) -> np.ndarray[Any, Any]:
    """Return what a server answers to each of some items."""
    port = int(server.url.rpartition(":")[2])
    return np.array([json.loads(_ask(port, model, item)[1]) for item in items], np.float32)


def contest(
    model: str,
    archive: Path,
    command: Path,
    pairs: Pairs,
    numbers: Sequence[int],
    *,
    wanted: int,
    seconds: float,
) -> list[Figure]:
    """Return TorchServe (A) against Partita (B) on one archive, for each of some numbers of clients."""
    items = _items(model, 4)
    post = Post(path=f"/predictions/{model}", body=items[0])
    with ExitStack() as stack:
        theirs = stack.enter_context(torchserve(command, archive))
        ours = stack.enter_context(partita(archive))
        print(f"{model}: Partita's plan {ours.plan}", flush=True)
        left, right = (answers(server, model, items) for server in (theirs, ours))
        worst = float(np.abs(left - right).max() / np.abs(left).max())

        def rate(server: Running, clients: int) -> float:
            try:
                return wrk.run(server.url, post, clients=clients, seconds=seconds).requests_per_s
            except wrk.NothingAnswered:
                return 1 / seconds  # the most that it can have been
            finally:
                answers(server, model, items[:1])  # behind what the clients have left: it is worked off then

        found: list[Figure] = []
        for clients in numbers:
            compared = pairs.run(
                f"{model}, {clients} client{'s' if clients > 1 else ''}",
                lambda clients=clients: rate(theirs, clients),  # type: ignore[misc]
                lambda clients=clients: rate(ours, clients),  # type: ignore[misc]
                wanted,
                unit="req/s",
            )
            if compared is not None:
                print(compared, flush=True)
                found.append(_figure(compared, BARS[clients]))
    return [
        Figure(
            name=f"{model}: answers differ by", figure=f"{worst:.1e}", bar="<= 1e-4", passed=worst <= 1e-4
        ),
        *found,
    ]


def _figure(comparison: Comparison, bar: float) -> Figure:
    return Figure(
        name=f"{comparison.name}, requests/s ÷ TorchServe",
        figure=f"{comparison.ratio:.2f} [{comparison.low:.2f}, {comparison.high:.2f}] "
        f"({median(comparison.b):,.0f} and {median(comparison.a):,.0f} req/s)",
        bar=f">= {bar:g}",
        passed=comparison.ratio >= bar,
        details={"torchserve": comparison.a, "partita": comparison.b},
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "torchserve")
    parser.add_argument("--torchserve", type=Path, metavar="FOLDER", help="environment with TorchServe 0.12")
    parser.add_argument("--model", choices=[*MODELS], action="append", help="only this one")
    parser.add_argument("--clients", type=int, choices=[*BARS], action="append", help="only this many")
    parser.add_argument("--within", type=float, metavar="SECONDS", help="start no pair that would end later")
    parser.add_argument(
        "--resume", type=Path, metavar="FILE", help="add to the pairs of earlier runs, kept there"
    )
    given = parser.parse_args(argv)
    if shutil.which("java") is None or shutil.which("wrk") is None:
        skipped = Figure(name="torchserve", figure="needs java and wrk on PATH", bar="", passed=None)
        return report("torchserve", [skipped], given.json)
    folder = given.torchserve or Path(tempfile.gettempdir(), "partita-torchserve-0.12")
    command = torchserve_in(folder)
    wanted, seconds = (3, 2.0) if given.quick else (10, 4.0)
    pairs = Pairs(given.resume, given.within)
    print(load_average(), flush=True)
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory() as place:
        store = Path(place, "store")
        store.mkdir()
        for model in given.model or MODELS:
            longer = seconds if model == "mlp" else 1.5 * seconds  # requests take long there
            archive = make_archive(model, store)
            numbers = given.clients or [*BARS]
            figures += contest(model, archive, command, pairs, numbers, wanted=wanted, seconds=longer)
    return report("torchserve", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
