"""The models that `partita simulate` is to serve, from its options."""

from pathlib import Path
from typing import Any

import click
import numpy as np

from partita.cli.options import parse_sockets
from partita.cli.per_model import Named, check_names, value_for
from partita.core.errors import InvalidInput
from partita.core.profile import Profile
from partita.machines.dispatcher import Policy
from partita.planning.estimator import EstimatorRules
from partita.profiling.store import read_profile
from partita.settings import AGGREGATE_TIMEOUT_MS
from partita.simulator.arrivals import Arrivals, generate, parse_rate, read_trace
from partita.simulator.settings import DEFAULT_LOAD_S, SimulatedLoad, SimulationSettings

PER_MODEL = (
    *("mode", "rate", "trace", "items", "burst", "weight", "batch", "max_batch", "policy"),
    *("batch_timeout_ms", "queue_size", "load_time"),
)


def loads_of(options: dict[str, Any]) -> list[SimulatedLoad]:
    """Return the models in order. Raises `InvalidInput`, or `click.UsageError`."""
    files = _files(options["profile"])
    for option in PER_MODEL:
        check_names(_spelled(option), options[option], files)
    own = {name: {o: value_for(_spelled(o), options[o], name) for o in PER_MODEL} for name in files}
    for name, one in own.items():
        named = [o for o in ("rate", "trace") if any(whom == name for whom, _ in options[o])]
        if len(named) == 1:  # what comes to one by name counts, and not what comes to all
            one["trace" if named == ["rate"] else "rate"] = None
        if (one["rate"] is None) == (one["trace"] is None):
            whose = "" if len(files) == 1 else f" for {name}"
            raise click.UsageError(f"give either --rate SPEC or --trace FILE{whose}")
    if options["seed"] < 0:
        raise InvalidInput(f"--seed {options['seed']}: must be 0 or more")
    return [_load(at, name, file, own[name], options) for at, (name, file) in enumerate(files.items())]


def _spelled(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def _files(given: list[Named]) -> dict[str, Path]:
    files: dict[str, Path] = {}
    for name, file in given:
        called = name or (file.name if len(given) == 1 else file.stem)
        if called in files:
            raise InvalidInput(f"--profile: two models called {called}; write NAME={file} for one of them")
        files[called] = file
    return files


def _load(at: int, name: str, file: Path, own: dict[str, Any], options: dict[str, Any]) -> SimulatedLoad:
    profile = read_profile(file, mode=own["mode"])
    arrivals = _arrivals(at, own, options)
    return SimulatedLoad(
        name=name, profile=profile, arrivals=arrivals, settings=_settings(profile, own, options)
    )


def _arrivals(at: int, own: dict[str, Any], options: dict[str, Any]) -> Arrivals:
    """Return what comes; models of one run get arrivals of their own from its seed."""
    if own["trace"] is not None:
        return read_trace(own["trace"])
    kind, pieces = parse_rate(own["rate"], duration_s=options["duration_s"])
    rng = np.random.default_rng([options["seed"], at] if at else options["seed"])
    return generate(kind, pieces, rng, items=own["items"] or 1, burst=own["burst"] or 8.0)


def _settings(profile: Profile, own: dict[str, Any], options: dict[str, Any]) -> SimulationSettings:
    policy = Policy(own["policy"] or Policy.EAGER)
    timeout_ms = own["batch_timeout_ms"]
    if timeout_ms is None:
        timeout_ms = AGGREGATE_TIMEOUT_MS if policy is Policy.AGGREGATE else 0.0
    load_s = own["load_time"]
    if load_s is None:
        load_s = DEFAULT_LOAD_S if profile.load_s is None else profile.load_s
    max_batch = own["max_batch"] or max(profile.batches)
    sockets = options["sockets"]
    return SimulationSettings(
        cores=options["cores"],
        sockets=None if sockets is None else parse_sockets(sockets),
        max_batch=max_batch,
        batch=own["batch"],
        policy=policy,
        batch_timeout_s=timeout_ms / 1000.0,
        max_queue_items=own["queue_size"] or 1_000_000,
        adapt=options["adapt"],
        load_s=load_s,
        weight=own["weight"] or 1.0,
        contention=options["contention"],
        estimator=EstimatorRules(interval_s=options["interval_s"], max_batch=max_batch),
    )
