"""How far measuring a model beside its traffic has come: shown on the management port and in the metrics."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class TuningState(StrEnum):
    """What measuring does, or what became of it."""

    COLLECTING = "collecting"
    """An archive's calls are waited for, to measure it with."""
    IDLE = "idle"
    """It measures freely: nothing else comes."""
    RESTING = "resting"
    """It waits, and looks what the latencies are without it."""
    RUNNING = "running"
    """It measures beside the traffic."""
    FINISHED = "finished"
    STOPPED = "stopped"
    """The server, or the model, was stopped before its end; the next start goes on from here."""
    FAILED = "failed"


UNDER_WAY = (TuningState.COLLECTING, TuningState.IDLE, TuningState.RESTING, TuningState.RUNNING)


@dataclass(slots=True)
class TuningReport:
    """Written by whoever tunes, read by whoever asks. Times are seconds."""

    budget_s: float
    state: TuningState = TuningState.RESTING
    points: int = 0
    measured_s: float = 0.0
    """Time spent measuring; waiting for others does not count."""
    left_s: float = 0.0
    pauses: int = 0
    reason: str = ""
    """Why it paused last, or failed."""
    p99_s: float | None = None
    """99th percentile of the latency while it rested last."""
    answers: int = 0
    slow: int = 0
    """Answers since it began, and those of them that came while it measured and took longer than allowed."""

    @property
    def is_under_way(self) -> bool:
        """Whether it has not ended."""
        return self.state in UNDER_WAY

    def document(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "state": self.state.value,
            "points": self.points,
            "measured_s": round(self.measured_s, 2),
            "left_s": round(self.left_s, 2),
            "budget_s": self.budget_s,
            "pauses": self.pauses,
            "reason": self.reason,
            "p99_ms": None if self.p99_s is None else round(1000 * self.p99_s, 3),
            "answers": self.answers,
            "slow_answers": self.slow,
        }
