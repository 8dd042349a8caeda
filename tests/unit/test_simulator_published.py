"""Adaptation on the published profiles, T = 16: what it has to show, as figures."""

from collections import Counter
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from partita.core.profile import Profile
from partita.planning.decisions import Action, Decision, Reason
from partita.planning.estimator import EstimatorRules
from partita.planning.optimizer import Optimizer
from partita.planning.switching import same_instances
from partita.profiling.store import read_profile
from partita.simulator.arrivals import Arrivals, generate, parse_rate
from partita.simulator.result import SimulationResult
from partita.simulator.settings import SimulationSettings
from partita.simulator.simulation import Simulation

TABLES = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "packrat"
INTERVAL_S = 5.0
STEPS_S = (60.0, 120.0)
END_S = 180.0

pytestmark = pytest.mark.skipif(
    not TABLES.is_dir(), reason="needs the published profiles in ../shared/data/packrat"
)


@cache
def profile(model: str) -> Profile:
    return read_profile(TABLES / f"{model}_profile.csv", mode="script")


def capacity(model: str, batch: int) -> float:
    optimizer = Optimizer(profile(model))
    return optimizer.items_per_s(optimizer.plan(16, batch))


def served(
    model: str, load: Arrivals, *, batch: int, adapt: bool = True, load_s: float = 1.0
) -> SimulationResult:
    settings = SimulationSettings(
        cores=16,
        max_batch=1024,
        batch=batch,
        adapt=adapt,
        load_s=load_s,
        estimator=EstimatorRules(interval_s=INTERVAL_S, max_batch=1024),
    )
    return Simulation(profile(model), load, settings).run()


def together(low: tuple[int, float], high: tuple[int, float]) -> Arrivals:
    """Requests of so many items at so many items/s: low, then high, then low again."""
    times, items = [], []
    for (n, rate), start_s in zip((low, high, low), (0.0, *STEPS_S), strict=True):
        at = np.arange(start_s, start_s + 60.0, n / rate)
        times.append(at)
        items.append(np.full(len(at), n))
    return Arrivals(np.concatenate(times), np.concatenate(items), END_S)


def one_by_one(low: float, high: float, seed: int) -> Arrivals:
    kind, pieces = parse_rate(f"{low}@60,{high}@60,{low}@60", duration_s=1.0)
    return generate(kind, pieces, np.random.default_rng(seed))


def settled_s(result: SimulationResult, start_s: float, end_s: float) -> float:
    """When B̃ was last more than a power of two away from what it mostly is in this step's second half."""
    seen = (result.times_s > start_s) & (result.times_s < end_s)
    batches, times_s = result.batches[seen], result.times_s[seen]
    ((mostly, _),) = Counter(batches[len(batches) // 2 :].tolist()).most_common(1)
    away = times_s[(batches > 2 * mostly) | (2 * batches < mostly)]
    return float(away.max()) - start_s if len(away) else 0.0


def means(result: SimulationResult, start_s: float) -> float:
    mean_s = result.mean_s(start_s + 20.0, start_s + 60.0)
    assert mean_s is not None
    return mean_s


def check_steps(model: str, load: Arrivals, *, load_s: float) -> None:
    result = served(model, load, batch=1, load_s=load_s)
    up, down = result.decided
    for decision, start_s in zip((up, down), STEPS_S, strict=True):
        assert start_s < decision.now_s <= start_s + 2 * INTERVAL_S
    assert same_instances(up.target or up.plan, Optimizer(profile(model)).plan(16, 64))
    assert same_instances(down.target or down.plan, Optimizer(profile(model)).plan(16, 1))
    assert settled_s(result, STEPS_S[0], STEPS_S[1]) <= 2 * INTERVAL_S
    assert settled_s(result, STEPS_S[1], END_S) <= 2 * INTERVAL_S
    assert result.answered == len(load.times_s)
    staying_low = served(model, load, batch=1, adapt=False)
    staying_high = served(model, load, batch=64, adapt=False)
    assert means(staying_low, STEPS_S[0]) >= 1.4 * means(result, STEPS_S[0])
    assert means(staying_high, STEPS_S[1]) >= 1.4 * means(result, STEPS_S[1])


@pytest.mark.parametrize("model", ["gpt2", "bert"])
@pytest.mark.parametrize(("share", "load_s"), [(0.5, 1.0), (0.8, 5.0)])
def test_a_depth_of_64_items_that_come_together(model: str, share: float, load_s: float) -> None:
    check_steps(model, together((1, 15.0), (64, share * capacity(model, 64))), load_s=load_s)


@pytest.mark.parametrize("model", ["gpt2", "bert"])
@pytest.mark.parametrize("load_s", [1.0, 5.0])
def test_a_depth_of_about_64_items_that_come_one_by_one(model: str, load_s: float) -> None:
    """What gathered until the new plan is there has to be worked off, too, and moves B̃ nowhere."""
    check_steps(model, one_by_one(5.0, 0.8 * capacity(model, 64), seed=0), load_s=load_s)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_resnet_from_8_to_64_has_nothing_to_gain(share: float) -> None:
    load = together((8, 100.0), (64, share * capacity("resnet", 64)))
    result = served("resnet", load, batch=8)
    assert not result.decided
    assert result.answered == len(load.times_s)
    told = [
        entry
        for entry in result.log
        if isinstance(entry, Decision) and STEPS_S[0] < entry.now_s <= STEPS_S[1] + INTERVAL_S
    ]
    assert all(entry.action is not Action.SWITCH for entry in told)
    why = [entry.text for entry in told if "less than the 15% that a switch has to gain" in entry.text]
    assert any("⟨16,1,4⟩ would answer 64 items 2% sooner" in text for text in why), why
    assert any(e.reason is Reason.SMALL_GAIN for e in told)


@pytest.mark.parametrize("period_s", [5.0, 27.0])
def test_a_load_that_alternates_around_a_power_of_two(period_s: float) -> None:
    """Requests of 1 and 2 items in turns, whose best plans for BERT have 1 and 2 instances; and others."""
    for low, high in ((1, 2), (8, 16), (31, 33)):
        times, items = [], []
        for turn in range(int(240.0 / period_s)):
            n = (low, high)[turn % 2]
            at = np.arange(turn * period_s, (turn + 1) * period_s, n / 100.0 if n > 2 else 0.05)
            times.append(at)
            items.append(np.full(len(at), n))
        load = Arrivals(np.concatenate(times), np.concatenate(items), 240.0)
        result = served("bert", load, batch=low)
        assert all(b.now_s - a.now_s >= 10 * INTERVAL_S - 1e-6 for a, b in pairwise(result.decided))
        assert result.answered == len(load.times_s)


def test_the_same_seed_gives_the_same_run() -> None:
    first, second = (served("gpt2", one_by_one(15.0, 200.0, 7), batch=1) for _ in range(2))
    assert (first.latencies_s == second.latencies_s).all()
    assert first.document() == second.document()
