"""Allocations on disk: what ``partita allocate`` found, as the JSON that it prints, and where it is kept."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from partita.core.allocation import AllocationMatrix
from partita.core.devices import SLOTS, Device
from partita.core.errors import InvalidInput
from partita.core.process_settings import ProcessSettings
from partita.ensemble_file import EnsembleSource
from partita.launching import launch_of
from partita.profiling.identity import handling_hash, installed_version, model_hash
from partita.system.artefacts import cache_dir
from partita.system.devices import cuda_device, parse_devices


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A matrix, with what its rows and columns are."""

    devices: tuple[Device, ...]
    models: tuple[str, ...]
    matrix: AllocationMatrix

    @property
    def has_gpus(self) -> bool:
        """Whether some of its devices are GPUs."""
        return any(device.is_gpu for device in self.devices)


class _Gpu(msgspec.Struct, frozen=True):
    """A GPU of an allocation, as far as its name does not say it."""

    index: int
    memory_bytes: int | None = None
    slots: int = SLOTS
    driver: str = ""


class _Document(msgspec.Struct, frozen=True):
    devices: tuple[str, ...]
    models: tuple[str, ...]
    matrix: tuple[tuple[int, ...], ...]
    gpus: dict[str, _Gpu] = {}


def gpus_document(devices: Sequence[Device]) -> dict[str, Any]:
    """Return what is to be known of the GPUs among these devices, by name, as JSON has it."""
    return {
        device.name: msgspec.to_builtins(_Gpu(device.index, device.memory_bytes, device.slots, device.driver))
        for device in devices
        if device.index is not None
    }


def read_allocation(file: Path) -> Allocation:
    """Return the allocation that ``partita allocate -o`` wrote.

    Raises `InvalidInput` for anything else, and for one of a described machine, whose devices this one lacks.
    """
    try:
        document = msgspec.convert(json.loads(file.read_bytes()), _Document)
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, msgspec.ValidationError) as error:
        raise InvalidInput(f"{file} is no allocation as `partita allocate -o` writes one: {error}") from error
    rows = document.matrix
    if (
        len(rows) != len(document.devices)
        or any(len(row) != len(document.models) for row in rows)
        or not rows
    ):
        raise InvalidInput(
            f"{file}: the matrix does not have a row for each device and a column for each model"
        )
    try:
        devices = _devices(document)
    except InvalidInput as error:
        raise InvalidInput(f"{file}: {error}") from error
    matrix = AllocationMatrix.of(rows)
    if not matrix.is_valid:
        raise InvalidInput(f"{file}: a model has no worker on any device")
    return Allocation(devices=devices, models=document.models, matrix=matrix)


def _devices(document: _Document) -> tuple[Device, ...]:
    """Return the devices; raises `InvalidInput` for a name that means none."""
    named = [name for name in document.devices if name not in document.gpus]
    cores = {device.name: device for device in parse_devices(",".join(named))} if named else {}
    if len(cores) != len(named):
        raise InvalidInput(f"devices {', '.join(document.devices)}: one is there twice")
    gpus = {
        name: replace(cuda_device(gpu.index, gpu.memory_bytes, name), slots=gpu.slots, driver=gpu.driver)
        for name, gpu in document.gpus.items()
    }
    by_place = iter(cores.values())
    return tuple(gpus[name] if name in gpus else next(by_place) for name in document.devices)


def write_document(file: Path, document: dict[str, Any]) -> None:
    """Write an allocation's document; a crash leaves the old one whole. Raises `InvalidInput`."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        beside = file.with_name(f".{file.name}.{os.getpid()}")
        beside.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
        beside.replace(file)
    except OSError as error:
        raise InvalidInput(f"cannot write {file}: {error.strerror}") from error


def kept_path(ensemble: EnsembleSource, devices: Sequence[Device]) -> Path:
    """Return where the allocation of this ensemble on these devices is kept.

    By the members' content, their runtimes with versions and options, the devices and the batch sizes.
    """
    digest = hashlib.sha256()
    for member in ensemble.members:
        source = member.source
        version = installed_version(source.runtime)
        parts = (member.name, model_hash(source.path), source.runtime, version, source.handler or "")
        digest.update("\0".join(parts).encode() + b"\1")
        if source.settings.options or source.settings.process != ProcessSettings():
            digest.update(handling_hash(launch_of(source)).encode())
    for device in devices:
        gpu = f"{device.slots}\0{device.driver}" if device.is_gpu else ""
        digest.update(f"{device.name}\0{device.memory_bytes}\0{gpu}\1".encode())
    digest.update(repr(ensemble.batch_sizes).encode())
    return cache_dir() / "allocations" / f"{digest.hexdigest()[:32]}.json"


def kept_allocation(ensemble: EnsembleSource, devices: Sequence[Device]) -> Allocation | None:
    """Return the allocation that is kept for this ensemble here, None if there is none."""
    path = kept_path(ensemble, devices)
    return read_allocation(path) if path.is_file() else None


def kept_document(path: Path) -> dict[str, Any] | None:
    """Return the document of an earlier search that is kept here; None if there is none that can be read."""
    try:
        document = json.loads(path.read_bytes())
        msgspec.convert(document, _Document)
    except (OSError, ValueError, msgspec.ValidationError):
        return None
    return dict(document)
