"""Several models divide the cores while they serve: one comes or goes, others follow; nothing is lost."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from partita.adaptation import Adaptation
from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile, ProfilePoint
from partita.engine.engine import Deployment, Engine
from partita.engine.instance import ModelLaunch
from partita.engine.service import Service, ServiceSettings
from partita.machines.dispatcher import BatchingRules
from partita.planning.division import Division, Outcome
from partita.planning.switching import SwitchRules
from partita.settings import ServerSettings
from partita.sharing import CoreSharing
from tests.engine_driver import ask, engine, run, tricky, until, xy

CORES = tuple(sorted(os.sched_getaffinity(0)))
BOTH = (CORES[0], CORES[-1])
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(len(CORES) < 2, reason="there is nothing to divide where there is one core"),
]
PROFILE = Profile(
    ProfilePoint(threads=threads, batch=batch, mean_ms=batch * (6.0 if threads == 2 else 10.0))
    for threads in (1, 2)
    for batch in (1, 2, 4)
)
SERVER = ServerSettings(cores=f"{BOTH[0]},{BOTH[1]}")


def deployment(
    launch: ModelLaunch,
    name: str,
    *cores: int,
    profile: Profile | None = PROFILE,
    by_hand: bool = False,
    version: str = "1",
) -> Deployment:
    instances = tuple(InstanceSpec(threads=1, batch=4, cores=(core,)) for core in cores)
    return Deployment(
        name=name,
        version=version,
        launch=launch,
        settings=ServiceSettings(rules=BatchingRules()),
        plan=Plan(instances=instances, cores=len(cores), batch=4 * len(cores)),
        cores=cores,
        profile=profile,
        by_hand=by_hand,
    )


def used(service: Service) -> list[int]:
    assert service.plan is not None
    return sorted(core for instance in service.plan.instances for core in instance.cores)


def has(service: Service, *cores: int) -> bool:
    switcher = service.member.switcher
    assert switcher is not None
    return used(service) == sorted(cores) and switcher.handover.is_finished


@asynccontextmanager
async def shared(
    made: Engine,
    *,
    adapts: bool = True,
    rules: SwitchRules | None = None,
    has_head_cores: bool = False,
) -> AsyncIterator[CoreSharing]:
    loop = asyncio.get_running_loop()
    adaptation = Adaptation(made, loop, adapts=adapts, warm_bytes=0, has_head_cores=has_head_cores)
    sharing = CoreSharing(made, adaptation, loop, SERVER, division=Division(rules), look_s=0.02)
    adaptation.start()
    sharing.start()
    try:
        yield sharing
    finally:
        await sharing.stop()
        await adaptation.stop()


class Clients:
    """Ask one service, as long as it is served, and count what comes of it."""

    def __init__(self, service: Service, count: int = 3) -> None:
        self.service = service
        self.answered = 0
        self._ends = False
        self._tasks = [asyncio.create_task(self._ask(number)) for number in range(count)]

    async def _ask(self, number: int) -> None:
        while not self._ends:
            (y,) = await ask(self.service, xy(number)).result()
            assert y[0, 0] == 2 * number + 1
            self.answered += 1
            await asyncio.sleep(0.005)

    async def end(self) -> None:
        self._ends = True
        await asyncio.gather(*self._tasks)
        assert self.service.statistics.failures == 0
        assert self.service.statistics.worker_deaths == 0


@pytest.mark.parametrize("profile", [PROFILE, None])
def test_who_stays_gets_the_cores_of_who_goes_and_gives_some_to_who_comes(
    tmp_path: Path, profile: Profile | None
) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with engine() as made:
            a = made.add(deployment(launch, "a", BOTH[0], profile=profile))
            b = made.add(deployment(launch, "b", BOTH[1], profile=profile))
            await made.until_ready()
            async with shared(made) as sharing:
                clients = Clients(a), Clients(b)
                await until(lambda: sharing.division.log)
                assert sharing.division.log[0].outcome is Outcome.FITS
                await clients[1].end()
                await made.remove("b", 10.0)
                await until(lambda: has(a, *BOTH))
                assert sharing.division.log[-1].cause == "went"
                b = made.add(deployment(launch, "b", BOTH[1], profile=profile))
                await until(lambda: b.is_ready and has(a, BOTH[0]) and has(b, BOTH[1]))
                assert sharing.division.log[-1].cause == "came"
                more = Clients(b)
                before = clients[0].answered
                await until(lambda: more.answered > 10 and clients[0].answered > before + 10)
                await more.end()
                await clients[0].end()

    run(main)


@pytest.mark.parametrize("has_head_cores", [False, True])
def test_only_who_is_alone_leaves_the_head_a_core(tmp_path: Path, has_head_cores: bool) -> None:
    launch = tricky(tmp_path)
    tiny = Profile(ProfilePoint(threads=1, batch=batch, mean_ms=0.003 * batch) for batch in (1, 2, 4))

    async def main() -> None:
        async with engine() as made:
            a = made.add(deployment(launch, "a", BOTH[0], profile=tiny))
            made.add(deployment(launch, "b", BOTH[1], profile=tiny))
            await made.until_ready()
            async with shared(made, has_head_cores=has_head_cores) as sharing:
                await until(lambda: sharing.division.log)
                await made.remove("b", 10.0)
                await until(lambda: made.deployment(a).cores == tuple(sorted(BOTH)))
                expected = BOTH if has_head_cores else (BOTH[0],)
                await until(lambda: has(a, *expected))

    run(main)


def test_a_profile_that_appears_takes_part_and_what_is_planned_by_hand_does_not(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with engine() as made:
            a = made.add(deployment(launch, "a", BOTH[0], profile=None))
            b = made.add(deployment(launch, "b", BOTH[1], by_hand=True))
            await made.until_ready()
            async with shared(made) as sharing:
                await until(lambda: sharing.division.log)
                assert a.plan is not None
                made.planned_anew(a, plan=a.plan, profile=PROFILE)
                await until(lambda: sharing.division.log[-1].cause == "profiled")
                assert sharing.division.log[-1].shares[0].weighted_ms == 10.0
                await made.remove("a", 10.0)
                await until(lambda: sharing.division.log[-1].cause == "went")
                assert used(b) == [BOTH[1]], "its cores are its own by somebody's word"

    run(main)


def test_a_model_that_is_limited_after_it_was_moved_keeps_the_cores_that_it_has_then(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with engine() as made:
            a = made.add(deployment(launch, "a", BOTH[0], profile=None))
            made.add(deployment(launch, "b", BOTH[1], profile=None))
            await made.until_ready()
            async with shared(made) as sharing:
                await until(lambda: sharing.division.log)
                await made.remove("b", 10.0)
                await until(lambda: has(a, *BOTH))
                made.limit(a, 1, 1)
                made.add(deployment(launch, "c", BOTH[1], profile=None))
                await until(lambda: sharing.division.log[-1].cause == "came")
                shares = {share.name: share for share in sharing.division.log[-1].shares}
                assert (shares["a"].before, shares["a"].cores) == (BOTH, BOTH)
                assert used(a) == list(BOTH)

    run(main)


def test_other_versions_follow_their_model_and_one_that_could_not_is_tried_again(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with engine() as made:
            first, second = (made.add(deployment(launch, "a", BOTH[0], version=v)) for v in ("1", "2"))
            made.add(deployment(launch, "b", BOTH[1]))
            await made.until_ready()
            rules = SwitchRules(first_backoff_s=0.05, longest_backoff_s=0.1)
            async with shared(made, rules=rules) as sharing:
                await until(lambda: sharing.division.log)
                second.member.launch = replace(launch, path="nowhere.py:Nothing")
                await made.remove("b", 10.0)
                await until(lambda: sharing.division.log[-1].outcome is Outcome.FAILED)
                assert has(first, *BOTH)
                assert used(second) == [BOTH[0]]
                second.member.launch = launch
                await until(lambda: has(second, *BOTH))
                assert made.deployment(second).cores == BOTH
                (y,) = await ask(second, xy(3)).result()
                assert y[0, 0] == 7

    run(main)


def test_more_models_than_cores_take_turns_and_nobody_adapts_who_is_told_not_to(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with engine() as made:
            services = [
                made.add(deployment(launch, name, core))
                for name, core in zip("abc", (*BOTH, BOTH[0]), strict=True)
            ]
            await made.until_ready()
            async with shared(made) as sharing:
                await until(lambda: sharing.division.log)
                assert sharing.division.log[-1].shared
                assert sharing.division.log[-1].outcome is Outcome.FITS
            async with shared(made, adapts=False) as sharing:
                await made.remove("c", 10.0)
                await made.remove("b", 10.0)
                clients = Clients(services[0], 1)
                await until(lambda: clients.answered > 20)
                await clients.end()
                assert not sharing.division.log
                assert used(services[0]) == [BOTH[0]]

    run(main)
