"""`partita allocate`: the running system decides, and what it decides is what is served."""

import gc
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from partita import footprints
from partita.allocating import AllocateSettings, allocate
from partita.allocation_file import Allocation, kept_allocation, kept_path, read_allocation
from partita.allocation_journal import Journal
from partita.cli.app import run as cli
from partita.cli.serve import sources_for
from partita.core.allocation import AllocationMatrix
from partita.core.devices import MIB, Device, DeviceKind
from partita.core.errors import InvalidInput, NoFeasiblePlan
from partita.core.footprint import Footprint
from partita.deploy import deployments
from partita.embedded import Server
from partita.ensemble_bench import EnsembleBench
from partita.planning.allocation_search import Assessment, SearchLimits
from partita.planning.matrices import neighbours
from partita.settings import ServerSettings, Settings
from partita.sources import ModelSource, find_models
from partita.system.cpus import read_topology
from partita.system.devices import core_groups, parse_devices
from partita.testing.fake_gpu import DRIVER
from tests import models

pytestmark = pytest.mark.process

CPUS = sorted(os.sched_getaffinity(0))
needs_two = pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs to allocate to")
QUICK = AllocateSettings(
    limits=SearchLimits(max_iter=2, max_neighs=3, restarts=1), budget_s=5.0, measure_s=0.05
)


@pytest.fixture
def ensemble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    models.mlp(tmp_path / "small.onnx", 64, 32)
    models.mlp(tmp_path / "large.onnx", 64, 2000)
    file = tmp_path / "pair.toml"
    file.write_text(
        "batch_sizes = [8, 32]\nsegment = 64\n"
        '[[member]]\npath = "small.onnx"\n[[member]]\npath = "large.onnx"\n'
    )
    return find_models(file)[0]


def two_devices(memory_bytes: int | None = None) -> tuple[Device, ...]:
    return core_groups([(CPUS[0],), (CPUS[1],)], None if memory_bytes is None else 2 * memory_bytes)


@pytest.mark.alone
@needs_two
def test_the_result_is_measured_and_never_slower_than_the_start(ensemble: ModelSource) -> None:
    heard: list[Assessment] = []
    found = allocate(ensemble, two_devices(4096 * MIB), QUICK, told=heard.append)
    assert found.start_items_per_s is not None
    assert found.items_per_s is not None
    assert found.items_per_s >= found.start_items_per_s > 0
    assert found.allocation.matrix.is_valid
    assert found.memory_is_measured
    small, large = found.memory_bytes(8), found.memory_bytes(32)
    assert all(MIB < held < 2048 * MIB for row in small for held in row)
    assert all(b >= a for rows in zip(small, large, strict=True) for a, b in zip(*rows, strict=True))
    document = found.as_json()
    assert json.loads(json.dumps(document)) == document
    assert document["assessed"] == len(document["log"]) == len({one.matrix for one in heard})
    assert document["models"] == ["small", "large"]
    assert document["matrices_total"] == "64"
    assert found.start.as_lists() == [[0, 8], [8, 0]]
    assert all(one.predicted_items_per_s for one in heard if one.items_per_s)


@pytest.mark.alone
@needs_two
def test_a_neighbour_is_there_at_once_and_answers_rightly(ensemble: ModelSource) -> None:
    started_s = time.perf_counter()
    with EnsembleBench(ensemble, two_devices(), measure_s=0.05) as bench:
        built_s = time.perf_counter() - started_s
        matrix = next(neighbours(allocation_of(bench), (8, 32)))
        for neighbour in [matrix, *list(neighbours(matrix, (8, 32)))[:5]]:
            assert bench(neighbour) > 0
        assert bench.latencies_ms().keys() == {(d, m, b) for d in (0, 1) for m in (0, 1) for b in (8, 32)}
        assert max(bench.constructions_s) * 5 <= built_s, (bench.constructions_s, built_s)


def allocation_of(bench: EnsembleBench) -> AllocationMatrix:
    """Every member on every device."""
    return AllocationMatrix(((8,) * len(bench.memory[0]),) * len(bench.memory))


def pids(bench: EnsembleBench) -> dict[tuple[str, str], int | None]:
    """The workers that are loaded, by member and device."""
    assert bench._service is not None
    return {
        (branch.role.name, one.spec.device): one.pid
        for branch in bench._service.group.branches
        for one in branch.member.instances.values()
    }


