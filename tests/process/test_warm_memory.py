"""The memory for workers that are loaded and asleep is shared by the models that there are now."""

import asyncio
import os
from pathlib import Path

import pytest

from partita.adaptation import Adaptation
from partita.core.plan import InstanceSpec, Plan
from partita.core.profile import Profile, ProfilePoint
from partita.engine.engine import Deployment
from partita.engine.instance import ModelLaunch
from partita.engine.service import Service, ServiceSettings
from partita.machines.dispatcher import BatchingRules
from partita.planning.estimator import EstimatorRules
from tests.engine_driver import engine, run, tricky, until

CORE = min(os.sched_getaffinity(0))
PROFILE = Profile(ProfilePoint(threads=1, batch=b, mean_ms=10.0 * b) for b in (1, 2))
pytestmark = pytest.mark.process


def deployment(name: str, launch: ModelLaunch) -> Deployment:
    return Deployment(
        name=name,
        version="1",
        launch=launch,
        settings=ServiceSettings(rules=BatchingRules()),
        plan=Plan(instances=(InstanceSpec(threads=1, batch=1, cores=(CORE,)),), cores=1, batch=1),
        cores=(CORE,),
        profile=PROFILE,
    )


def granted(service: Service) -> int:
    assert service.member.switcher is not None
    return service.member.switcher.handover.warm.max_bytes


def test_each_model_has_its_share_when_another_comes_and_when_it_goes(tmp_path: Path) -> None:
    launch = tricky(tmp_path)

    async def main() -> None:
        async with engine() as made:
            adaptation = Adaptation(
                made,
                asyncio.get_running_loop(),
                adapts=True,
                estimator=EstimatorRules(interval_s=0.1, samples=2),
            )
            adaptation.start()
            first = made.add(deployment("first", launch))
            await until(lambda: granted(first) > 0)
            whole = granted(first)
            second = made.add(deployment("second", launch))
            await until(lambda: granted(first) == granted(second) == whole // 2)
            await made.remove("second", 5.0)
            await until(lambda: granted(first) == whole)
            await adaptation.stop()

    run(main)
