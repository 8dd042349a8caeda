"""The picture of a run: load, depth, plan, latency, and several models' cores. Needs the extra ``plot``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partita.drawing import FAINT, picture
from partita.simulator.result import SimulationResult

LOAD, DEPTH, ESTIMATE, MEAN, TAIL, OVER = "#4a6fa5", "#b9c4cf", "#1b7f79", "#1b7f79", "#a9820f", "#b5544d"


def draw(path: Path, results: Mapping[str, SimulationResult], *, title: str) -> None:
    """Write a PNG, a column for each model; several have a row for their cores. Raises `MissingExtra`."""
    several = len(results) > 1
    heights = (1.0, 1.2, 0.9, 1.2, *([0.5] * several))
    inches = (max(12.5, 8.0 * len(results)), 11.0 if several else 10.0)
    with picture(path, title=title, inches=inches, dpi=120) as figure:
        columns = figure.subplots(
            len(heights), len(results), sharex=True, height_ratios=heights, squeeze=False
        ).T
        most = max(cores for result in results.values() for _, cores in result.cores)
        longest_s = max(result.arrivals.duration_s for result in results.values())
        for axes, (name, result) in zip(columns, results.items(), strict=True):
            _draw_model(axes, result, f"{name}: " if several else "")
            if several:
                _draw_cores(axes[4], result, most)
            axes[-1].set_xlabel("s")
            axes[-1].set_xlim(0.0, max(longest_s, 1e-9))


def _draw_model(axes: Sequence[Any], result: SimulationResult, name: str) -> None:
    windows = result.windows()
    _draw_load(axes[0], result, windows, name)
    _draw_depth(axes[1], result)
    _draw_plans(axes[2], result)
    _draw_latency(axes[3], windows)
    for one in axes:
        for decision in result.decided:
            one.axvline(decision.now_s, color=FAINT, linewidth=0.8, linestyle=(0, (4, 3)))


def _edges(windows: list[dict[str, Any]]) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return np.array([*(w["from_s"] for w in windows), windows[-1]["to_s"]])


def _values(windows: list[dict[str, Any]], name: str) -> "np.ndarray[Any, np.dtype[np.float64]]":
    return np.array([np.nan if w[name] is None else w[name] for w in windows], dtype=float)


def _draw_load(axes: Any, result: SimulationResult, windows: list[dict[str, Any]], name: str) -> None:
    axes.set_title(f"{name}offered load, items/s, and what the best plan can do")
    axes.stairs(_values(windows, "items_per_s"), _edges(windows), color=LOAD, linewidth=1.6)
    axes.axhline(result.capacity, color=OVER, linewidth=1.0)
    for start_s, end_s, _ in result.overloads():
        axes.axvspan(start_s, end_s, color=OVER, alpha=0.12, linewidth=0)
    axes.set_ylim(bottom=0.0)


def _draw_depth(axes: Any, result: SimulationResult) -> None:
    axes.set_title("depth as arriving items find it (grey), and the estimated batch size B̃ (green)")
    axes.plot(result.times_s, np.maximum(result.depths, 0.5), color=DEPTH, linewidth=0.8)
    axes.plot(result.times_s, result.batches, color=ESTIMATE, linewidth=1.8, drawstyle="steps-post")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _draw_plans(axes: Any, result: SimulationResult) -> None:
    """One bar for each stretch in which the same instances served, as high as their number."""
    axes.set_title("plan ⟨instances, threads, items⟩; dashed: a switch was decided")
    times = [start_s for start_s, _ in result.plans]
    ends = [*times[1:], result.arrivals.duration_s]
    named = ""
    for (start_s, plan), end_s in zip(result.plans, ends, strict=True):
        kind = " ".join(str(i.threads) for i in plan.instances)
        axes.fill_between([start_s, end_s], 0, len(plan.instances), color=ESTIMATE, alpha=0.25, linewidth=0)
        if kind != named:
            axes.text(start_s, len(plan.instances), f" {plan}", va="bottom", fontsize=8, clip_on=True)
        named = kind
    axes.set_ylim(0, 1.35 * max(len(plan.instances) for _, plan in result.plans))
    axes.set_ylabel("instances")


def _draw_cores(axes: Any, result: SimulationResult, most: int) -> None:
    axes.set_title("cores")
    times = [*(from_s for from_s, _ in result.cores), result.arrivals.duration_s]
    values = [cores for _, cores in result.cores]
    axes.stairs(values, times, color=LOAD, linewidth=1.6, fill=True, alpha=0.35)
    axes.set_ylim(0, 1.1 * most)


def _draw_latency(axes: Any, windows: list[dict[str, Any]]) -> None:
    axes.set_title("latency of requests by time of arrival, ms")
    edges = _edges(windows)
    for name, colour, text in (("mean_ms", MEAN, "mean"), ("p99_ms", TAIL, "99th percentile")):
        axes.stairs(_values(windows, name), edges, color=colour, linewidth=1.6, label=text, baseline=None)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.legend(loc="upper right", ncols=2)
