"""The head while it starts."""

import asyncio
from pathlib import Path

import pytest

from partita.core.plan import InstanceSpec, Plan
from partita.engine.deployment import Deployment
from partita.engine.service import ServiceSettings
from partita.head import Head
from partita.machines.dispatcher import BatchingRules
from partita.ports import Ports
from partita.settings import ServerSettings
from tests.engine_driver import run, tricky

pytestmark = pytest.mark.process


def test_it_is_not_ready_when_its_ports_open_but_when_its_models_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready: list[bool] = []
    deployment = Deployment(
        name="tricky",
        version="1",
        launch=tricky(tmp_path),
        settings=ServiceSettings(rules=BatchingRules()),
        plan=Plan(instances=(InstanceSpec(threads=1, batch=1),), cores=1, batch=1),
    )

    async def main() -> None:
        head = Head(ServerSettings(tune="never", adapt=False), asyncio.get_running_loop())

        async def opened(_: Ports) -> None:
            ready.append(head.engine.is_ready)

        monkeypatch.setattr(Ports, "open", opened)
        try:
            await head.start([deployment])
            ready.append(head.engine.is_ready)
        finally:
            await head.stop(0.0)

    run(main)
    assert ready == [False, True]
