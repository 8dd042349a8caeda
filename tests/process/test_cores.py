"""The cores that the process may use change while it serves: every model is planned anew, nothing is lost."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from partita.adaptation import Adaptation
from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile, ProfilePoint
from partita.core.topology import LogicalCpu, Topology
from partita.cores import CoreWatch
from partita.deploy import cores_of
from partita.engine.engine import Deployment
from partita.engine.service import Service, ServiceSettings
from partita.machines.dispatcher import BatchingRules
from partita.planning.division import even_shares
from partita.settings import ServerSettings
from partita.sharing import CoreSharing
from partita.system.cpus import read_topology
from tests.engine_driver import ask, engine, run, tricky, until, xy

CORES = tuple(sorted(os.sched_getaffinity(0)))
BOTH = (CORES[0], CORES[-1])
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(len(CORES) < 2, reason="there is a core to take away only where there are two"),
]
MACHINE = Topology(cpus=tuple(LogicalCpu(socket=0, node=0, core=c, cpu=c) for c in BOTH))
PROFILE = Profile(
    ProfilePoint(threads=threads, batch=batch, mean_ms=batch * (6.0 if threads == 2 else 10.0))
    for threads in (1, 2)
    for batch in (1, 2, 4)
)
FAT = Plan(instances=(InstanceSpec(threads=2, batch=4, cores=BOTH),), cores=2, batch=4)
HAND = Plan(instances=tuple(InstanceSpec(threads=1, batch=4, cores=(c,)) for c in BOTH), cores=2, batch=8)


def used(service: Service) -> list[int]:
    assert service.plan is not None
    return sorted(core for instance in service.plan.instances for core in instance.cores)


def is_settled_on(service: Service, cores: list[int]) -> bool:
    switcher = service.member.switcher
    assert switcher is not None
    return used(service) == cores and switcher.handover.is_finished


Machine = tuple[Callable[[], Topology], Callable[[int], None]]
"""What reads the machine, and what makes it one of so many cores."""


def described() -> Machine:
    now = [MACHINE]

    def become(cores: int) -> None:
        now[0] = replace(MACHINE, quota_cores=float(cores))

    return lambda: now[0], become


def real() -> Machine:
    def become(cores: int) -> None:
        os.sched_setaffinity(os.getpid(), BOTH[:cores])

    return read_topology, become


@pytest.mark.parametrize("machine", [described, real])
@pytest.mark.parametrize(
    ("plan", "profile", "word"),
    [
        (FAT, PROFILE, {}),
        (FAT, None, {}),
        (HAND, None, {}),
        (HAND, None, {"by_hand": True}),
        (HAND, None, {"workers": (2, 2)}),
    ],
)
def test_models_follow_the_cores_and_no_request_is_lost(
    tmp_path: Path,
    machine: Callable[[], Machine],
    plan: Plan,
    profile: Profile | None,
    word: dict[str, Any],
) -> None:
    launch = tricky(tmp_path)
    allowed = os.sched_getaffinity(0)
    read, become = machine()
    become(2)

    async def main() -> None:
        async with engine() as made:
            settings = ServiceSettings(rules=BatchingRules())
            parts = {"launch": launch, "settings": settings, "plan": plan, "profile": profile, **word}
            service = made.add(Deployment(name="tricky", version="1", cores=BOTH, **parts))
            await service.until_ready()
            loop = asyncio.get_running_loop()
            adaptation = Adaptation(made, loop, adapts=profile is not None)
            adaptation.topology = read()
            sharing = CoreSharing(made, adaptation, loop, ServerSettings(), look_s=0.02)
            watch = CoreWatch(sharing, loop, ServerSettings(), read=read, look_s=0.05)
            adaptation.start()
            sharing.start()
            watch.start()
            ends, answered = False, 0

            async def client(number: int) -> None:
                nonlocal answered
                while not ends:
                    (y,) = await ask(service, xy(number)).result()
                    assert y[0, 0] == 2 * number + 1
                    answered += 1
                    await asyncio.sleep(0.005)

            clients = [asyncio.create_task(client(number)) for number in range(4)]
            try:
                become(1)
                await until(lambda: is_settled_on(service, [BOTH[0]]))
                become(2)
                await until(lambda: is_settled_on(service, sorted(BOTH)))
                before = answered
                await until(lambda: answered > before + 10)
            finally:
                ends = True
                await asyncio.gather(*clients)
                await watch.stop()
                await sharing.stop()
                await adaptation.stop()
            if profile is None:
                assert service.plan is not None
                assert str(service.plan) == str(plan), "what it was before"
            assert (service.statistics.failures, service.statistics.worker_deaths) == (0, 0)

    try:
        run(main)
    finally:
        os.sched_setaffinity(os.getpid(), allowed)


def test_what_goes_wrong_while_looking_is_told_and_does_not_end_it(caplog: pytest.LogCaptureFixture) -> None:
    looks = 0

    def read() -> Topology:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise ZeroDivisionError("a file of the kernel says nonsense")
        return replace(MACHINE, quota_cores=1.0) if looks > 2 else MACHINE

    async def main() -> None:
        async with engine() as made:
            loop = asyncio.get_running_loop()
            adaptation = Adaptation(made, loop, adapts=False)
            sharing = CoreSharing(made, adaptation, loop, ServerSettings())
            watch = CoreWatch(sharing, loop, ServerSettings(), read=read, look_s=0.01)
            watch.start()
            await until(lambda: looks > 3)
            await until(lambda: adaptation.topology.quota_cores == 1.0)
            await watch.stop()

    run(main)
    (record,) = [r for r in caplog.records if r.exc_info is not None]
    assert "could not be looked at" in record.message
    assert "nonsense" in str(record.exc_info)


def test_what_was_asked_for_is_cut_to_what_there_is() -> None:
    one = replace(MACHINE, quota_cores=1.0)
    assert cores_of(ServerSettings(cores=2), one, strict=False) == BOTH[:1]
    assert cores_of(ServerSettings(cores=f"{BOTH[0]},{BOTH[1]}"), one, strict=False) == BOTH[:1]
    assert cores_of(ServerSettings(cores=1), MACHINE, strict=False) == BOTH[:1]
    assert cores_of(ServerSettings(head_cores=str(BOTH[0])), MACHINE) == BOTH[1:]
    assert list(even_shares("abc", BOTH, MACHINE).values()) == [BOTH[:1], BOTH[1:], BOTH[:1]]
