"""A 64 → 10 perceptron over HTTP against mosec: 64 clients for throughput, one client for latency.

Both servers stand all the time and take turns under the same client (`wrk`), which shares their cores.
Partita plans for itself and no setting is changed between the two loads; mosec gets the best of four
settings, chosen by a trial just before.

    python -m benchmarks.http_small --quick
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from statistics import median

import numpy as np

from benchmarks import servers, wrk
from benchmarks.compare import Comparison, alternate
from benchmarks.figures import Figure, load_average, options, report
from benchmarks.models import model_path
from benchmarks.servers import Running
from benchmarks.wrk import Post

CLIENTS = 64
RATIO = 1.5
P50_MS = 0.20
MODEL = "mlp64"


def best_mosec(post: Post, *, seconds: float, trials: int) -> tuple[int, int]:
    """Return (workers, wait ms) of the setting that answers most."""
    rates: dict[tuple[int, int], float] = {}
    for workers, wait_ms in product((1, 2), (1, 3)):
        with servers.mosec(model_path(MODEL), workers=workers, wait_ms=wait_ms) as server:
            wrk.run(server.url, post, clients=CLIENTS, seconds=seconds)
            rates[workers, wait_ms] = median(
                wrk.run(server.url, post, clients=CLIENTS, seconds=seconds).requests_per_s
                for _ in range(trials)
            )
        print(
            f"mosec {workers} x 1 thread, wait {wait_ms} ms: {rates[workers, wait_ms]:,.0f} req/s", flush=True
        )
    return max(rates, key=lambda setting: rates[setting])


def contest(
    ours: tuple[Running, Post], theirs: tuple[Running, Post], *, pairs: int, seconds: float
) -> tuple[Comparison, Comparison]:
    """Return mosec (A) against Partita (B): requests/s at 64 clients, and p50 at one client."""

    def rate(side: tuple[Running, Post]) -> float:
        return wrk.run(side[0].url, side[1], clients=CLIENTS, seconds=seconds).requests_per_s

    def p50(side: tuple[Running, Post]) -> float:
        return wrk.run(side[0].url, side[1], clients=1, seconds=seconds / 2).p50_ms

    return (
        alternate(lambda: rate(theirs), lambda: rate(ours), pairs, name="64 clients", unit="req/s"),
        alternate(lambda: p50(theirs), lambda: p50(ours), pairs, name="1 client, p50", unit="ms"),
    )


def ceiling(ours: tuple[Running, Post], raw: Post, *, pairs: int, seconds: float) -> list[Figure]:
    """Return what this machine lets one client have at best, with and without a model, beside Partita."""

    def p50(server: Running, post: Post) -> float:
        return wrk.run(server.url, post, clients=1, seconds=seconds).p50_ms

    figures = []
    for kind in ("echo", "infer"):
        with servers.bare(model_path(MODEL), kind) as bare:
            one = alternate(
                lambda: p50(bare, raw),
                lambda: p50(*ours),
                pairs,
                name=f"1 client, p50, bare {kind}",
                unit="ms",
            )
        print(one, flush=True)
        figures.append(
            Figure(
                name=f"mlp64, 1 client, p50 ÷ bare {kind}'s",
                figure=f"{one.ratio:.2f} [{one.low:.2f}, {one.high:.2f}] "
                f"({median(one.b):.3f} and {median(one.a):.3f} ms)",
                bar="",
                passed=None,
                details={"bare": one.a, "partita": one.b},
            )
        )
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    given = options(__doc__, "http_small").parse_args(argv)
    try:
        wrk.require()
    except wrk.NoWrk as error:
        return report(
            "http_small", [Figure(name="mlp64", figure=str(error), bar="", passed=None)], given.json
        )
    pairs, seconds = (3, 1.0) if given.quick else (10, 3.0)
    data = np.ones(64, np.float32).tobytes()
    raw, tensors = Post(path="/inference", body=data), wrk.infer(MODEL, (1, 64), data)
    print(load_average(), flush=True)
    workers, wait_ms = best_mosec(raw, seconds=seconds / 2, trials=1 if given.quick else 3)
    with ExitStack() as stack:
        theirs = stack.enter_context(servers.mosec(model_path(MODEL), workers=workers, wait_ms=wait_ms))
        ours = stack.enter_context(servers.partita(model_path(MODEL)))
        print(f"Partita's plan: {ours.plan}", flush=True)
        rates, latencies = contest((ours, tensors), (theirs, raw), pairs=pairs, seconds=seconds)
        print(f"{rates}\n{latencies}", flush=True)
        ceilings = ceiling((ours, tensors), raw, pairs=pairs, seconds=seconds / 2)
    p50_ms = median(latencies.b)
    figures = [
        Figure(
            name=f"mlp64, {CLIENTS} clients, ÷ mosec ({theirs.plan})",
            figure=f"{rates.ratio:.2f} [{rates.low:.2f}, {rates.high:.2f}] "
            f"({median(rates.b):,.0f} and {median(rates.a):,.0f} req/s)",
            bar=f">= {RATIO}",
            passed=rates.ratio >= RATIO,
            details={"plan": ours.plan, "mosec": rates.a, "partita": rates.b},
        ),
        Figure(
            name="mlp64, 1 client, p50",
            figure=f"{p50_ms:.3f} ms [{min(latencies.b):.3f}, {max(latencies.b):.3f}] "
            f"(mosec {median(latencies.a):.2f} ms)",
            bar=f"<= {P50_MS:.2f} ms",
            passed=p50_ms <= P50_MS,
            details={"mosec": latencies.a, "partita": latencies.b},
        ),
    ]
    return report("http_small", [*figures, *ceilings], given.json)


if __name__ == "__main__":
    sys.exit(main())
