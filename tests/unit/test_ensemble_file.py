"""``ensemble.toml``, ``--devices`` and ``[[device]]``: what they mean, and what is said about mistakes."""

from pathlib import Path

import pytest

from partita.core.allocation import AllocationMatrix, Worker
from partita.core.devices import MIB, DeviceKind
from partita.core.errors import InvalidInput
from partita.core.topology import LogicalCpu, Topology
from partita.device_file import devices_for, read_devices
from partita.ensemble_file import EnsembleSource, read_ensemble
from partita.settings import ModelSettings, Settings
from partita.system.devices import parse_devices

MEMBERS = '[[member]]\npath = "a.onnx"\n[[member]]\npath = "b.onnx"\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a.onnx", "b.onnx", "meta.onnx", "rule.py"):
        (tmp_path / name).write_bytes(b"")
    return tmp_path


def read(folder: Path, text: str, settings: Settings | None = None) -> EnsembleSource:
    (folder / "both.toml").write_text(text)
    return read_ensemble(folder / "both.toml", settings)


def complaint(folder: Path, text: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        read(folder, text)
    return str(caught.value)


def test_a_file_with_members_alone_has_the_defaults(folder: Path) -> None:
    ensemble = read(folder, MEMBERS)
    assert ensemble.name == "both"
    assert ensemble.rule == "mean"
    assert (ensemble.segment, ensemble.on_member_failure) == (128, "fail")
    assert ensemble.batch_sizes == (8, 16, 32, 64, 128)
    assert [member.name for member in ensemble.members] == ["a", "b"]
    assert [member.source.path for member in ensemble.members] == [folder / "a.onnx", folder / "b.onnx"]
    assert ensemble.calibration is None


def test_everything_that_can_be_said(folder: Path) -> None:
    ensemble = read(
        folder,
        """
        name = "pets"
        rule = "weighted"
        segment = 64
        on_member_failure = "degrade"
        batch_sizes = [32, 8]
        calibration = "samples.npy"
        [[member]]
        path = "a.onnx"
        name = "first"
        weight = 2.5
        runtime = "onnxruntime"
        output = "p"
        classes = ["cat", "dog"]
        [[member]]
        path = "a.onnx"
        classes = ["dog", "cat"]
        """,
        Settings(model={"a": ModelSettings(max_batch=64)}),
    )
    first, second = ensemble.members
    assert (ensemble.name, ensemble.rule, ensemble.segment) == ("pets", "weighted", 64)
    assert ensemble.on_member_failure == "degrade"
    assert ensemble.batch_sizes == (8, 32)
    assert ensemble.calibration == folder / "samples.npy"
    assert (first.name, first.weight, first.output) == ("first", 2.5, "p")
    assert (second.name, second.weight, second.classes) == ("a", 1.0, ("dog", "cat"))
    assert first.source.max_batch == second.source.max_batch == 64


def test_rules_of_the_user_are_found_beside_the_file(folder: Path) -> None:
    assert read(folder, 'rule = "stack:meta.onnx"\n' + MEMBERS).rule == f"stack:{folder}/meta.onnx"
    assert read(folder, 'rule = "rule.py:Boxes"\n' + MEMBERS).rule == f"{folder}/rule.py:Boxes"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no [[member]]"),
        ('nmae = "x"\n' + MEMBERS, "unknown key 'nmae'; did you mean 'name'?"),
        (
            '[[member]]\npath = "a.onnx"\nwieght = 2',
            "[member.0] unknown key 'wieght'; did you mean 'weight'?",
        ),
        ("[[member]]\nweight = 2", "path"),
        ('[[member]]\npath = "a.onnx"\nweight = 0', "weight"),
        ('rule = "maen"\n' + MEMBERS, "unknown rule 'maen'; did you mean 'mean'?"),
        ('rule = "stack:there.onnx"\n' + MEMBERS, "there.onnx does not exist"),
        ('rule = "there.py:Rule"\n' + MEMBERS, "there.py does not exist"),
        ('on_member_failure = "ignore"\n' + MEMBERS, "one of fail, degrade"),
        ("segment = 0\n" + MEMBERS, "segment"),
        ("batch_sizes = [8, 8]\n" + MEMBERS, "expected different sizes"),
        ("batch_sizes = []\n" + MEMBERS, "expected different sizes"),
        ('[[member]]\npath = "c.onnx"', "c.onnx does not exist"),
        ('[[member]]\npath = "a.onnx"\n[[member]]\npath = "a.onnx"', "two members are named a"),
        (
            '[[member]]\npath = "a.onnx"\nweight = 2',
            "member a has weight = 2, which the rule 'mean' does not use",
        ),
        (MEMBERS + 'classes = ["x"]', "member a has no classes, and others have"),
        (
            '[[member]]\npath = "a.onnx"\nclasses = ["x", "y"]\n'
            '[[member]]\npath = "b.onnx"\nclasses = ["y", "z"]',
            "members a and b have different classes: only one of them has x, z",
        ),
        ('[[member]]\npath = "a.onnx"\nclasses = ["x", "x"]', "a class is there twice"),
    ],
)
def test_mistakes_are_named(folder: Path, text: str, said: str) -> None:
    told = complaint(folder, text)
    assert said in told
    assert "both.toml" in told or said.endswith("does not exist")


