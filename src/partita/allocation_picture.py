"""The picture of an allocation: how the search went, and who runs where before and after. Needs ``plot``."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from partita.allocating import Allocated
from partita.core.allocation import AllocationMatrix
from partita.drawing import FAINT, INK, PAPER, picture

MEASURED, BEST, START = "#4a6fa5", "#1b7f79", "#b5544d"
_LONGEST_NAME = 16


def draw(path: Path, found: Allocated, *, title: str) -> None:
    """Write a PNG: of a described machine only the start. Raises `MissingExtra` without matplotlib."""
    wide = 12.5 if found.result is not None else 5.0
    with picture(path, title=title, inches=(wide, 4.6), dpi=130) as figure:
        if found.result is None:
            axes = figure.subplots(1, 1)
            _draw_matrix(axes, found, found.start, "start: worst-fit decreasing")
            return
        search, before, after = figure.subplots(1, 3, width_ratios=(1.9, 1.0, 1.0))
        _draw_search(search, found)
        rates = [f"{rate or 0:,.0f} items/s" for rate in (found.start_items_per_s, found.items_per_s)]
        _draw_matrix(before, found, found.start, f"before: {rates[0]}")
        _draw_matrix(after, found, found.allocation.matrix, f"after: {rates[1]}")


def _draw_search(axes: Any, found: Allocated) -> None:
    """Every matrix that was measured, in order, and the fastest so far."""
    assert found.result is not None
    log = found.result.log
    rates = np.array([one.items_per_s for one in log])
    order = np.arange(1, len(log) + 1)
    axes.set_title("items/s of every allocation that was measured, in order")
    axes.plot(
        order,
        np.maximum.accumulate(rates),
        color=BEST,
        linewidth=1.8,
        drawstyle="steps-post",
        label="fastest so far",
    )
    axes.scatter(order, rates, s=14, color=MEASURED, label="measured", zorder=3)
    predicted = [one.predicted_items_per_s for one in log]
    if any(value is not None for value in predicted):
        values = np.array([np.nan if value is None else value for value in predicted], float)
        axes.scatter(
            order, values, s=14, facecolors="none", edgecolors=FAINT, linewidths=0.8, label="predicted"
        )
    axes.axhline(found.result.start_items_per_s, color=START, linewidth=1.0, label="start")
    for position, (earlier, later) in enumerate(pairwise(log), start=1):
        if later.climb != earlier.climb:
            axes.axvline(position + 0.5, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)))
    axes.set_ylim(0.0, 1.15 * axes.get_ylim()[1])
    axes.set_xlabel("allocations measured; dashed: begun again elsewhere")
    axes.legend(loc="upper center", ncols=4, fontsize=8)


def _draw_matrix(axes: Any, found: Allocated, matrix: AllocationMatrix, title: str) -> None:
    """Batch sizes: a row for each member, a column for each device, darker = larger."""
    grid = np.array(matrix.rows, float).T  # (models, devices)
    shades = np.ma.masked_equal(np.log2(np.maximum(grid, 0.5)) + 1, 0)
    largest = np.log2(max(found.batch_sizes)) + 1
    axes.set_title(title)
    axes.pcolormesh(shades, cmap="YlGnBu", vmin=0, vmax=1.4 * largest, edgecolors=PAPER, linewidth=2)
    axes.set_facecolor("#f1f3f5")
    for (model, device), batch in np.ndenumerate(grid):
        text = f"{batch:.0f}" if batch else "–"
        colour = FAINT if not batch else PAPER if np.log2(batch) + 1 > 0.6 * largest else INK
        axes.text(device + 0.5, model + 0.5, text, ha="center", va="center", color=colour)
    axes.set_xticks(np.arange(matrix.devices) + 0.5, _short([d.name for d in found.allocation.devices]))
    axes.set_yticks(np.arange(matrix.models) + 0.5, _short(found.allocation.models))
    axes.invert_yaxis()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _short(names: Sequence[str]) -> list[str]:
    return [name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…" for name in names]
