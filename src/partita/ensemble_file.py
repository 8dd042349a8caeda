"""``ensemble.toml``: the members of an ensemble, how they are combined, and what to allocate them with."""

from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from partita.core.errors import InvalidInput
from partita.reading import read_table, read_toml
from partita.settings import Positive, Settings
from partita.sources import ModelSource, find_models

RULES = ("mean", "weighted", "vote", "max", "median")
"""Rules that the head itself knows; the others run in a worker."""
BOXES = "boxes"
"""Weighted boxes fusion, for detection; it runs in a worker."""
_WEIGHED = ("weighted", "vote", BOXES)

FailurePolicy = Literal["fail", "degrade"]


class MemberSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``[[member]]``: one model of the ensemble."""

    path: str
    """File or folder, relative to the ensemble's file."""
    name: str | None = None
    """What messages and tables call it; by default the model's own name."""
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    """Share in the rules ``weighted`` and ``vote``."""
    runtime: str | None = None
    """By default as the model's file or ``[model.NAME]`` says, or as was chosen for it."""
    output: str | None = None
    """Which output is combined; only needed where the model has several."""
    classes: tuple[str, ...] = ()
    """The classes along its output's last axis, where members have them in different orders."""


class BoxesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """``[boxes]``: how the rule ``boxes`` fuses detections."""

    iou: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.55
    """Boxes of one class that overlap more are of the same object: intersection over union."""
    skip: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    """Boxes with a lower score are left out."""
    confidence: Literal["avg", "max", "box_and_model_avg", "absent_model_aware_avg"] = "avg"
    """How the score of a fused box comes from those that it was made of."""
    most: Positive = 100
    """Boxes that are answered for an item at most, the surest; fewer are padded with zeros."""
    size: tuple[Positive, Positive] | None = None
    """Width and height of the image, where coordinates are pixels; unset = shares of it, 0 to 1."""


class EnsembleSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All of ``ensemble.toml``."""

    name: str | None = None
    """By default the file's name."""
    rule: str = "mean"
    """``mean``, ``weighted``, ``vote``, ``max``, ``median``, ``boxes``, ``stack:MODEL.onnx`` or
    ``FILE.py:Class``."""
    segment: Positive = 128
    """Items that are handed to every member together, offline."""
    on_member_failure: FailurePolicy = "fail"
    """What becomes of a request that one member cannot answer: it fails, or the others answer it."""
    batch_sizes: tuple[Positive, ...] = (8, 16, 32, 64, 128)
    """Batch sizes that an allocation may choose from."""
    calibration: str | None = None
    """Items to allocate with, .npy or .npz; by default made up."""
    boxes: BoxesSettings | None = None
    """How the rule ``boxes`` fuses."""
    member: tuple[MemberSettings, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSource:
    """One member as it lies on disk."""

    source: ModelSource
    weight: float = 1.0
    output: str | None = None
    classes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """What messages call it."""
        return self.source.name


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleSource:
    """An ensemble as its file says; nothing of it has been loaded."""

    name: str
    path: Path
    rule: str
    """One of `RULES`, `BOXES`, ``stack:`` and an absolute path, or an absolute ``FILE.py:Class``."""
    members: tuple[MemberSource, ...]
    segment: int = 128
    on_member_failure: FailurePolicy = "fail"
    batch_sizes: tuple[int, ...] = (8, 16, 32, 64, 128)
    calibration: Path | None = None
    boxes: BoxesSettings | None = None


def read_ensemble(path: Path, settings: Settings | None = None) -> EnsembleSource:
    """Return the ensemble that a file describes; `settings` are those of ``--config``.

    ``[model.NAME]`` there is about the member or the ensemble of that name. Raises `InvalidInput` for what is
    not there, an unknown key, or a setting that means nothing, and as `find_models` does for members.
    """
    file = path.expanduser().absolute()
    given = read_table(EnsembleSettings, read_toml(file), where=f"{path}: ")
    known = settings or Settings()
    if not given.member:
        raise InvalidInput(
            f'{path}: there is no [[member]]; write e.g. [[member]] and below it path = "a.onnx"'
        )
    members = tuple(_member(one, file, known, f"{path}: [member.{k}] ") for k, one in enumerate(given.member))
    _check_members(members, given, f"{path}: ")
    if given.boxes is not None and given.rule != BOXES:
        raise InvalidInput(f'{path}: [boxes] is about rule = "boxes", and the rule is {given.rule!r}')
    if given.on_member_failure == "degrade" and given.rule not in RULES:
        raise InvalidInput(
            f'{path}: on_member_failure = "degrade" works with the rules {", ".join(RULES)}; '
            "a rule that runs in a worker needs all members"
        )
    return EnsembleSource(
        name=given.name or file.stem,
        path=file,
        rule=_rule(given.rule, file),
        members=members,
        segment=given.segment,
        on_member_failure=given.on_member_failure,
        batch_sizes=_batch_sizes(given.batch_sizes, f"{path}: "),
        calibration=None if given.calibration is None else _beside(given.calibration, file),
        boxes=given.boxes or (BoxesSettings() if given.rule == BOXES else None),
    )


def _beside(text: str, file: Path) -> Path:
    return (file.parent / Path(text).expanduser()).absolute()


def _member(given: MemberSettings, file: Path, settings: Settings, where: str) -> MemberSource:
    found = find_models(_beside(given.path, file), settings)
    if any(one.ensemble is not None for one in found):
        raise InvalidInput(f"{where}path: {given.path} is an ensemble; name its members")
    if len(found) != 1:
        raise InvalidInput(f"{where}path: {given.path} holds {len(found)} models; name one of them")
    (source,) = found
    if given.runtime not in (None, "auto"):
        own = msgspec.structs.replace(source.settings, runtime=given.runtime)
        source = replace(source, runtime=given.runtime, settings=own)
    if given.name is not None:
        source = replace(source, name=given.name)
    if len(set(given.classes)) != len(given.classes):
        raise InvalidInput(f"{where}classes: a class is there twice")
    return MemberSource(source=source, weight=given.weight, output=given.output, classes=given.classes)


def _check_members(members: tuple[MemberSource, ...], given: EnsembleSettings, where: str) -> None:
    names = [member.name for member in members]
    for name in names:
        if names.count(name) > 1:
            raise InvalidInput(f"{where}two members are named {name}; give one of them another name")
    for member in members:
        if member.weight != 1 and given.rule not in _WEIGHED:
            raise InvalidInput(
                f"{where}member {member.name} has weight = {member.weight:g}, which the rule {given.rule!r} "
                'does not use; write rule = "weighted"'
            )
        if bool(member.classes) != bool(members[0].classes):
            without = member if members[0].classes else members[0]
            raise InvalidInput(
                f"{where}member {without.name} has no classes, and others have; give them to all"
            )
        if set(member.classes) != set(members[0].classes):
            differ = sorted(set(member.classes) ^ set(members[0].classes))
            raise InvalidInput(
                f"{where}members {members[0].name} and {member.name} have different classes: only one of "
                f"them has {', '.join(differ)}"
            )


def _rule(text: str, file: Path) -> str:
    if text in (*RULES, BOXES):
        return text
    kind, colon, rest = text.partition(":")
    if kind == "stack" and rest:
        return f"stack:{_existing(rest, file, text)}"
    path, colon, name = text.rpartition(":")
    if colon and path.endswith(".py") and name.isidentifier():
        return f"{_existing(path, file, text)}:{name}"
    near = get_close_matches(text, (*RULES, BOXES), n=1, cutoff=0.5)
    hint = (
        f"did you mean {near[0]!r}?"
        if near
        else f"there are {', '.join(RULES)}, boxes, stack:MODEL.onnx, FILE.py:Class"
    )
    raise InvalidInput(f"{file}: rule: unknown rule {text!r}; {hint}")


def _existing(text: str, file: Path, rule: str) -> Path:
    path = _beside(text, file)
    if not path.is_file():
        raise InvalidInput(f"{file}: rule = {rule!r}: {path} does not exist")
    return path


def _batch_sizes(sizes: tuple[int, ...], where: str) -> tuple[int, ...]:
    if not sizes or len(set(sizes)) != len(sizes):
        raise InvalidInput(f"{where}batch_sizes: expected different sizes, e.g. [8, 16, 32, 64, 128]")
    return tuple(sorted(sizes))
