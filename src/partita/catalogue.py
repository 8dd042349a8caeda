"""The models that a server was pointed at: those that it starts with, and any of them again later."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from partita.archives.containers import SUFFIXES, is_archive, manifest_of
from partita.archives.source import archive_source
from partita.core.errors import ModelNotFound, PartitaError
from partita.settings import ModelSettings, Settings, load_model_settings
from partita.sources import ModelSource, find_all, find_models


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """Paths, and what is set for the models there. Looks at the disk each time that it is asked."""

    paths: tuple[Path, ...]
    settings: Settings = field(default_factory=Settings)
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Keys of ``[model.NAME]`` that the command line sets for every model."""

    def find(self, name: str, settings: Mapping[str, Any] | None = None) -> ModelSource:
        """Return the model of this name as it lies on disk now, with further settings.

        Raises `ModelNotFound` where there is none, `InvalidInput` for one that cannot be served.
        """
        for place in self._places(name):
            return self.at(place, name, settings)
        raise ModelNotFound(f"no model {name!r} lies where this server was told to look")

    def at(self, place: Path, name: str, settings: Mapping[str, Any] | None = None) -> ModelSource:
        """Return the model at a path under this name. Raises `InvalidInput`."""
        known = self.settings.model.get(name)
        if known is None:
            own = place / "partita.toml"
            known = load_model_settings(own, name) if own.is_file() else ModelSettings()
        model = msgspec.structs.replace(known, **{**self.changes, **_whole(settings or {})})
        if is_archive(place):
            plain = msgspec.structs.replace(model, path=None)
            return archive_source(place, plain, name, self.settings.archive_defaults)
        alone = Settings(server=self.settings.server, model={name: model})
        (source,) = find_all(() if model.path is not None else (place,), alone)
        return source

    @property
    def _roots(self) -> tuple[Path, ...]:
        store = self.settings.server.model_store
        return self.paths if store is None else (*self.paths, Path(store))

    def _places(self, name: str) -> Iterator[Path]:
        """Yield where the model of this name lies."""
        known = self.settings.model.get(name)
        if known is not None and known.path is not None:
            yield Path(known.path)
        if Path(name).name != name or name in (".", ".."):
            return
        for path in self._roots:
            for place in (path, *(path / f"{name}{suffix}" for suffix in ("", ".onnx", ".toml", *SUFFIXES))):
                if _is_there(place) and self._holds(place, name):
                    yield place
        for path in self._roots:
            yield from (place for place in sorted(path.glob("*")) if _is_archive_of(place, name))

    def _holds(self, place: Path, name: str) -> bool:
        """Whether a file or folder that is named for a model of this name is one."""
        is_it = _stem(place) == name or (place.name == name and is_archive(place))
        return is_it or self._is_ensemble(place, name)

    def _is_ensemble(self, place: Path, name: str) -> bool:
        """Whether a file is that of an ensemble of this name."""
        if place.suffix != ".toml" or not place.is_file():
            return False
        with suppress(PartitaError, OSError):
            return [source.name for source in find_models(place)] == [name]
        return False

    def names(self) -> dict[str, tuple[str, ...]]:
        """Return the versions that would be served of every model, by name; broken ones are left out."""
        named = {name for name, model in self.settings.model.items() if model.path is not None}
        for path in self._roots:
            for place in (path, *(path.iterdir() if path.is_dir() else ())):
                named.add(_stem(place))
                if place.suffix == ".toml":
                    with suppress(PartitaError, OSError):
                        named.update(source.name for source in find_models(place))
        found: dict[str, tuple[str, ...]] = {}
        for name in sorted(named):
            with suppress(PartitaError, OSError):
                found[name] = tuple(source.version for source in self.find(name).served_versions)
        return found


def _whole(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return settings in which a version takes the place of a policy that is known, and the other way."""
    if settings.get("version") is not None:
        return {"versions": None, **settings}
    return {"version": None, **settings} if settings.get("versions") is not None else settings


def _is_there(place: Path) -> bool:
    with suppress(OSError):  # of a name that no file can have
        return place.exists()
    return False


def _stem(place: Path) -> str:
    """Return the name of a model that lies in a file or folder."""
    if not place.is_file():
        return place.name
    return next((place.name.removesuffix(end) for end in SUFFIXES if place.name.endswith(end)), place.stem)


def _is_archive_of(place: Path, name: str) -> bool:
    """Whether an archive says that its model has this name, however its file is named."""
    with suppress(PartitaError, OSError):
        return is_archive(place) and manifest_of(place).model.model_name == name
    return False
