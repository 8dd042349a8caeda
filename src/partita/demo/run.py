"""The demo from beginning to end: profile, plan, contest, serve, ask, draw."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import numpy as np

from partita import allocation_picture
from partita.core.errors import MissingExtra
from partita.core.plan import Plan
from partita.core.profile import Profile
from partita.core.topology import Topology
from partita.demo import clients, contest, picture
from partita.demo.digits import Digits, load_digits, model_files
from partita.demo.ensemble import EnsembleReport, show_ensemble
from partita.demo.report import Contender, DemoResult, Load, ModelReport, load_line, plan_lines
from partita.embedded import Server
from partita.loadgen import Target
from partita.planning.optimizer import Optimizer
from partita.profiles import Measuring, measured
from partita.settings import InstanceSettings, ServerSettings, Settings
from partita.sources import ModelSource, find_models
from partita.system.addresses import Address
from partita.system.cpus import read_topology, select_cores
from partita.verified import verified

BATCH = 64
"""Images that are answered together where plans are compared."""
PICTURE = "demo.png"
SEARCH_PICTURE = "demo-ensemble.png"
_SHARES = {"profile": 0.35, "contest": 0.2, "load": 0.3}
"""Of the time asked for; the rest is starting and stopping workers."""
_LEAST_PROFILE_S = 2.0
"""A worker must have loaded before there is a point, however short the demo is to be."""
_CANDIDATES = 3

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """What every model is shown on."""

    topology: Topology
    cores: tuple[int, ...]
    data: Digits
    folder: Path
    """For the profiles: the demo measures anew each time and leaves the user's cache alone."""
    seconds: float
    """For one model, all steps together."""

    @property
    def samples(self) -> Path:
        """One batch of images to measure with."""
        return self.folder / "images.npy"

    def seconds_for(self, step: str) -> float:
        return self.seconds * _SHARES[step]


def run_demo(*, seconds: float, output: Path, report: Report) -> DemoResult:
    """Show everything on the digits models in about `seconds`, one line of `report` after another.

    Writes a picture into the folder `output`, which is made; without matplotlib that is said and left out.
    Raises `PartitaError` if something fails.
    """
    started_s = time.monotonic()
    topology = read_topology()
    files = model_files()
    with TemporaryDirectory(prefix="partita-demo-") as folder:
        stage = _Stage(
            topology=topology,
            cores=select_cores(topology, None),
            data=load_digits(),
            folder=Path(folder),
            seconds=seconds / (len(files) + 1),
        )
        np.save(stage.samples, stage.data.images[:BATCH])
        cores = f"{len(stage.cores)} cores for instances"
        report(f"machine: {topology.cpu_model or 'unknown CPU'}, {topology}; {cores}")
        report("")
        models = tuple(_show_model(path, stage, report) for path in files.values())
        together = _show_ensemble(stage, report)
    report(f"served over HTTP, {clients.CLIENTS} requests of one image each in flight:")
    for model in models:
        report(load_line(model))
    drawn = draw_picture(output / PICTURE, models, str(topology), report)
    if together is not None and drawn is not None:
        searched = output / SEARCH_PICTURE
        allocation_picture.draw(
            searched, together.allocated, title="Allocating the ensemble of four networks"
        )
        report(f"and of the search: {os.path.relpath(searched)}")
    return DemoResult(
        machine=f"{topology.cpu_model}, {topology}",
        models=models,
        ensemble=together,
        picture=drawn,
        seconds=time.monotonic() - started_s,
    )


def _show_ensemble(stage: _Stage, report: Report) -> EnsembleReport | None:
    if len(stage.cores) < 2:
        report("the ensemble is left out: it is shown on two devices, and there is one core")
        return None
    found = show_ensemble(stage.cores, stage.folder, stage.seconds, report)
    report("")
    return found


def _show_model(path: Path, stage: _Stage, report: Report) -> ModelReport:
    (source,) = find_models(path, Settings())
    settings = msgspec.structs.replace(source.settings, max_batch=BATCH, runtime=source.runtime)
    source = replace(source, settings=settings)
    measuring = Measuring(
        budget_s=max(stage.seconds_for("profile"), _LEAST_PROFILE_S),
        again=True,
        samples=stage.samples,
        folder=stage.folder,
    )
    profile = measured(source, stage.cores, stage.topology, measuring)
    contenders = _contest(source, profile, stage)
    for line in plan_lines(source.name, len(profile.points), contenders):
        report(line)
    report("")
    accuracy, load = _serve(source, contenders[0].plan, stage)
    return ModelReport(
        name=source.name,
        profile=profile,
        contenders=contenders,
        images=len(stage.data),
        accuracy=accuracy,
        load=load,
    )


def _contest(source: ModelSource, profile: Profile, stage: _Stage) -> tuple[Contender, ...]:
    """Run the planner's candidates and the two simple plans; the one that was fastest is the chosen plan."""
    cores = len(stage.cores)
    planned = Optimizer(profile, max_instance_batch=BATCH).candidates(cores, BATCH, _CANDIDATES)
    simple = {
        "fat instance": contest.fat(cores, BATCH),
        "one thread per core": contest.one_thread_per_core(cores, BATCH),
    }
    ran = verified(
        source,
        list(contest.different([*planned, *simple.values()])),
        cores=stage.cores,
        topology=stage.topology,
        seconds=stage.seconds_for("contest"),
        samples=stage.samples,
    )
    by_key = {contest.key(plan): plan for plan in ran}
    shown = {"chosen plan": ran[0], **{title: by_key[contest.key(plan)] for title, plan in simple.items()}}
    return tuple(
        Contender(title=title, plan=plan, measured_ms=plan.measured_ms or 0.0)
        for title, plan in shown.items()
    )


def _serve(source: ModelSource, plan: Plan, stage: _Stage) -> tuple[float, Load]:
    """Serve the model with this plan on a free port of loopback, and ask it."""
    instances = tuple(
        InstanceSettings(threads=one.threads, batch=one.batch, micro_batch=one.micro_batch)
        for one in plan.instances
    )
    model = msgspec.structs.replace(source.settings, instances=instances)
    server = ServerSettings(
        http=Address("127.0.0.1", 0),
        management=None,
        metrics=None,
        cores=",".join(map(str, stage.cores)) + ",",
    )
    planned = ModelSource(name=source.name, path=source.path, runtime=source.runtime, settings=model)
    with Server([planned], settings=Settings(server=server), ports=True) as running:
        target = Target.parse(running.url())
        answers = clients.ask_each(target, source.name, stage.data)
        load = clients.load(target, source.name, stage.data, seconds=stage.seconds_for("load"))
    return stage.data.accuracy(answers), load


def draw_picture(path: Path, models: Sequence[ModelReport], machine: str, report: Report) -> Path | None:
    """Write the picture and return where it is; None, said aloud, without matplotlib."""
    try:
        picture.draw(path, models, machine=machine)
    except MissingExtra as error:
        report(str(error))
        return None
    report("")
    report(f"the picture: {os.path.relpath(path)}")
    return path
