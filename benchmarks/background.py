"""Tune a model beside its own traffic, and see what its clients notice: ``python -m benchmarks.background``.

A model that nobody has profiled is served with the safe plan and asked at half of what that can do. First
without tuning, for what the 99th percentile of the latency is; then with it, to its end. The plan that comes
of it is run against all others of two cores, as in `benchmarks.regret`.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import uvloop

from benchmarks.figures import Figure, options, report
from benchmarks.in_process import CORES, Client, capacity
from benchmarks.models import model_path
from benchmarks.race import Race
from benchmarks.regret import LIMIT, Effort, contest, described
from partita.adaptation import Adaptation
from partita.core.plan import Plan
from partita.core.profile import Profile
from partita.deploy import deployment_for
from partita.engine.engine import Engine
from partita.engine.tuning_report import TuningState
from partita.machines.tuning_pace import PaceRules
from partita.planning.optimizer import Optimizer
from partita.planning.placement import place
from partita.settings import ServerSettings, Settings
from partita.sources import find_all
from partita.system.cpus import read_topology
from partita.tuning import Tuning

LOAD = 0.5
SLOW = "resnet50"
"""Running all of its plans takes a minute."""
FEW = Effort(budget_s=0.0, verify_s=0.0, turns=1, final_turns=10)
"""How often its plans are run."""
MANY = Effort(budget_s=0.0, verify_s=0.0, turns=5, final_turns=40, work_s=0.05)
"""How often those of others are. A turn has work enough that what else the machine does averages out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """How long each part takes at most, seconds: a minute and a half for a model when quick, twice that in
    full."""

    budget_s: float
    window_s: float
    """Without tuning."""
    most_s: float
    """A tuning that has not ended by then is given up."""


BLOCK_S = 1.0
"""Answers of so long a time are drawn together: what slows one of them slows its neighbours, too."""
DRAWS = 1000
QUICK_TIMES = Times(budget_s=15.0, window_s=8.0, most_s=45.0)
FULL_TIMES = Times(budget_s=30.0, window_s=20.0, most_s=120.0)


class Profiled:
    """Chooses plans from the profile that was measured beside the traffic, as the server does."""

    def __init__(self, profile: Profile) -> None:
        self._optimizer = Optimizer(profile)
        self._topology = read_topology()

    def placed(self, plan: Plan) -> Plan:
        return place(plan, self._topology, cores=CORES[:2])

    def choose(self, batch: int) -> Plan:
        return self.placed(self._optimizer.plan(2, batch, early_answers=True))


async def tuned(model: str, times: Times) -> tuple[list[Figure], Profile | None]:
    """Tune beside half load; returns the figures, and the profile if there is one."""
    topology, loop = read_topology(), asyncio.get_running_loop()
    (source,) = find_all((model_path(model),), Settings())
    server = ServerSettings(tune="background", tune_budget_s=times.budget_s)
    deployment = deployment_for(source, server, topology, tuple(CORES[:2]), lambda *_: None, is_alone=True)
    engine = Engine(loop)
    adaptation = Adaptation(engine, loop, adapts=False)
    tuning = Tuning(engine, adaptation, loop, budget_s=times.budget_s, rules=PaceRules())
    tuning.know(source)
    try:
        service = engine.add(deployment)
        await service.until_ready()
        shape = service.signature.inputs[0].shape
        client = Client(service, np.random.default_rng(0).random((1, *shape), np.float32))
        rate = LOAD * await capacity(service, client, times.window_s / 4)
        load = asyncio.create_task(client.run(rate, 3600))
        await asyncio.sleep(1.0)
        from_s = time.monotonic()
        await asyncio.sleep(times.window_s)
        at_s = time.monotonic()
        before = blocks(client, from_s, at_s)
        tuning.start()
        shown = await _ended(adaptation, source.name, times.most_s)
        ended_s = time.monotonic()
        during = blocks(client, at_s, ended_s)
        load.cancel()
        while service.statistics.in_flight():
            await asyncio.sleep(0.01)
        profile = engine.deployment(service).profile
        ended = f"{service.plan}" if profile is not None else str(shown)
    finally:
        await tuning.stop()
        await adaptation.stop()
        await engine.stop(10.0)
    before_ms, during_ms = p99(before), p99(during)
    ratio = during_ms / before_ms
    low, high = ratio_interval(before, during)
    text = f"{ratio:.2f} [{low:.2f}, {high:.2f}] ({during_ms:.1f} ÷ {before_ms:.1f} ms), {client.lost} failed"
    return [
        Figure(
            name=f"{model}: p99 while it is tuned beside half load ÷ before",
            figure=text,
            bar="≤ 1.5, 0 failed",
            passed=ratio <= 1.5 and client.lost == 0,
            details={"rate": round(rate, 1), **shown},
        ),
        Figure(
            name="  how it ended",
            figure=f"{ended} after {ended_s - at_s:.0f} s",
            bar="with a plan from the profile",
            passed=profile is not None,
        ),
    ], profile


