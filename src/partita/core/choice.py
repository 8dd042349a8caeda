"""The choice of what executes a model: the candidates, what was found of each, and which one won."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import exp, inf, log

import msgspec

from partita.core.plan import Lowered
from partita.core.process_settings import ProcessSettings

Option = str | int | float | bool

EXACT_PRECISIONS = ("", "f32", "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """What the user lets lower precision change; both hold where both are given."""

    deviation: float | None = None
    """How far outputs may be off, relative to an item's largest value; None = as far as it is."""
    top1: float | None = None
    """Least share of items whose largest value must be in the same place; None = any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One way to execute a model: a runtime, its options, and settings of its worker's process."""

    runtime: str
    options: Mapping[str, Option] = field(default_factory=dict)
    process: Mapping[str, Option] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A name that is the same for equal candidates: ``openvino``, ``torch-script channels_last=true``."""
        return " ".join((self.runtime, *_texts("", self.options), *_texts("process.", self.process)))

    @property
    def precision(self) -> str:
        """The precision that it computes with, "" where that is the model's own."""
        given = str(self.options.get("precision", ""))
        return "" if given in EXACT_PRECISIONS else given

    def process_over(self, settings: ProcessSettings) -> ProcessSettings:
        """Return a model's process settings with those of the candidate in their place."""
        return msgspec.convert({**msgspec.structs.asdict(settings), **self.process}, ProcessSettings)


class Verdict(StrEnum):
    """What became of a candidate."""

    REFERENCE = "reference"
    """The runtime of the model's own format, which the others have to agree with."""
    ADMITTED = "admitted"
    """Its outputs agree."""
    REFUSED = "refused"
    """It did not load, did not run, or computes something else."""
    UNVERIFIED = "unverified"
    """The reference's outputs do not differ between items, so that agreeing with them proves nothing."""
    NOT_TRIED = "not tried"
    """The budget was spent before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deviation:
    """How far one output is from the reference's, at most, over all elements of all calibration items.

    `relative` is taken against the largest value of the same item, since a value near nought among large
    ones may be off by any factor. For whole numbers, booleans and texts both are the share of elements
    that differ.
    """

    output: str
    absolute: float
    relative: float
    agrees: bool
    """Whether it is within the tolerance, or within what the user allows."""
    top1: float | None = None
    """Share of items whose largest value is in the same place; None where there is but one value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Mean time of one execution of `batch` items with `threads` cores, milliseconds."""

    threads: int
    batch: int
    mean_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """What was found of one candidate."""

    candidate: Candidate
    verdict: Verdict
    reason: str = ""
    """Why it won, lost or was refused, in words."""
    version: str = ""
    """Of the runtime, as its worker said; "" where it never loaded."""
    deviations: tuple[Deviation, ...] = ()
    load_s: float | None = None
    """Time of its first start until it was ready, seconds."""
    second_load_s: float | None = None
    """Time of its second start, when what it keeps on disk was there."""
    resident_bytes: int | None = None
    """Memory of one instance with all cores, what it shares included."""
    private_bytes: int | None = None
    """Of that, what no other process has a part in."""
    second_private_bytes: int | None = None
    """Memory that a second instance, of one core, takes for itself beside the first."""
    speeds: tuple[Speed, ...] = ()
    slower: float | None = None
    """Weighted geometric mean of its plans' latencies ÷ the winner's, which has 1; None = dropped before."""

    @property
    def is_eligible(self) -> bool:
        """Whether it may execute the model."""
        return self.verdict in (Verdict.REFERENCE, Verdict.ADMITTED)

    @property
    def largest(self) -> Deviation | None:
        """The output that deviates most."""
        return max(self.deviations, key=lambda d: d.relative, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The candidates of one model on one machine, and the winner. The reference is the first."""

    cores: int
    max_batch: int
    items: int
    """Calibration items that outputs were compared on."""
    assessments: tuple[Assessment, ...]
    winner: str
    """Key of the candidate that wins over all batch sizes together."""
    by_batch: Mapping[int, str] = field(default_factory=dict)
    """Key of the fastest candidate for each aggregate batch B."""
    alike: tuple[str, ...] = ()
    """Keys of those whose inputs and outputs are exactly the winner's, so that they can serve beside it."""
    allowed_deviation: float | None = None
    """What the user allows lower precision to be off, relatively; None = nothing is said of that."""
    least_top1: float | None = None
    """Least share of items whose largest value lower precision must leave in its place; None = not said."""
    relative_tolerance: float | None = None
    """The user's own relative tolerance; None = the default of each datatype."""
    samples_hash: str = ""
    """Of the calibration items that the user gave; "" = made up from the signature."""
    budget_s: float = 0.0
    """Seconds that there were."""
    is_finished: bool = True
    """Whether measuring came to its end; False = interrupted, and this is the best known until then."""

    @property
    def reference(self) -> Assessment:
        """The format's own runtime."""
        return self.assessments[0]

    @property
    def won(self) -> Assessment:
        """The winner."""
        return next(a for a in self.assessments if a.candidate.key == self.winner)

    def for_batch(self, batch: int | None) -> Assessment:
        """Return the fastest for an aggregate batch of this size; the winner of all where there is none."""
        sizes = sorted(self.by_batch)
        if batch is None or not sizes:
            return self.won
        size = next((size for size in sizes if size >= batch), sizes[-1])
        fastest = [a for a in self.assessments if a.candidate.key == self.by_batch[size]]
        return fastest[0] if fastest and fastest[0].is_eligible else self.won

    @property
    def beside(self) -> tuple[Assessment, ...]:
        """Those that are the fastest for some batch and can serve beside the winner."""
        fastest = {*self.by_batch.values()} & {*self.alike} - {self.winner}
        return tuple(a for a in self.assessments if a.is_eligible and a.candidate.key in fastest)

    def lowered(self, taken: Assessment) -> Lowered | None:
        """Return what was measured of a candidate's lower precision; None for the model's own."""
        worst = taken.largest
        if not taken.candidate.precision or worst is None:
            return None
        shares = [d.top1 for d in taken.deviations if d.top1 is not None]
        return Lowered(
            precision=taken.candidate.precision,
            deviation=worst.relative,
            top1=min(shares, default=None),
            speedup=self._speedup(taken),
        )

    def _speedup(self, taken: Assessment) -> float | None:
        """Return how many times as fast as the fastest exact one, over the points that both were timed at."""
        exact: dict[tuple[int, int], float] = {}
        for one in self.assessments:
            for speed in one.speeds if one.is_eligible and not one.candidate.precision else ():
                point = (speed.threads, speed.batch)
                exact[point] = min(speed.mean_ms, exact.get(point, inf))
        ratios = [
            log(exact[s.threads, s.batch] / s.mean_ms)
            for s in taken.speeds
            if (s.threads, s.batch) in exact and s.mean_ms > 0
        ]
        return exp(sum(ratios) / len(ratios)) if ratios else None

    @property
    def is_consistent(self) -> bool:
        """Whether the winner is one of the candidates and may execute the model."""
        return any(a.candidate.key == self.winner and a.is_eligible for a in self.assessments)


def _texts(prefix: str, options: Mapping[str, Option]) -> list[str]:
    return [f"{prefix}{name}={_text(value)}" for name, value in sorted(options.items())]


def _text(value: Option) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