# --- devices ----------------------------------------------------------------------------------------


def test_a_list_of_devices() -> None:
    first, second, gpu = parse_devices("cpu:0-1, cpu:2,5,cuda:0", 900 * MIB)
    assert (first.name, first.cores, first.kind) == ("cpu:0-1", (0, 1), DeviceKind.CPU)
    assert (second.name, second.cores) == ("cpu:2,5", (2, 5))
    assert (gpu.name, gpu.index, gpu.is_gpu) == ("cuda:0", 0, True)
    assert [device.memory_bytes for device in (first, second, gpu)] == [450 * MIB, 450 * MIB, None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0-1", "'0-1' names no kind"),
        ("cuda:0,1", "'1' names no kind"),
        ("gpu:0", "unknown kind 'gpu'; there are cpu and cuda"),
        ("cuda:x", "'x' is not the number of a GPU"),
        ("cpu:3-1", "runs backwards"),
        ("cpu:", "is not a CPU number"),
        ("cpu:0-1,cpu:1-2", "cpu:0-1 and cpu:1-2 share CPU 1"),
        ("cuda:0,cuda:0", "cuda:0 is there twice"),
        ("", "names no kind"),
    ],
)
def test_mistakes_in_a_list_of_devices(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match="devices") as caught:
        parse_devices(text)
    assert said in str(caught.value)


def test_a_described_machine(tmp_path: Path) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(
        '[[device]]\nkind = "cuda"\nindex = 1\nmemory_mib = 16000\n'
        '[[device]]\nkind = "cpu"\nname = "left"\ncores = "0-7"\n'
    )
    gpu, cpu = read_devices(file)
    assert (gpu.name, gpu.index, gpu.memory_bytes) == ("cuda:1", 1, 16000 * MIB)
    assert (cpu.name, cpu.cores, cpu.memory_bytes) == ("left", tuple(range(8)), None)
    assert devices_for(str(file), topology(1), (0,)) == (gpu, cpu)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "device"),
        ("device = []", "there is no [[device]]"),
        ('[[device]]\nkind = "cpu"', 'a device of kind "cpu" needs cores = "0-3"'),
        ('[[device]]\nkind = "cuda"\ncores = "1"', 'a device of kind "cuda" needs index = 0'),
        ('[[device]]\nkind = "tpu"', "one of cpu, cuda"),
        ('[[device]]\nkind = "cuda"\nindex = -1', "index must be 0 or more"),
        ('[[device]]\nkind = "cuda"\nindex = 0\nmemory_mb = 3', "did you mean 'memory_mib'?"),
        ('[[device]]\nkind = "cpu"\ncores = "a"', "is not a CPU number"),
        (
            '[[device]]\nkind = "cpu"\ncores = "0"\n[[device]]\nkind = "cpu"\nname = "x"\ncores = "0"',
            "share CPU 0",
        ),
    ],
)
def test_mistakes_in_a_described_machine(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "machine.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_devices(file)
    assert said in str(caught.value)
    assert "machine.toml" in str(caught.value)


def topology(sockets: int, cores: int = 4) -> Topology:
    cpus = [
        LogicalCpu(socket=s, node=s, core=s * cores + c, cpu=s * cores + c)
        for s in range(sockets)
        for c in range(cores)
    ]
    return Topology(cpus=tuple(cpus), memory_bytes=1000 * MIB)


def test_without_a_list_a_socket_is_a_device_and_a_single_socket_is_halved() -> None:
    names = [device.name for device in devices_for(None, topology(2), tuple(range(8)))]
    assert names == ["cpu:0-3", "cpu:4-7"]
    halves = devices_for(None, topology(1), (0, 1, 2))
    assert [(d.name, d.memory_bytes) for d in halves] == [
        ("cpu:0-1", 2000 * MIB // 3),
        ("cpu:2", 1000 * MIB // 3),
    ]
    assert [device.name for device in devices_for(None, topology(1), (2,))] == ["cpu:2"]


# --- the matrix -------------------------------------------------------------------------------------


def test_a_matrix_knows_its_workers_and_columns() -> None:
    matrix = AllocationMatrix.of([[8, 0, 16], [0, 32, 8]])
    assert (matrix.devices, matrix.models, matrix.is_valid) == (2, 3, True)
    assert list(matrix.workers()) == [Worker(0, 0, 8), Worker(0, 2, 16), Worker(1, 1, 32), Worker(1, 2, 8)]
    assert matrix.column(2) == (16, 8)
    assert str(matrix) == "[8 0 16; 0 32 8]"
    without = matrix.with_element(1, 1, 0)
    assert without.as_lists() == [[8, 0, 16], [0, 0, 8]]
    assert not without.is_valid
    assert AllocationMatrix.empty(2, 3).with_element(0, 1, 4).rows == ((0, 4, 0), (0, 0, 0))
