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
from partita.machines.handover import Stage
from partita.planning.estimator import EstimatorRules
from tests.engine_driver import add, ask, engine, only_instance, python_model, run, tricky, until, xy
from tests.process.test_engine_switching import FAT, THIN, needs_two_cores

CORE = min(os.sched_getaffinity(0))
MIB = 1 << 20
GROWN = 256 * MIB
GROWING = f"""
import numpy as np

class Growing:
    inputs = {{"x": {{"shape": [-1, 2], "datatype": "FP32"}}}}
    outputs = {{"y": {{"shape": [-1, 2], "datatype": "FP32"}}}}

    def infer(self, batch):
        if (batch["x"][:, 1] == 1).any():  # as no made-up item has it
            self.kept = np.ones({GROWN}, np.uint8)
        return {{"y": batch["x"]}}
"""
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


@needs_two_cores
def test_what_a_worker_holds_is_seen_when_it_falls_asleep_too(tmp_path: Path) -> None:
    launch = python_model(tmp_path, GROWING, "Growing")

    async def main() -> None:
        async with engine() as made:
            service = add(made, launch, FAT)
            await service.until_ready()
            fat = only_instance(service)
            before = fat.resident_bytes
            assert before > 10 * MIB
            switcher = service.member.switcher
            assert switcher is not None
            switcher.keep_warm([FAT, THIN], before + 2 * GROWN // 3)
            await until(lambda: switcher.handover.numbers(Stage.ASLEEP))
            await ask(service, xy(1, what=1)).result()
            assert fat.resident_bytes >= before + GROWN * 9 // 10
            await service.switch(THIN).until_finished()
            assert switcher.handover.stage(fat.number) in (Stage.ENDING, None), "more than may sleep"

    run(main)
