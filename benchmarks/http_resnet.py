"""ResNet-50 over HTTP, 602,112-byte binary bodies, against the best loop of ONNX Runtime in a process.

One server, planned by itself, no setting changed between 1, 8 and 32 clients. The loop's best shape is found
by a trial just before; server and loop then take turns, and each sleeps while the other runs.

    python -m benchmarks.http_resnet --quick
"""

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

import numpy as np

from benchmarks import fixed_work, ort_loop, servers
from benchmarks.compare import Comparison, alternate
from benchmarks.figures import Figure, load_average, options, report
from benchmarks.models import model_path
from benchmarks.ort_loop import Loop, Shape
from benchmarks.wrk import infer

MODEL = "resnet50"
ITEM = (3, 224, 224)
SHARE = 0.95
SLOWER = 1.05
CLIENTS = {8: 16, 32: 4}
"""Requests of each client, by the number of clients: so much work that its last batch, beside which a core is
idle, hardly counts."""
ALONE, ALONE_S, ALONE_PAIRS = 9, 0.6, 4
"""One client: requests and seconds of a turn, and pairs for each one of the others. Turns of half a second
drift together; in turns of two the loop alone was found to take from 62 to 111 ms."""
STANDS_S = 15.0
"""A server loads the workers of other likely plans when it has started; the loop must not run beside it."""
FASTEST_ITEM = Shape(1, 2, 1)
SHAPES = (FASTEST_ITEM, Shape(1, 2, 2), Shape(1, 2, 4), Shape(1, 2, 8), Shape(2, 1, 1))


def best_loop(stack: ExitStack, *, seconds: float, trials: int) -> Loop:
    """Return the loop of most items a second."""
    loops = {shape: stack.enter_context(ort_loop.loop(model_path(MODEL), shape)) for shape in SHAPES}
    rates: dict[Shape, list[float]] = {shape: [] for shape in SHAPES}
    for _ in range(trials):
        for shape, one in loops.items():
            rates[shape].append(one.run(seconds).items_per_s)
    for shape, found in rates.items():
        print(f"loop {shape}: {median(found):.1f} items/s", flush=True)
    best = max(rates, key=lambda shape: median(rates[shape]))
    return loops[best]


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "http_resnet")
    parser.add_argument("--clients", type=int, nargs="+", choices=(1, *CLIENTS), default=(1, *CLIENTS))
    given = parser.parse_args(argv)
    pairs, seconds = (3, 2.0) if given.quick else (10, 4.0)
    print(load_average(), flush=True)
    post = infer(MODEL, (1, *ITEM), np.ones(ITEM, np.float32).tobytes())
    with ExitStack() as stack:
        best = best_loop(stack, seconds=1.0 if given.quick else 2.0, trials=1 if given.quick else 3)
        fastest = stack.enter_context(ort_loop.turns(model_path(MODEL), FASTEST_ITEM))
        ours = stack.enter_context(servers.partita(model_path(MODEL)))
        print(f"Partita's plan: {ours.plan}", flush=True)
        time.sleep(STANDS_S)

        def served(clients: int, each: int) -> fixed_work.Work:
            return fixed_work.run(ours.url, post, clients=clients, each=each)

        rates = {}
        if 1 in given.clients:
            rates[1] = alternate(
                lambda: fastest(ALONE_S).p50_ms,
                lambda: median(served(1, ALONE).latencies_s) * 1e3,
                pairs * ALONE_PAIRS,
                name="1 client, p50",
                unit="ms",
            )
            print(rates[1], flush=True)
        for clients in (clients for clients in CLIENTS if clients in given.clients):
            rates[clients] = alternate(
                lambda: best.run(seconds).items_per_s,
                lambda n=clients, k=CLIENTS[clients]: served(n, k).requests_per_s,  # type: ignore[misc]
                pairs,
                name=f"{clients} clients",
                unit="items/s",
            )
            print(rates[clients], flush=True)
    return report("http_resnet", figures(ours.plan, best.shape, rates), given.json)


def figures(plan: str, best: Shape, found: dict[int, Comparison]) -> list[Figure]:
    """Return the figures by the number of clients, each loop (A) against server (B)."""
    return [
        _latency(plan, one) if clients == 1 else _rate(plan, best, clients, one)
        for clients, one in found.items()
    ]


def _latency(plan: str, one: Comparison) -> Figure:
    return Figure(
        name=f"resnet50, 1 client, p50 ÷ loop's ({FASTEST_ITEM})",
        figure=_text(one, "ms"),
        bar=f"<= {SLOWER}",
        passed=one.ratio <= SLOWER,
        details={"plan": plan, "loop": one.a, "partita": one.b},
    )


def _rate(plan: str, best: Shape, clients: int, one: Comparison) -> Figure:
    return Figure(
        name=f"resnet50, {clients} clients, ÷ loop ({best})",
        figure=_text(one, "items/s"),
        bar=f">= {SHARE}",
        passed=one.ratio >= SHARE,
        details={"plan": plan, "loop": one.a, "partita": one.b},
    )


def _text(one: Comparison, unit: str) -> str:
    medians = f"{median(one.b):.1f} and {median(one.a):.1f} {unit}"
    return f"{one.ratio:.3f} [{one.low:.3f}, {one.high:.3f}] ({medians})"


if __name__ == "__main__":
    sys.exit(main())
