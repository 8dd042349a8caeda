"""Gauges of GPUs, from what a program says that prints as the driver's does."""

import asyncio
import os
from pathlib import Path
from textwrap import dedent

import pytest
from prometheus_client.core import Metric

from partita.protocols.torchserve import gpu_gauges
from partita.protocols.torchserve.gpu_gauges import GpuGauges
from partita.system.gpus import GpuUse, gpus_in_use

MIB = 1 << 20
LIMIT_S = 8.0


def program(folder: Path, script: str) -> str:
    """Return a command that does this."""
    file = folder / "driver"
    file.write_text("#!/bin/sh\n" + dedent(script))
    file.chmod(0o700)
    return str(file)


class Hand:
    """A clock that stands where it is put."""

    at_s = 0.0

    def now_s(self) -> float:
        return self.at_s

    def wall_s(self) -> float:
        return self.at_s


def values(families: list[Metric]) -> dict[tuple[str, str], float]:
    return {(s.name, s.labels["DeviceId"]): s.value for family in families for s in family.samples}


def test_what_each_gpu_does(tmp_path: Path) -> None:
    command = program(tmp_path, "echo '0, 37, 1024, 4096'; echo '1, [N/A], [N/A], 4096'")
    assert gpus_in_use(command) == (
        GpuUse(0, 37, 1024 * MIB, 4096 * MIB),
        GpuUse(1, None, None, 4096 * MIB),
    )


@pytest.mark.parametrize("script", ["exit 9", "echo nonsense", "echo 'x, 1, 2, 3'", "true"])
def test_a_driver_that_says_nothing_of_use(tmp_path: Path, script: str) -> None:
    assert gpus_in_use(program(tmp_path, script)) == ()


def test_no_driver(tmp_path: Path) -> None:
    assert gpus_in_use(str(tmp_path / "none")) == ()


def test_gauges_by_torchserves_names_and_only_where_there_is_a_gpu(tmp_path: Path) -> None:
    clock = Hand()
    gauges = GpuGauges(clock, program(tmp_path, "echo '0, 37, 1024, 4096'; echo '1, [N/A], [N/A], 4096'"))
    assert list(gauges.collect()) == []
    asyncio.run(gauges.read())
    wanted = {
        ("GPUUtilization", "0"): 37.0,
        ("GPUMemoryUsed", "0"): 1024.0,
        ("GPUMemoryUtilization", "0"): 25.0,
    }
    assert values(list(gauges.collect())) == wanted
    program(tmp_path, "echo '0, 0, 0, 4096'")
    asyncio.run(gauges.read())  # it was just asked
    assert values(list(gauges.collect())) == wanted
    clock.at_s = 2.0
    asyncio.run(gauges.read())
    assert set(values(list(gauges.collect())).values()) == {0.0}


def test_a_driver_that_hangs_holds_nobody_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_gauges, "PATIENCE_S", 0.05)
    os.mkfifo(tmp_path / "hangs")
    clock = Hand()
    gauges = GpuGauges(clock, program(tmp_path, "echo '0, 37, 1024, 4096'"))

    async def main() -> None:
        await gauges.read()
        async with asyncio.timeout(LIMIT_S):
            while not values(list(gauges.collect())):
                await asyncio.sleep(0)
        program(tmp_path, f"read said < {tmp_path}/hangs; echo '0, 99, 1024, 4096'")
        for clock.at_s in (2.0, 4.0, 6.0):  # asked, and still being asked
            await asyncio.wait_for(gauges.read(), LIMIT_S)
            assert values(list(gauges.collect()))["GPUUtilization", "0"] == 37.0
        with (tmp_path / "hangs").open("w") as said:
            said.write("go on\n")
        async with asyncio.timeout(LIMIT_S):
            while values(list(gauges.collect()))["GPUUtilization", "0"] != 99.0:
                await asyncio.sleep(0)

    asyncio.run(main())
