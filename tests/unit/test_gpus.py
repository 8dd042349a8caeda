"""GPUs, as a described machine has them."""

from pathlib import Path

import pytest

from partita.core.devices import MIB
from partita.core.errors import InvalidInput
from partita.core.topology import Topology
from partita.device_file import devices_for
from partita.system.gpus import gpu_memory


def smi(folder: Path, script: str) -> str:
    file = folder / "nvidia-smi"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


def test_the_driver_is_asked(tmp_path: Path) -> None:
    asked = smi(tmp_path, 'echo "$@" > "$0.args"; echo "0, 16160"; echo "1, [N/A]"')
    assert gpu_memory(tmp_path, asked) == {0: 16160 * MIB, 1: None}
    assert "--query-gpu=index,memory.total" in Path(asked + ".args").read_text()


@pytest.mark.parametrize("script", ["exit 9", "echo no table at all"])
def test_where_it_cannot_be_asked_the_gpus_are_counted(tmp_path: Path, script: str) -> None:
    for bus in ("0000:00:04.0", "0000:00:05.0"):
        home = tmp_path / "proc/driver/nvidia/gpus" / bus
        home.mkdir(parents=True)
        (home / "information").write_text("Model: \t\t Tesla V100\n")
    assert gpu_memory(tmp_path, smi(tmp_path, script)) == {0: None, 1: None}
    assert gpu_memory(tmp_path, "no-such-program-here") == {0: None, 1: None}


def test_a_machine_without_gpus(tmp_path: Path) -> None:
    assert gpu_memory(tmp_path, "no-such-program-here") == {}


def test_a_named_gpu_has_the_memory_that_was_found(topology: Topology) -> None:
    devices = devices_for("cpu:0,cuda:1", topology, (0,), gpus=lambda: {0: None, 1: 16 * MIB})
    assert [device.memory_bytes for device in devices][1] == 16 * MIB
    with pytest.raises(InvalidInput, match=r"cuda:3: .* this machine has cuda:0, cuda:1"):
        devices_for("cuda:3", topology, (0,), gpus=lambda: {0: None, 1: None})
    with pytest.raises(InvalidInput, match="this machine has no GPU"):
        devices_for("cuda:0", topology, (0,), gpus=dict)


@pytest.fixture
def topology() -> Topology:
    from partita.system.cpus import read_topology

    return read_topology()
