"""The picture: what was profiled, and the plans drawn as cores × time. Needs the extra ``plot``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from partita.core.plan import InstanceSpec
from partita.core.profile import Profile
from partita.demo.report import Contender, ModelReport, instances_text, time_text
from partita.drawing import INK, PAPER, picture

FILLS = ("#1b7f79", "#a9820f", "#b5544d")
"""One colour per contender: the chosen plan first."""


def draw(path: Path, models: Sequence[ModelReport], *, machine: str) -> None:
    """Write a PNG with one row per model. Raises `MissingExtra` without matplotlib."""
    title = f"Profiles and plans on this machine ({machine})"
    with picture(path, title=title, inches=(12.5, 1.1 + 2.7 * len(models)), dpi=140) as figure:
        figure.get_layout_engine().set(w_pad=0.12, h_pad=0.10, hspace=0.04, wspace=0.04)
        axes = figure.subplots(len(models), 2, squeeze=False, width_ratios=(1.0, 1.25))
        for (left, right), model in zip(axes, models, strict=True):
            _draw_profile(left, model)
            _draw_plans(right, model)


def _draw_profile(axes: Any, model: ModelReport) -> None:
    """Heat map of the time per image; a cell that was not measured stays empty."""
    profile = model.profile
    per_item = _per_item_us(profile)
    axes.set_title(f"{model.name}: µs per image, one instance alone")
    axes.grid(visible=False)
    axes.pcolormesh(
        np.ma.masked_invalid(per_item),
        cmap="YlGnBu_r",
        norm=_log_norm(per_item),
        edgecolors=PAPER,
        linewidth=2,
    )
    axes.set_facecolor("#f1f3f5")
    middle = np.sqrt(np.nanmin(per_item) * np.nanmax(per_item))
    for (row, column), value in np.ndenumerate(per_item):
        if np.isfinite(value):
            colour = PAPER if value < middle else INK
            axes.text(
                column + 0.5, row + 0.5, _short(value), ha="center", va="center", color=colour, fontsize=8
            )
    axes.set_xticks(np.arange(len(profile.batches)) + 0.5, profile.batches)
    axes.set_yticks(np.arange(len(profile.threads)) + 0.5, profile.threads)
    axes.tick_params(length=0)
    axes.set_xlabel("images per execution, b")
    axes.set_ylabel("cores, t")
    for spine in axes.spines.values():
        spine.set_visible(False)


def _per_item_us(profile: Profile) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """(threads, batches) µs per item, nan where not measured."""
    table = np.full((len(profile.threads), len(profile.batches)), np.nan)
    for (threads, batch), point in profile.points.items():
        at = (profile.threads.index(threads), profile.batches.index(batch))
        table[at] = point.mean_ms * 1000 / batch
    return table


def _log_norm(values: "np.ndarray[Any, np.dtype[np.float64]]") -> Any:
    from matplotlib.colors import LogNorm

    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    return LogNorm(low, high if high > low else low * 1.01)


def _draw_plans(axes: Any, model: ModelReport) -> None:
    """One band per plan: a block is one execution, as high as its cores and as long as it takes."""
    chosen = model.chosen
    cores = chosen.plan.cores
    axes.set_title(f"{chosen.plan.batch} images at once: cores × time of each plan, measured")
    gap = 0.55 * cores + 0.35
    longest = max(one.measured_ms for one in model.contenders)
    for band, one in enumerate(model.contenders):
        top = band * (cores + gap) + gap
        _draw_band(axes, one, top=top, profile=model.profile, fill=FILLS[band % len(FILLS)], longest=longest)
        ratio = "" if one is chosen else f"   ({one.measured_ms / chosen.measured_ms:.2f} × as long)"
        title = f"{one.title}: {instances_text(one.plan)}   {time_text(one.measured_ms)}{ratio}"
        axes.text(0, top - 0.09 * cores, title, va="bottom", fontweight="bold" if one is chosen else "normal")
    axes.set_xlim(0, longest * 1.02)
    axes.set_ylim(len(model.contenders) * (cores + gap) + 0.1, 0)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel("ms")


def _draw_band(axes: Any, one: Contender, *, top: float, profile: Profile, fill: str, longest: float) -> None:
    lengths = [_lengths(instance, profile) for instance in one.plan.instances]
    scale = one.measured_ms / max(sum(length) for length in lengths)
    background = {"facecolor": "#f1f3f5", "edgecolor": "none"}
    axes.add_patch(_rectangle(0, top, longest, one.plan.cores, **background))
    for instance, length in zip(one.plan.instances, lengths, strict=True):
        start = 0.0
        for items, width in zip(_answered(instance), length, strict=True):
            drawn = width * scale
            axes.add_patch(
                _rectangle(
                    start, top, drawn, instance.threads, facecolor=fill, edgecolor=PAPER, linewidth=1.4
                )
            )
            if drawn > 0.03 * longest and instance.threads >= 0.2 * one.plan.cores:
                words = f"{items} images" if drawn > 0.14 * longest else str(items)
                middle = (start + drawn / 2, top + instance.threads / 2)
                axes.text(*middle, words, ha="center", va="center", color=PAPER, fontsize=8)
            start += drawn
        top += instance.threads


def _rectangle(left: float, top: float, width: float, height: float, **style: Any) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((left, top), width, height, **style)


def _lengths(instance: InstanceSpec, profile: Profile) -> list[float]:
    """Return the profiled time of each execution; by items alone where one was not profiled."""
    times = [profile.latency_ms(instance.threads, size) for size in instance.executions]
    known = [time for time in times if time is not None]
    return known if len(known) == len(times) else [float(size) for size in instance.executions]


def _answered(instance: InstanceSpec) -> list[int]:
    """Return how many items each execution answers: the last one may be padded."""
    left, items = instance.batch, []
    for size in instance.executions:
        items.append(min(size, left))
        left -= items[-1]
    return items


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
