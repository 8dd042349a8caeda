"""A model whose batches have different winners is deployed in all of them; its plans name their runtime."""

from dataclasses import replace
from pathlib import Path

import pytest

from partita.choosing import choice_file, with_candidate
from partita.core.choice import Assessment, Candidate, Choice, Verdict
from partita.core.profile import Profile, ProfilePoint
from partita.core.topology import LogicalCpu, Topology
from partita.deploy import deployments
from partita.engine.deployment import Deployment
from partita.launching import launch_of
from partita.planners import choices_of
from partita.profiling.choice_store import save_choice
from partita.profiling.identity import installed_version, provenance_of
from partita.profiling.store import cached_path, save
from partita.settings import ModelSettings, ServerSettings
from partita.sources import ModelSource
from partita.system.artefacts import cache_dir
from tests.models import linear

TOPOLOGY = Topology(cpus=tuple(LogicalCpu(socket=0, node=0, core=n, cpu=n) for n in range(2)))
OWN = Candidate(runtime="onnxruntime")
OTHER = Candidate(runtime="onnxruntime", options={"arena": False})
VERSION = installed_version("onnxruntime")
CHOICE = Choice(
    cores=2,
    max_batch=8,
    items=64,
    winner=OWN.key,
    by_batch={1: OTHER.key, 2: OTHER.key, 4: OWN.key, 8: OWN.key},
    alike=(OWN.key, OTHER.key),
    assessments=(
        Assessment(candidate=OWN, verdict=Verdict.REFERENCE, version=VERSION),
        Assessment(candidate=OTHER, verdict=Verdict.ADMITTED, version=VERSION),
    ),
)


def profile(fixed_ms: float, item_ms: float) -> Profile:
    return Profile(
        [
            ProfilePoint(threads=t, batch=b, mean_ms=fixed_ms + b * item_ms / t)
            for t in (1, 2)
            for b in (1, 2, 4, 8)
        ]
    )


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelSource:
    monkeypatch.setenv("PARTITA_CACHE_DIR", str(tmp_path / "cache"))
    return ModelSource(name="m", path=linear(tmp_path / "m.onnx"), runtime="onnxruntime")


def keep(source: ModelSource, choice: Choice, other: Profile | None) -> None:
    save_choice(choice_file(source, TOPOLOGY), choice)
    if other is not None:
        launch = launch_of(with_candidate(source, OTHER))
        provenance = provenance_of(launch, model_path=source.path, topology=TOPOLOGY)
        path = cached_path(cache_dir() / "profiles", provenance)
        save(path, Profile(other.points.values(), provenance=provenance))


def deployed(source: ModelSource) -> Deployment:
    (made,) = deployments([source], ServerSettings(), TOPOLOGY, lambda *_: profile(20.0, 1.0))
    return made


def test_the_runtimes_that_win_some_batch_are_launched_and_planned_with(source: ModelSource) -> None:
    keep(source, CHOICE, profile(1.0, 20.0))
    made = deployed(source)
    assert made.launch.options.get("arena") is None
    assert made.launch.variants[OTHER.key].options["arena"] is False
    assert made.launch.variants[OTHER.key].runtime == "onnxruntime"
    choices = choices_of(made, TOPOLOGY, leaves_core=False)
    single, many = choices.best(1), choices.best(8)
    assert {i.runtime for i in single.instances} == {OTHER.key}
    assert {i.runtime for i in many.instances} == {""}
    assert made.launch.variant(single.instances[0]) is made.launch.variants[OTHER.key]
    assert made.launch.variant(many.instances[0]) is made.launch
    assert all(i.cores for plan in (single, many) for i in plan.instances)


@pytest.mark.parametrize(
    "choice",
    [
        replace(CHOICE, alike=(OWN.key,)),
        replace(CHOICE, by_batch={1: OWN.key, 8: OWN.key}),
        replace(CHOICE, assessments=(CHOICE.assessments[0], replace(CHOICE.assessments[1], version="0"))),
        replace(
            CHOICE,
            assessments=(CHOICE.assessments[0], replace(CHOICE.assessments[1], verdict=Verdict.REFUSED)),
        ),
    ],
    ids=["other outputs", "never the fastest", "another version", "refused"],
)
def test_others_are_not(source: ModelSource, choice: Choice) -> None:
    keep(source, choice, profile(1.0, 20.0))
    made = deployed(source)
    assert not made.launch.variants
    assert not made.variants


def test_without_times_of_it_a_runtime_is_not_planned_with(source: ModelSource) -> None:
    keep(source, CHOICE, None)
    assert not deployed(source).variants


@pytest.mark.parametrize(
    "settings",
    [ModelSettings(batch=4), ModelSettings(runtime="onnxruntime"), ModelSettings(options={"spin": True})],
)
def test_where_the_user_has_said_what_executes_it_nothing_else_does(
    source: ModelSource, settings: ModelSettings
) -> None:
    keep(source, CHOICE, profile(1.0, 20.0))
    assert not deployed(replace(source, settings=settings)).variants
