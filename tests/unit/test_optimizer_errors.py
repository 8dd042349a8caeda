"""What the optimizer says of arguments that it cannot plan with."""

from collections.abc import Callable

import pytest

from partita.core.errors import InvalidInput, NoFeasiblePlan
from partita.core.plan import InstanceSpec, Objective, Plan
from partita.core.profile import Profile, ProfilePoint
from partita.planning.optimizer import Optimizer

PROFILE = Profile(
    ProfilePoint(threads=t, batch=b, mean_ms=10.0 * b / t, resident_bytes=(100 + b) << 20)
    for t in (2, 4)
    for b in (1, 2, 4, 8)
)
WITHOUT_MEMORY = Profile([ProfilePoint(threads=1, batch=1, mean_ms=1.0)])
SINGLE = Optimizer(PROFILE, micro_batches=False)


def point(threads: int, batch: int, mean_ms: float) -> Profile:
    return Profile([ProfilePoint(threads=threads, batch=batch, mean_ms=mean_ms)])


def of(*instances: InstanceSpec) -> Plan:
    return Plan(
        instances=instances, cores=sum(i.threads for i in instances), batch=sum(i.batch for i in instances)
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Optimizer(Profile([])), "profile has no points; profile at least one"),
        (lambda: Optimizer(point(0, 1, 1.0)), "profile point 0 threads, batch 1: both must be 1 or more"),
        (lambda: Optimizer(point(1, 0, 1.0)), "profile point 1 threads, batch 0: both must be 1 or more"),
        (lambda: Optimizer(point(1, 1, 0.0)), "latency 0.0 ms must be positive"),
        (lambda: Optimizer(point(1, 1, float("nan"))), "latency nan ms must be positive"),
        (lambda: Optimizer(point(1, 1, float("inf"))), "latency inf ms must be positive"),
        (lambda: Optimizer(PROFILE, sockets=()), r"sockets \(\): give at least one socket"),
        (lambda: Optimizer(PROFILE, sockets=(4, 0)), r"sockets \(4, 0\): .* each with 1 or more cores"),
        (
            lambda: Optimizer(WITHOUT_MEMORY, memory_bytes=1),
            "memory limit needs a profile that records memory",
        ),
        (
            lambda: Optimizer(PROFILE, max_instance_batch=0),
            "largest batch of an instance 0: must be 1 or more",
        ),
        (lambda: SINGLE.plan(0, 1), "cores 0: must be 1 or more"),
        (lambda: SINGLE.plan(4, 0), "batch 0: must be 1 or more"),
        (lambda: SINGLE.plan(4, 1, limit_ms=0.0), "latency limit 0 ms: must be more than 0"),
        (lambda: SINGLE.plan(4, 1, limit_ms=float("nan")), "latency limit nan ms: must be more than 0"),
        (lambda: Optimizer(PROFILE, sockets=(4, 4)).plan(9, 1), r"cores 9: sockets \(4, 4\) have 8 in all"),
        (lambda: SINGLE.candidates(4, 4, 0), "candidates 0: ask for 1 or more"),
        (lambda: SINGLE.robust(4, 0), "batch 0: must be 1 or more"),
        (lambda: SINGLE.robust(-1, 4), "cores -1: must be 1 or more"),
        (lambda: SINGLE.latency_ms(of(InstanceSpec(threads=2, batch=1)), 0), "batch 0: must be 1 or more"),
    ],
)
def test_wrong_arguments(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        make()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: SINGLE.plan(1, 1), "no plan serves 1 items on 1 cores: the profile has thread counts 2, 4"),
        (lambda: SINGLE.plan(4, 17), "no plan serves 17 items on 4 cores: .* batches up to 8"),
        (
            lambda: Optimizer(PROFILE, max_instance_batch=2).plan(4, 5),
            "no plan serves 5 items .* no instance takes more than 2 items",
        ),
        (lambda: Optimizer(PROFILE, sockets=(1, 1)).plan(2, 1), "no plan serves 1 items on 2 cores"),
        (
            lambda: SINGLE.plan(4, 4, limit_ms=1.0),
            "no plan serves 4 items on 4 cores within 1 ms; the least is 10",
        ),
        (
            lambda: SINGLE.plan(4, 4, Objective.THROUGHPUT, 1.0),
            "no plan serves 4 items on 4 cores within 1 ms; the least is 10 ms",
        ),
        (
            lambda: Optimizer(PROFILE, memory_bytes=64 << 20).plan(4, 4),
            "no plan for batch 4 on 4 cores fits in 64 MiB; the smallest needs 101 MiB",
        ),
        (
            lambda: SINGLE.latency_ms(of(InstanceSpec(threads=3, batch=1)), 1),
            "instances of 3 threads were never profiled",
        ),
        (
            lambda: SINGLE.latency_ms(of(InstanceSpec(threads=2, batch=1)), 9),
            "cannot serve 9 items with the profiled sizes",
        ),
        (
            lambda: SINGLE.instance_ms(InstanceSpec(threads=2, batch=3)),
            r"2 threads with executions \(3,\) were not all profiled",
        ),
    ],
)
def test_what_cannot_be_planned(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(NoFeasiblePlan, match=message):
        ask()


def test_instances_that_were_not_profiled_are_not_left_out() -> None:
    assert SINGLE.spread((2, 3), 5, 2) is None
    assert SINGLE.spread((2, 2), 4, 2) is not None
