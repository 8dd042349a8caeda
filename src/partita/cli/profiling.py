"""What measuring a model looks like at the terminal, whichever command needs it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from partita.cli.console import milliseconds, progress, say
from partita.core.errors import InvalidInput

if TYPE_CHECKING:
    from partita.core.profile import Profile
    from partita.profiling.runner import Listener, Progress
    from partita.settings import Settings
    from partita.sources import ModelSource


def one_model(path: Path, settings: "Settings") -> "ModelSource":
    """Return the only model at a path; raises `InvalidInput` for several."""
    from partita.sources import find_models

    sources = find_models(path, settings)
    if len(sources) != 1:
        names = ", ".join(source.name for source in sources)
        raise InvalidInput(f"{path} holds {len(sources)} models; name one of them: {names}")
    return sources[0]


class Watch:
    """Remembers how far measuring has come."""

    def __init__(self) -> None:
        self.latest: Progress | None = None
        self.profile: Profile | None = None

    def save(self, profile: "Profile") -> None:
        """Take the newest table."""
        self.profile = profile


@contextmanager
def watched(watch: Watch, name: str, budget_s: float) -> "Iterator[Listener]":
    """Show a bar with the time left while a model is measured; notes are said. Yields who is to be told."""
    from partita.profiling.runner import Listener

    with progress(f"profiling {name}", budget_s) as advance:

        def told(now: "Progress") -> None:
            watch.latest = now
            advance(now.elapsed_s, now.elapsed_s + now.left_s, text=progress_text(now))

        yield Listener(progress=told, note=say, save=watch.save)


def progress_text(now: "Progress") -> str:
    """Return such words as ``12 points, at most 20 s left; 2 threads, 8 items: 1.2 ms``."""
    threads = f"{now.threads} thread{'s' * (now.threads > 1)}"
    items = f"{now.batch} item{'s' * (now.batch > 1)}"
    return (
        f"{now.points} points, at most {now.left_s:.0f} s left; "
        f"{threads}, {items}: {milliseconds(now.mean_ms)} ms"
    )
