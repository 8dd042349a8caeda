"""What all of our pictures share: colours, style, and a figure that is saved. Needs the extra ``plot``."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from partita.core.errors import InvalidInput, MissingExtra

INK, FAINT, PAPER = "#22313f", "#8a97a3", "#ffffff"

_STYLE: Any = {
    "font.size": 9,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "figure.facecolor": PAPER,
    "savefig.facecolor": PAPER,
}


@contextmanager
def picture(path: Path, *, title: str, inches: tuple[float, float], dpi: int) -> Iterator[Any]:
    """Yield an empty matplotlib figure, and write it as a PNG when the block ends without an error.

    Raises `MissingExtra` without matplotlib, and `InvalidInput` where the picture cannot be written.
    """
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra(
            "no picture without matplotlib; install it with: pip install 'partita[plot]'"
        ) from error
    with mpl.rc_context(_STYLE):
        figure: Any = Figure(figsize=inches, dpi=dpi, layout="constrained")
        figure.suptitle(title, x=0.012, ha="left", fontweight="bold")
        yield figure
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path)
        except OSError as error:
            raise InvalidInput(f"cannot write {path}: {error.strerror or error}") from error
        except ValueError as error:  # of a suffix that it has no format for
            raise InvalidInput(f"cannot write {path}: {error}") from error
