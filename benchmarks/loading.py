"""Load a big model beside a busy small one, as the repository does: ``python -m benchmarks.loading``.

The small one is asked at a constant rate, half of what it can answer, on one core or on all; the big one, as
large as a ResNet-50, is loaded and unloaded again and again. The p99 of the small one while the big one loads
is compared with that of the time before it, all turns together.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import uvloop

from benchmarks.compare import Comparison
from benchmarks.figures import Figure, options, report
from benchmarks.in_process import BUSY, CORES, FIRST, LAST, Client, plan, python, serving
from benchmarks.models import model_path
from partita.core.plan import Plan
from partita.engine.deployment import Deployment
from partita.engine.engine import Engine
from partita.engine.instance import ModelLaunch
from partita.engine.service import ServiceSettings
from partita.machines.dispatcher import BatchingRules

COST_S = 0.004
BEFORE_S = 2.0
BAR = 1.5
PLANS = {"one core": plan((FIRST,)), "every core": plan((FIRST,), (LAST,))}


async def load_big(engine: Engine) -> float:
    """Load the big model beside what serves, on its own plan of all cores; returns the seconds."""
    began = time.monotonic()
    big = engine.prepare(
        Deployment(
            name="big",
            version="1",
            launch=ModelLaunch(name="big", path=str(model_path("resnet50")), runtime="onnxruntime"),
            settings=ServiceSettings(rules=BatchingRules()),
            plan=plan((FIRST, LAST)),
        )
    )
    with engine.loading_beside(big):
        await big.until_ready()
    engine.publish([big])
    return time.monotonic() - began


async def beside(folder: Path, name: str, small: Plan, turns: int) -> list[Figure]:
    """Load the big model so many times beside the small one on this plan."""
    alone: list[float] = []
    during: list[float] = []
    took_s: list[float] = []
    pooled: tuple[list[float], list[float]] = ([], [])
    async with serving(python(folder, BUSY, COST_S), small) as (engine, service):
        client = Client(service, np.zeros((1, 2), np.int64), numbered=True)
        load = asyncio.create_task(client.run(0.5 * len(small.instances) / COST_S, 3600))
        await asyncio.sleep(0.5)
        for _ in range(turns):
            at_s = time.monotonic()
            await asyncio.sleep(BEFORE_S)
            until_s = time.monotonic()
            took_s.append(await load_big(engine))
            end_s = time.monotonic()
            await asyncio.sleep(0.1)  # for the last answers
            pooled[0].extend(client.took_ms(at_s, until_s))
            pooled[1].extend(client.took_ms(until_s, end_s))
            alone.append(client.p99_ms(at_s, until_s))
            during.append(client.p99_ms(until_s, end_s))
            await engine.remove("big", 5.0)
            await asyncio.sleep(0.2)
        load.cancel()
        while service.statistics.in_flight():
            await asyncio.sleep(0.01)
    shown = Comparison.of("p99", alone, during, unit="ms")
    before_ms, during_ms = (float(np.percentile(one, 99)) for one in pooled)
    ratio, counts = during_ms / before_ms, f"{len(pooled[1])} and {len(pooled[0])}"
    return [
        Figure(
            name=f"small model on {name}: p99 while a big one loads, {turns} times, ÷ before",
            figure=f"{ratio:.2f} ({during_ms:.2f} ÷ {before_ms:.2f} ms, of {counts} answers; turn by turn "
            f"{shown.ratio:.2f} [{shown.low:.2f}, {shown.high:.2f}]), {client.lost} failed",
            bar=f"≤ {BAR}, 0 failed",
            passed=ratio <= BAR and client.lost == 0,
            details={"alone_ms": alone, "during_ms": during, "load_s": took_s},
        ),
        Figure(name="  loaded within", figure=f"{max(took_s):.1f} s", bar="", passed=True),
    ]


async def run(folder: Path, turns: int) -> list[Figure]:
    figures: list[Figure] = []
    for name, small in PLANS.items():
        print(f"small model on {name} …", file=sys.stderr)
        figures += await beside(folder, name, small, turns)
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    given = options(__doc__, "loading").parse_args(argv)
    if len(CORES) < 2:
        return report("loading", [Figure(name="loading", figure="", bar="2 cores", passed=None)], given.json)
    model_path("resnet50")
    with tempfile.TemporaryDirectory() as folder:
        figures = uvloop.run(run(Path(folder), 5 if given.quick else 15))
    return report("loading", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