def blocks(client: Client, from_s: float, until_s: float) -> list[list[float]]:
    """Return the latencies, ms, of requests that were due in each second of a time."""
    count = max(1, round((until_s - from_s) / BLOCK_S))
    edges = np.linspace(from_s, until_s, count + 1)
    return [client.took_ms(float(a), float(b)) for a, b in pairwise(edges)]


def p99(parts: Sequence[Sequence[float]]) -> float:
    """Return the 99th percentile of all parts together."""
    return float(np.percentile(np.concatenate([np.asarray(part) for part in parts]), 99))


def ratio_interval(
    before: Sequence[Sequence[float]], during: Sequence[Sequence[float]]
) -> tuple[float, float]:
    """Return what 95 % of the ratios lie between where the seconds of both times are drawn again."""
    rng = np.random.default_rng(0)
    ratios = [
        p99([during[k] for k in rng.integers(len(during), size=len(during))])
        / p99([before[k] for k in rng.integers(len(before), size=len(before))])
        for _ in range(DRAWS)
    ]
    return float(np.percentile(ratios, 2.5)), float(np.percentile(ratios, 97.5))


async def _ended(adaptation: Adaptation, model: str, most_s: float) -> dict[str, Any]:
    """Wait for the end of the tuning; returns how far it came."""
    began_s = said_s = time.monotonic()
    while True:
        shown = adaptation.tuning(model) or {"state": "", "points": 0}
        now_s = time.monotonic()
        if shown["state"] in (TuningState.FINISHED, TuningState.FAILED) or now_s - began_s > most_s:
            return shown
        if now_s - said_s > 5.0:
            said_s = now_s
            print(f"  {now_s - began_s:.0f} s: {shown}", file=sys.stderr, flush=True)
        await asyncio.sleep(0.1)


def regret(model: str, profile: Profile) -> Figure:
    """Run the profile's plan for 8 items against all plans of two cores."""
    with Race(model_path(model), largest=8) as race:
        one = contest(model, race, Profiled(profile), 8, FEW if model == SLOW else MANY)
    mine, best = one.against_best.b, one.against_best.a
    return Figure(
        name="  regret of its plan for 8 items",
        figure=f"{one.regret:.1%} [{one.against_best.low - 1:+.1%}, {one.against_best.high - 1:+.1%}]: "
        f"{described(one.chosen)}, best {described(one.best)} of {one.plans}",
        bar=f"≤ {LIMIT:.0%}",
        passed=one.regret <= LIMIT,
        details={"chosen_ms": mine, "best_ms": best, "profile": table_of(profile)},
    )


def table_of(profile: Profile) -> dict[str, float]:
    """Return what was measured: milliseconds by threads and items."""
    return {f"{t} x {b}": round(point.mean_ms, 4) for (t, b), point in sorted(profile.points.items())}


def main(argv: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "background")
    parser.add_argument("--models", nargs="+", default=["tiny_cnn", SLOW], metavar="NAME")
    given = parser.parse_args(argv)
    if len(CORES) < 2:
        return report(
            "background", [Figure(name="tuning", figure="", bar="2 cores", passed=None)], given.json
        )
    times = QUICK_TIMES if given.quick else FULL_TIMES
    figures: list[Figure] = []
    begun_s = time.monotonic()
    for model in given.models:
        with tempfile.TemporaryDirectory() as folder:
            os.environ["PARTITA_CACHE_DIR"] = str(Path(folder))
            found, profile = uvloop.run(tuned(model, times))
        figures += found
        print(f"{model}: tuned after {time.monotonic() - begun_s:.0f} s", file=sys.stderr, flush=True)
        if profile is not None:
            figures.append(regret(model, profile))
    return report("background", figures, given.json)


if __name__ == "__main__":
    sys.exit(main())
