"""What the demo found, as values and as lines of text."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.core.plan import Plan
from partita.core.profile import Profile

if TYPE_CHECKING:
    from partita.demo.ensemble import EnsembleReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """One plan that was really run, with the median latency of one aggregate batch, all instances at once."""

    title: str
    plan: Plan
    measured_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One model served under load. Latencies are milliseconds as the client saw them."""

    clients: int
    answered: int
    failed: int
    items_per_s: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReport:
    """Everything that the demo shows about one model."""

    name: str
    profile: Profile
    contenders: tuple[Contender, ...]
    """The chosen plan first, then those it is compared with."""
    images: int
    accuracy: float
    load: Load

    @property
    def chosen(self) -> Contender:
        """The plan that the model is served with."""
        return self.contenders[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """What `run_demo` returns."""

    machine: str
    models: tuple[ModelReport, ...]
    ensemble: "EnsembleReport | None" = None
    """None on one core."""
    picture: Path | None
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """Return the figures as plain values."""
        return {
            "machine": self.machine,
            "seconds": round(self.seconds, 1),
            "picture": None if self.picture is None else str(self.picture),
            "models": [_model_json(model) for model in self.models],
            "ensemble": None if self.ensemble is None else self.ensemble.as_json(),
        }


def _model_json(model: ModelReport) -> dict[str, Any]:
    return {
        "name": model.name,
        "images": model.images,
        "accuracy": round(model.accuracy, 4),
        "profiled_points": len(model.profile.points),
        "plans": [
            {
                "title": one.title,
                "plan": str(one.plan),
                "expected_ms": one.plan.expected_ms,
                "measured_ms": round(one.measured_ms, 4),
            }
            for one in model.contenders
        ],
        "clients": model.load.clients,
        "answered": model.load.answered,
        "failed": model.load.failed,
        "items_per_s": round(model.load.items_per_s, 1),
        "p50_ms": round(model.load.p50_ms, 3),
        "p99_ms": round(model.load.p99_ms, 3),
    }


def plan_lines(model: str, points: int, contenders: Sequence[Contender]) -> Iterator[str]:
    """Yield one line per plan: what it is, how long a batch takes, how that compares with the chosen one."""
    batch = contenders[0].plan.batch
    yield f"{model}: {points} points profiled; one batch of {batch} images, all instances at once, takes"
    for one in contenders:
        note = "" if one is contenders[0] else _compared(one, contenders[0])
        yield f"  {one.title:22} {instances_text(one.plan):44} {time_text(one.measured_ms):>10}{note}"


def _compared(one: Contender, chosen: Contender) -> str:
    if one.plan.groups() == chosen.plan.groups():
        return "   the same plan"
    return f"   {one.measured_ms / chosen.measured_ms:.2f} × the chosen plan's time"


def load_line(report: ModelReport) -> str:
    """Return the one line about serving: accuracy, throughput, latency."""
    load = report.load
    failed = f"   {load.failed} FAILED" if load.failed else ""
    latency = f"p50 {time_text(load.p50_ms)}   p99 {time_text(load.p99_ms)}"
    return (
        f"  {report.name:12} {report.accuracy:7.2%} of {report.images} images right   "
        f"{load.items_per_s:8,.0f} images/s   {latency}{failed}"
    )


def instances_text(plan: Plan) -> str:
    """Return a plan in words, such as ``2 × (1 core, 16 images as 8 + 8)``."""
    return ", ".join(
        f"{count} × ({spec.threads} core{'s' * (spec.threads > 1)}, {_items(spec.batch, spec.executions)})"
        for spec, count in plan.groups()
    )


def _items(batch: int, executions: tuple[int, ...]) -> str:
    if len(executions) == 1:
        return f"{batch} image{'s' * (batch > 1)}"
    if len(set(executions)) == 1:
        return f"{batch} images as {len(executions)} × {executions[0]}"
    return f"{batch} images as {' + '.join(map(str, executions))}"


def time_text(ms: float) -> str:
    """Return a duration with a unit that suits it."""
    return f"{ms * 1000:.0f} µs" if ms < 1 else f"{ms:.2f} ms"