@needs_two
def test_an_interrupted_measurement_leaves_nothing_that_is_complained_of_later(ensemble: ModelSource) -> None:
    said: list[object] = []
    bench = EnsembleBench(ensemble, two_devices(), measure_s=1.0)
    bench._loop.set_exception_handler(lambda _, context: said.append(context))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's job may ignore it
    try:
        with bench:
            bench._loop.call_later(0.05, signal.raise_signal, signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                bench(AllocationMatrix(((8, 8), (8, 8))))
    finally:
        signal.signal(signal.SIGINT, before)
    del bench
    gc.collect()
    assert said == []


@needs_two
def test_where_not_all_workers_fit_those_of_the_matrix_before_keep_running(ensemble: ModelSource) -> None:
    guesses = [[Footprint.estimated(100 * MIB), Footprint.estimated(120 * MIB)]] * 2
    left, right = (f"cpu:{cpu}" for cpu in CPUS[:2])
    roomy, tight = two_devices(230 * MIB)
    devices = roomy, replace(tight, memory_bytes=130 * MIB)
    with EnsembleBench(ensemble, devices, guesses, measure_s=0.2) as bench:
        assert bench(allocation_of(bench)) == 0, "both members on the second device do not fit"
        apart = AllocationMatrix.of([[8, 0], [0, 8]])
        assert bench(apart) > 0
        assert bench.latencies_ms() == {}
        before = pids(bench)
        assert before.keys() == {("small", left), ("large", right)}
        assert bench(AllocationMatrix.of([[8, 32], [0, 32]])) > 0
        more = pids(bench)
        assert more.keys() == {*before, ("large", left)}
        assert all(more[key] == pid for key, pid in before.items()), "they keep running"
        assert bench(AllocationMatrix.of([[8, 32], [0, 0]])) > 0
        assert pids(bench) == {key: pid for key, pid in more.items() if key[1] == left}
        assert bench(AllocationMatrix.of([[0, 8], [8, 0]])) > 0
        assert pids(bench).keys() == {("large", left), ("small", right)}
        assert pids(bench)["large", left] == more["large", left]
        assert bench(AllocationMatrix.of([[8, 0], [0, 8]])) > 0, "both on the second do not fit: anew"
        assert not set(pids(bench).values()) & set(more.values())


def test_too_little_memory_is_said_before_the_system_is_built(
    ensemble: ModelSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be built")

    monkeypatch.setattr("partita.allocating.EnsembleBench", build)
    devices = two_devices(10 * MIB) if len(CPUS) > 1 else core_groups([CPUS[:1]], 10 * MIB)
    with pytest.raises(NoFeasiblePlan, match="large does not fit"):
        allocate(ensemble, devices, QUICK)


def test_a_members_memory_is_measured_by_loading_it_once_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    models.mlp(tmp_path / "wide.onnx", 16, 40000)  # of 1000 items it holds 160 MB between its two layers
    (source,) = find_models(tmp_path / "wide.onnx")
    assert footprints.known(source, (8, 1000)) == footprints.estimated(source)
    assert not footprints.estimated(source).is_measured
    found = footprints.measured(source, (8, 128, 1000))
    assert found.is_measured
    assert found.at(1000) > found.at(8) + 80 * MIB
    assert found.at(8) < found.at(500) < found.at(1000)
    monkeypatch.setattr("partita.footprints.measure_footprint", lambda *_, **__: pytest.fail("loaded again"))
    assert footprints.measured(source, (8, 1000)) == found == footprints.known(source, (1000, 8))
    with pytest.raises(pytest.fail.Exception):
        footprints.measured(source, (8, 2000))
    models.mlp(tmp_path / "wide.onnx", 16, 8)  # another model under the same name
    assert not footprints.known(source, (8, 1000)).is_measured


def test_what_cannot_be_measured_is_a_guess_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "broken.onnx").write_bytes(b"no network")
    (source,) = find_models(tmp_path / "broken.onnx")
    assert footprints.measured(source, (8, 32)) == footprints.estimated(source)


def test_memory_between_the_measured_sizes_lies_on_a_line() -> None:
    found = Footprint.measured([(128, 1280), (8, 80)])
    assert [found.at(batch) for batch in (1, 8, 68, 128, 248)] == [80, 80, 680, 1280, 2480]
    assert Footprint.measured([(8, 100), (128, 90)]).at(128) == 100, "what was taken is kept"
    assert {Footprint.estimated(7).at(batch) for batch in (1, 8, 999)} == {7}


@needs_two
def test_what_was_allocated_is_what_is_served(
    ensemble: ModelSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = f"cpu:{CPUS[0]},cpu:{CPUS[1]}"
    kept = tmp_path / "allocation.json"
    search = ["--max-iter", "1", "--max-neighbours", "2", "--restarts", "0", "--measure", "0.05"]
    arguments = ["allocate", str(ensemble.path), "--devices", devices, *search, "-o", str(kept), "--json"]
    assert cli(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert json.loads(kept.read_text()) == document
    allocation = read_allocation(kept)
    assert allocation.matrix.as_lists() == document["matrix"]
    assert ensemble.ensemble is not None
    assert kept_allocation(ensemble.ensemble, two_devices(4096 * MIB)) is None, "another machine"
    server = ServerSettings(cores=f"{CPUS[0]},{CPUS[1]}")
    (planned,) = deployments([ensemble], server, read_topology(), lambda *_: None)
    workers = {(i.device, i.model, i.batch) for i in planned.plan.instances}
    wanted = {
        (allocation.devices[w.device].name, allocation.models[w.model], w.batch)
        for w in allocation.matrix.workers()
    }
    assert workers == wanted
    (given,) = sources_for((ensemble.path,), Settings(), plan_file=kept)
    assert given.allocation is not None
    assert given.allocation.matrix == allocation.matrix
    x = np.random.default_rng(0).standard_normal((10, 64)).astype(np.float32)
    with Server([ensemble.path], cores=2) as running:
        assert running.predict("pair", x)["y"].shape == (10, 10)


@needs_two
def test_a_search_goes_on_from_what_was_measured_and_an_ended_one_is_not_repeated(
    ensemble: ModelSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    devices = f"cpu:{CPUS[0]},cpu:{CPUS[1]}"
    search = ["--max-iter", "1", "--max-neighbours", "2", "--restarts", "0", "--measure", "0.05"]
    arguments = ["allocate", str(ensemble.path), "--devices", devices, *search, "--json"]
    assert ensemble.ensemble is not None
    kept = kept_path(ensemble.ensemble, parse_devices(devices, read_topology().memory_bytes))
    journal = Journal(kept.with_suffix(".search"), devices=2, models=2)
    starts = AllocationMatrix.of([[0, 8], [8, 0]]), AllocationMatrix.of([[8, 0], [0, 8]])
    for start in starts:  # which one it is depends on some KiB of measured memory
        journal.note(start, 123.0)  # of a search that was interrupted
    with journal.path.open("a") as file:
        file.write("[[[8, 8], [8, 8]], 1")  # in the middle of a line
    assert cli(arguments) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["log"][0]["items_per_s"] == 123.0, "it was not measured again"
    assert first["start_items_per_s"] != 123.0, "the finalists are"
    known = journal.read()
    assert {AllocationMatrix.of(one["matrix"]) for one in first["log"]} <= known.keys()
    assert cli(arguments) == 0
    told = capsys.readouterr()
    assert json.loads(told.out) == first
    assert "kept from an earlier search" in told.err
    picture = tmp_path / "search.png"
    assert cli([*arguments, "--again", "--picture", str(picture)]) == 0
    assert json.loads(capsys.readouterr().out)["log"][0]["items_per_s"] != 123.0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert cli([*arguments, "--again", "--resume"]) == 2
    assert "give one of them" in capsys.readouterr().err


def test_a_described_machine_is_planned_for_and_nothing_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    members = ""
    for index in range(12):
        (tmp_path / f"m{index}.onnx").write_bytes(b"\0" * (1 << 20) * (index + 1))
        members += f'[[member]]\npath = "m{index}.onnx"\n'
    (tmp_path / "twelve.toml").write_text(members)
    (tmp_path / "machine.toml").write_text(
        "".join(f'[[device]]\nkind = "cuda"\nindex = {k}\nmemory_mib = 30\n' for k in range(4))
        + '[[device]]\nkind = "cpu"\ncores = "0-15"\nmemory_mib = 64000\n'
    )
    machine = ["--devices", str(tmp_path / "machine.toml")]
    assert cli(["allocate", str(tmp_path / "twelve.toml"), *machine, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["devices"] == ["cuda:0", "cuda:1", "cuda:2", "cuda:3", "cpu:0-15"]
    assert document["start"] == document["matrix"]
    on = [sum(map(bool, row)) for row in document["matrix"]]
    assert sum(on) == 12
    assert all(on[:4]), "GPUs first"
    assert on[4] > 0, "what no GPU has room for"
    assert document["items_per_s"] is None
    assert cli(["allocate", str(tmp_path / "twelve.toml"), *machine]) == 0
    assert "nothing was run" in capsys.readouterr().err


def test_gpus_with_a_driver_are_allocated_by_running_on_them(
    ensemble: ModelSource, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    machine, kept = tmp_path / "machine.toml", tmp_path / "allocation.json"
    machine.write_text(
        "".join(
            f'[[device]]\nkind = "cuda"\nindex = {k}\nmemory_mib = 8\nslots = 1\ndriver = "{DRIVER}"\n'
            for k in (0, 3)
        )
        + f'[[device]]\nkind = "cpu"\ncores = "{CPUS[0]}"\n'
    )
    search = ["--max-iter", "1", "--max-neighbours", "2", "--restarts", "0", "--measure", "0.05"]
    arguments = ["allocate", str(ensemble.path), "--devices", str(machine), *search]
    assert cli([*arguments, "-o", str(kept), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["devices"] == ["cuda:0", "cuda:3", f"cpu:{CPUS[0]}"]
    assert document["items_per_s"] >= document["start_items_per_s"] > 0
    assert document["memory_is_measured"]
    file_bytes = [(tmp_path / f"{name}.onnx").stat().st_size for name in ("small", "large")]
    assert document["memory_bytes"][:2] == [[2 * size for size in file_bytes]] * 2, (
        "of the GPU, not the process"
    )
    assert document["start"][2] == [0, 0], "GPUs first"
    allocation = read_allocation(kept)
    assert [(d.index, d.slots, d.driver) for d in allocation.devices[:2]] == [(0, 1, DRIVER), (3, 1, DRIVER)]
    everywhere = AllocationMatrix(((8, 8),) * 3)
    served = replace(ensemble, allocation=replace(allocation, matrix=everywhere))
    x = np.random.default_rng(0).standard_normal((100, 64)).astype(np.float32)
    with Server([served], cores=2) as running, Server([ensemble], cores=2) as on_cores:
        members = running.head.engine.service("pair").member.instances.values()
        pids = {(one.spec.device, one.pid) for one in members}
        assert len(pids) == 4, "one process for each GPU, and one for each member on cores"
        wanted = on_cores.predict("pair", x)["y"]
        np.testing.assert_allclose(running.predict("pair", x)["y"], wanted, rtol=1e-4, atol=1e-5)


@needs_two
def test_a_gpu_that_is_not_there_is_not_served_on(ensemble: ModelSource) -> None:
    gpu = Device(name="cuda:77", kind=DeviceKind.CUDA, index=77)
    assert ensemble.ensemble is not None
    found = Allocation(devices=(gpu,), models=("small", "large"), matrix=AllocationMatrix(((8, 8),)))
    with pytest.raises(NoFeasiblePlan, match="has cuda:77, and there is no such GPU here"):
        Server([replace(ensemble, allocation=found)], cores=2).start()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "is no allocation"),
        ('{"devices": ["cpu:0"], "models": ["a"], "matrix": [[0]]}', "a model has no worker"),
        ('{"devices": ["cpu:0"], "models": ["a", "b"], "matrix": [[8]]}', "a column for each model"),
        ('{"devices": ["left"], "models": ["a"], "matrix": [[8]]}', "names no kind"),
    ],
)
def test_mistakes_in_an_allocation(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(InvalidInput) as caught:
        read_allocation(file)
    assert said in str(caught.value)
    assert "a.json" in str(caught.value)
