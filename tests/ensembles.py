"""Ensembles of members in Python that multiply, for tests: made, started and asked."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
from numpy.typing import NDArray

from partita.core.plan import InstanceSpec
from partita.engine.deployment import EnsembleDeployment, MemberDeployment, plan_of
from partita.engine.engine import Engine
from partita.engine.ensemble import Ensemble
from partita.engine.ensemble_signature import MemberRole
from partita.engine.instance import ModelLaunch
from partita.engine.request import Layout, missing_members
from partita.engine.service import ServiceSettings
from partita.machines.dispatcher import BatchingRules
from tests.engine_driver import Asked, engine, until

ROW = Layout(None, (16,))
RAISE, EXIT, HANG, HOLD, WIDE = 1, 2, 3, 4, 5

MEMBER = """
import os, time
import numpy as np

FOLDER = os.path.dirname(os.path.abspath(__file__))
SCALE, TROUBLE = {scale}, {trouble}

class Scaled:
    \"\"\"y = scale · x[:, :3]. The last number of an item makes trouble where the member minds it.\"\"\"

    inputs = {{"x": {{"shape": [-1, 4], "datatype": "FP32"}}}}
    outputs = {{"y": {{"shape": [-1, -1], "datatype": "FP32"}}}}

    def infer(self, batch):
        x = batch["x"]
        what = set(x[:, 3].astype(int).tolist()) if TROUBLE else set()
        if 1 in what:
            raise ValueError("bad item")
        if 2 in what:
            os._exit(3)
        if 3 in what:
            time.sleep(3600)
        if 4 in what:
            open(os.path.join(FOLDER, "gate")).read()
        y = np.float32(SCALE) * x[:, :3]
        return {{"y": np.concatenate([y, y], axis=1) if 5 in what else y}}
"""


def scaled(folder: Path, name: str, scale: float, *, trouble: bool = False) -> ModelLaunch:
    """A member that multiplies; `trouble`: it minds the last number of an item."""
    home = folder / name
    home.mkdir(parents=True, exist_ok=True)
    (home / "model.py").write_text(dedent(MEMBER.format(scale=scale, trouble=trouble)))
    return ModelLaunch(name=name, path=f"{home}/model.py:Scaled", runtime="python")


def items(*values: float, what: int = 0) -> NDArray[np.float32]:
    return np.array([[v, v + 1, v + 2, what] for v in values], dtype=np.float32)


def deployment(
    launches: Sequence[ModelLaunch],
    *,
    rule: str = "mean",
    degrades: bool = False,
    combiner: ModelLaunch | None = None,
    roles: Sequence[MemberRole] | None = None,
    batch: int = 8,
    copies: int = 1,
    cores: tuple[int, ...] = (),
    **limits: Any,
) -> EnsembleDeployment:
    roles = roles or [MemberRole(name=launch.name) for launch in launches]
    specs = [
        InstanceSpec(model=role.name, threads=1, batch=batch, cores=cores)
        for role in roles
        for _ in range(copies)
    ]
    return EnsembleDeployment(
        name="all",
        version="1",
        launch=ModelLaunch(name="all", path="", runtime="ensemble"),
        settings=ServiceSettings(rules=BatchingRules(**limits)),
        plan=plan_of(specs),
        members=tuple(
            MemberDeployment(launch=one, role=role) for one, role in zip(launches, roles, strict=True)
        ),
        rule=rule,
        degrades=degrades,
        combiner=combiner,
    )


def start(made: Engine, deployed: EnsembleDeployment) -> Ensemble:
    service = made.add(deployed)
    assert isinstance(service, Ensemble)
    return service


@asynccontextmanager
async def served(launches: Sequence[ModelLaunch], **more: Any) -> AsyncIterator[Ensemble]:
    async with engine() as made:
        service = start(made, deployment(launches, **more))
        await service.until_ready()
        yield service
        await until(lambda: service.member.dispatcher.running_items == 0)
        assert service.arena.owned_items() == 0, "all item memory is back"
        service.check()


async def rows(asked: Asked) -> NDArray[Any]:
    (y,) = await asked.result()
    return y


def missing(asked: Asked) -> tuple[str, ...]:
    return missing_members(asked.future.result()[1])
