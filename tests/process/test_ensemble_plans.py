"""An ensemble's plan follows the load as that of one model does: all members switch, and nothing is lost."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from partita.adaptation import Adaptation
from partita.core.errors import SwitchFailed
from partita.core.profile import Profile, ProfilePoint
from partita.core.topology import LogicalCpu, Topology
from partita.engine.deployment import EnsembleDeployment, MemberDeployment
from partita.engine.engine import Engine
from partita.engine.ensemble import Ensemble
from partita.engine.ensemble_signature import MemberRole
from partita.engine.instance import ModelLaunch
from partita.engine.service import ServiceSettings
from partita.machines.dispatcher import BatchingRules
from partita.planners import choices_of
from partita.planning.estimator import EstimatorRules
from partita.planning.switching import SwitchRules
from tests.engine_driver import ask, engine, python_model, run, until, xy

CORES = tuple(sorted(os.sched_getaffinity(0)))
BOTH = (CORES[0], CORES[-1])
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(len(CORES) < 2, reason="there is nothing to split where there is one core"),
]
MACHINE = Topology(cpus=tuple(LogicalCpu(socket=0, node=0, core=c, cpu=c) for c in BOTH))
PROFILE = Profile(
    ProfilePoint(threads=threads, batch=batch, mean_ms=2.0 + 4.0 * batch if threads == 2 else 16.0 + batch)
    for threads in (1, 2)
    for batch in (1, 2, 4, 8, 16)
)
"""One item is soonest where both members have both cores, in turns; many are where each has one."""
SLOW = """
    import os
    import time

    FOLDER = os.path.dirname(os.path.abspath(__file__))

    class Slow:
        inputs = {"x": {"shape": [-1, 2], "datatype": "FP32"}}
        outputs = {"y": {"shape": [-1, 2], "datatype": "FP32"}}

        def __init__(self):
            if os.path.exists(os.path.join(FOLDER, "broken")):
                raise RuntimeError("it cannot be loaded any more")

        def infer(self, batch):
            time.sleep(0.004 + 0.001 * len(batch["x"]))
            return {"y": 2 * batch["x"] + 1}
"""


def launches(folder: Path) -> list[ModelLaunch]:
    made = []
    for name in ("a", "b"):
        (folder / name).mkdir()
        made.append(python_model(folder / name, SLOW, "Slow", name))
    return made


def serve(made: Engine, launches: list[ModelLaunch]) -> Ensemble:
    deployment = EnsembleDeployment(
        name="both",
        version="1",
        launch=ModelLaunch(name="both", path="", runtime="ensemble"),
        settings=ServiceSettings(rules=BatchingRules()),
        plan=choices_of(_deployment(launches), MACHINE, leaves_core=False).best(1),
        cores=BOTH,
        members=_deployment(launches).members,
        rule="mean",
    )
    service = made.add(deployment)
    assert isinstance(service, Ensemble)
    return service


def _deployment(launches: list[ModelLaunch]) -> EnsembleDeployment:
    from partita.core.plan import InstanceSpec
    from partita.engine.deployment import plan_of

    return EnsembleDeployment(
        name="both",
        version="1",
        launch=ModelLaunch(name="both", path="", runtime="ensemble"),
        settings=ServiceSettings(rules=BatchingRules()),
        plan=plan_of([InstanceSpec(model=one.name, threads=2, batch=1, cores=BOTH) for one in launches]),
        cores=BOTH,
        members=tuple(
            MemberDeployment(launch=one, role=MemberRole(name=one.name), profile=PROFILE) for one in launches
        ),
        rule="mean",
    )


def threads(service: Ensemble) -> list[tuple[str, int]]:
    assert service.plan is not None
    return sorted((one.model, one.threads) for one in service.plan.instances)


@pytest.mark.alone
def test_the_cores_are_split_anew_among_the_members_as_the_load_asks_for_it(tmp_path: Path) -> None:
    made_launches = launches(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = serve(made, made_launches)
            await service.until_ready()
            assert threads(service) == [("a", 2), ("b", 2)], "in turns"
            adaptation = Adaptation(
                made,
                asyncio.get_running_loop(),
                adapts=True,
                warm_bytes=0,
                estimator=EstimatorRules(interval_s=0.5),
                switching=SwitchRules(switch_s=0.1, dwell_intervals=2),
            )
            adaptation.topology = MACHINE
            adaptation.start()
            ends = False

            async def client(number: int) -> None:
                while not ends:
                    (y,) = await ask(service, xy(number)).result()
                    assert y[0, 0] == 2 * number + 1

            clients = [asyncio.create_task(client(number)) for number in range(16)]
            await until(lambda: threads(service) == [("a", 1), ("b", 1)])
            made.leases.check()
            (switch, *_) = [d for d in adaptation.decisions("both") if d["action"] == "switch"]
            assert switch["seen"]["depth"] > 8
            assert adaptation.switches("both")[-1]["outcome"] in ("accepting", "finished")
            ends = True
            await asyncio.gather(*clients)
            await adaptation.stop()
            assert service.plan is not None
            with pytest.raises(SwitchFailed, match="is an ensemble"):
                adaptation.switch("both", service.plan, "by hand")
            assert service.statistics.failures == 0
            assert service.statistics.worker_deaths == 0

    run(main)


def test_a_member_that_cannot_switch_leaves_all_as_they_were(tmp_path: Path) -> None:
    made_launches = launches(tmp_path)

    async def main() -> None:
        async with engine() as made:
            service = serve(made, made_launches)
            await service.until_ready()
            before = service.plan
            (tmp_path / "b" / "broken").touch()
            apart = choices_of(_deployment(made_launches), MACHINE, leaves_core=False).best(16)
            assert sorted(one.threads for one in apart.instances) == [1, 1]
            switch = service.switch(apart, reason="a test")
            with pytest.raises(SwitchFailed):
                await switch.until_accepting()
            assert service.member.switcher is not None
            await until(lambda: service.member.switcher.handover.is_finished)  # type: ignore[union-attr]
            assert service.plan is before
            (y,) = await ask(service, xy(3)).result()
            assert y[0, 0] == 7
            unfit = replace(apart, instances=apart.instances[:1], batch=apart.instances[0].batch)
            with pytest.raises(SwitchFailed, match="no instance of some member"):
                await service.switch(unfit, reason="a test").until_accepting()

    run(main)
