"""From a path that a user gives to the models that it holds: files, model folders, Triton-style repositories.

No code of a user is run here: a handler's class is found by reading its file.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from partita.archives import containers
from partita.archives.source import archive_source
from partita.core.errors import InvalidInput, MissingExtra
from partita.core.formats import FACTORY, PACKAGES, SUFFIXES, needs_factory, runtimes_for
from partita.core.plan import Lowered
from partita.core.versions import LatestVersions, Versions
from partita.handler_files import find_handler, handler_reference
from partita.model_config import read_config
from partita.settings import ModelSettings, Settings, load_model_settings
from partita.wire.archive_call import RUNTIME as ARCHIVE

if TYPE_CHECKING:
    from partita.allocation_file import Allocation
    from partita.ensemble_file import EnsembleSource

MODEL_FILE = "model.onnx"
_FILES = tuple(suffix for suffix in SUFFIXES if suffix != ".py")
MODEL_FILES = tuple(f"model{suffix}" for suffix in _FILES)
"""What the file in a version folder is called, in the order in which they are looked for."""
_ALONE = (".onnx", ".pt2")
"""Files that are models wherever they lie; others are only where they are named, or in a version folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """One model as it lies on disk, with its settings; nothing of it has been loaded."""

    name: str
    version: str = "1"
    path: Path
    """The model's file, absolute; for runtime `python` the file of its class."""
    runtime: str
    """What executes it, one of those that the format allows; ``torchserve`` (an archive) or ``ensemble``."""
    handler: str | None = None
    """``FILE.py:Class``, absolute."""
    settings: ModelSettings = field(default_factory=ModelSettings)
    max_batch_size: int | None = None
    """What a ``config.pbtxt`` says; 0 there means a model without a batch axis."""
    others: tuple["ModelSource", ...] = ()
    """Its other versions that are served at the same time, the highest first."""
    ensemble: "EnsembleSource | None" = None
    """What an ``ensemble.toml`` says (runtime ``ensemble``)."""
    lowered: Lowered | None = None
    """What the lower precision costs that it is executed in; None = it is in its own."""
    allocation: "Allocation | None" = None
    """How an ensemble is to be allocated, as given; None = as it was allocated before, or safely."""

    @property
    def is_archive(self) -> bool:
        """Whether this is a TorchServe archive."""
        return self.runtime == ARCHIVE

    @property
    def samples(self) -> Path | None:
        """Items to profile it with, as set; None = none are."""
        return None if self.settings.samples is None else Path(self.settings.samples)

    @property
    def served_versions(self) -> "tuple[ModelSource, ...]":
        """This and the other versions that are served at the same time."""
        return (replace(self, others=()), *self.others)

    def renamed(self, name: str) -> "ModelSource":
        """Return it under another name, its other versions too."""
        return replace(self, name=name, others=tuple(other.renamed(name) for other in self.others))

    @property
    def load_path(self) -> str:
        """What a worker loads: the file, or ``FILE.py:Class`` where a class is the model itself."""
        return self.handler or str(self.path) if self.runtime == "python" else str(self.path)

    @property
    def load_handler(self) -> str | None:
        """The handler around the network; None where there is none, or it is the model itself."""
        return None if self.runtime == "python" else self.handler

    @property
    def max_batch(self) -> int:
        """Most items in one execution: as set, else as ``config.pbtxt`` says, else the default."""
        default = ModelSettings().max_batch
        if self.settings.max_batch != default or not self.max_batch_size:
            return self.settings.max_batch
        return self.max_batch_size


def find_models(path: Path, settings: Settings | None = None) -> tuple[ModelSource, ...]:
    """Return the models that a file or folder holds, by name; `settings` are those of ``--config``.

    Raises `InvalidInput` for what is not there or is no model, `MissingExtra` for what needs an extra.
    """
    known = settings.model if settings else {}
    absolute = path.expanduser().absolute()
    if not absolute.exists():
        raise InvalidInput(_not_there(path))
    if containers.is_archive(absolute):
        return (_archive(absolute, settings or Settings()),)
    if absolute.is_file():
        return (_from_file(absolute, known),)
    if _is_model_folder(absolute):
        return (_from_folder(absolute, known),)
    loose = sorted(file for file in absolute.iterdir() if file.suffix in _ALONE and file.is_file())
    archives = sorted(child for child in absolute.iterdir() if containers.is_archive(child))
    folders = sorted(child for child in absolute.iterdir() if child.is_dir() and _is_model_folder(child))
    found = (
        *(_archive(archive, settings or Settings()) for archive in archives),
        *(_from_file(file, known) for file in loose),
        *(_from_folder(folder, known) for folder in folders),
    )
    if not found:
        raise InvalidInput(
            f"{path} holds no model: expected {absolute.name}/1/{MODEL_FILE}, a handler.py, "
            ".onnx or .mar files, or folders of these kinds"
        )
    return found


def find_all(paths: tuple[Path, ...], settings: Settings) -> tuple[ModelSource, ...]:
    """Return the models of all paths, and those that ``[model.NAME] path`` names; each name once.

    Raises `InvalidInput` if two have one name, or if the settings name a model that is nowhere.
    """
    sources = [source for path in paths for source in find_models(path, settings)]
    given = {source.name for source in sources}
    for name, model in settings.model.items():
        if model.path is not None and name not in given:
            found = find_models(Path(model.path), Settings())
            sources.append(_named(found, name, model, settings.archive_defaults))
    by_name: dict[str, ModelSource] = {}
    for source in sources:
        if (other := by_name.setdefault(source.name, source)) is not source:
            raise InvalidInput(f"two models are named {source.name}: {other.path} and {source.path}")
    members = {m.source.path.stem for s in sources if s.ensemble is not None for m in s.ensemble.members}
    if missing := set(settings.model) - set(by_name) - members:
        raise InvalidInput(
            f"[model.{min(missing)}] names no model given; there are {', '.join(sorted(by_name)) or 'none'}; "
            "give its path, there or on the command line"
        )
    return tuple(by_name.values())


def _named(
    found: tuple[ModelSource, ...],
    name: str,
    model: ModelSettings,
    archive_defaults: Mapping[str, Mapping[str, Any]],
) -> ModelSource:
    if len(found) != 1:
        raise InvalidInput(f"[model.{name}] path: {model.path} holds {len(found)} models; name one of them")
    own = msgspec.structs.replace(model, path=None)
    if found[0].is_archive:
        return archive_source(found[0].path, own, name, archive_defaults)
    assert model.path is not None
    (source,) = find_models(Path(model.path), Settings(model={found[0].name: own}))
    return source.renamed(name)


def _archive(path: Path, settings: Settings) -> ModelSource:
    name = containers.manifest_of(path).model.model_name
    return archive_source(path, settings.model.get(name, ModelSettings()), defaults=settings.archive_defaults)


def _from_file(path: Path, known: Mapping[str, ModelSettings]) -> ModelSource:
    name = path.stem
    settings = known.get(name, ModelSettings())
    if path.suffix == ".toml":
        return _ensemble(path, known)
    if path.suffix not in SUFFIXES:
        raise InvalidInput(
            f"{path} is no model: expected an .onnx or .mar file, {', '.join(SUFFIXES[1:])}, or a folder"
        )
    return _with_settings(settings, name=name, path=path)


def _ensemble(path: Path, known: Mapping[str, ModelSettings]) -> ModelSource:
    from partita.ensemble_file import read_ensemble  # which finds its members with what is here

    ensemble = read_ensemble(path, Settings(model=dict(known)))
    settings = known.get(ensemble.name, ModelSettings())
    return ModelSource(
        name=ensemble.name, path=path, runtime="ensemble", settings=settings, ensemble=ensemble
    )


def _from_folder(folder: Path, known: Mapping[str, ModelSettings]) -> ModelSource:
    """Read ``name/1/model.onnx`` with its optional ``partita.toml``, ``handler.py`` and ``config.pbtxt``."""
    name = folder.name
    own = folder / "partita.toml"
    settings = known.get(name) or (load_model_settings(own, name) if own.is_file() else ModelSettings())
    config = read_config(folder / "config.pbtxt")
    first, *others = (
        _with_settings(
            settings,
            name=name,
            path=_model_file(folder, place),
            version=version,
            max_batch_size=config.max_batch_size,
            folder=folder,
        )
        for version, place in _served(folder, settings, config.versions)
    )
    return replace(first, others=tuple(others))


def _with_settings(
    settings: ModelSettings,
    *,
    name: str,
    path: Path,
    version: str = "1",
    max_batch_size: int | None = None,
    folder: Path | None = None,
) -> ModelSource:
    """Return the source with its runtime and handler decided: as set, else by what lies there."""
    home = folder or path.parent
    runtime = _runtime(path, settings)
    handler: str | None = None
    if settings.handler is not None:
        handler = handler_reference(home, settings.handler)
    elif path.suffix == ".py":
        handler = find_handler(path)
    elif folder is not None and (folder / "handler.py").is_file():
        handler = find_handler(folder / "handler.py")
    return ModelSource(
        name=name,
        version=version,
        path=path,
        runtime=runtime,
        handler=handler,
        settings=settings,
        max_batch_size=max_batch_size,
    )


def _runtime(path: Path, settings: ModelSettings) -> str:
    """Return the runtime as set, else the format's own. Raises `MissingExtra` if its package is not there.

    Whether a runtime that was set can execute the file is said by the runtime itself.
    """
    runtime = settings.runtime
    if runtime == "auto":
        built = bool(settings.options.get(FACTORY)) or needs_factory(path)
        runtime = runtimes_for(path, factory=built)[0]
    package = PACKAGES.get(runtime)
    if package is not None and find_spec(package.module) is None:
        raise MissingExtra(
            f"{path}: runtime {runtime} needs the package {package.distribution}; "
            f"install it with pip install 'partita[{package.extra}]'"
        )
    return runtime


def _is_model_folder(folder: Path) -> bool:
    has_code = (folder / "handler.py").is_file()
    return has_code or bool(_versions(folder)) or any((folder / name).is_file() for name in MODEL_FILES)


def _versions(folder: Path) -> dict[int, Path]:
    """Return the version folders by number; ``1`` and ``01`` are one version, as for Triton."""
    return {int(c.name): c for c in sorted(folder.iterdir()) if c.is_dir() and _is_number(c.name)}


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and int(text) > 0


def _served(folder: Path, settings: ModelSettings, policy: Versions | None) -> list[tuple[str, Path]]:
    """Return the versions that are to be served with their folders, the highest first.

    Raises `InvalidInput` for one that is not there.
    """
    there = _versions(folder)
    if not there:
        return [(str(settings.version or 1), folder)]
    return [(str(number), there[number]) for number in _wanted(folder, list(there), settings, policy)]


def _wanted(folder: Path, there: list[int], settings: ModelSettings, policy: Versions | None) -> list[int]:
    """Return which of the versions that are there are to be served, the highest first."""
    highest_first = sorted(there, reverse=True)
    if settings.version is not None:
        named = [settings.version]
    else:
        match settings.versions or policy or LatestVersions():
            case "all":
                return highest_first
            case LatestVersions(latest=count):
                return highest_first[:count]
            case tuple(named_versions):
                named = list(named_versions)
    for version in named:
        if not _is_number(str(version)) or int(version) not in there:
            known = ", ".join(str(v) for v in sorted(there))
            raise InvalidInput(f"{folder}: there is no version {version}; there are {known}")
    return sorted({int(version) for version in named}, reverse=True)


def _model_file(folder: Path, place: Path) -> Path:
    """Return ``model.onnx`` or its like of another format, or the only model file there, or else the handler
    that is the model itself.
    """
    for name in MODEL_FILES:
        if (place / name).exists():
            return place / name
    for suffix in _FILES:
        files = sorted(place.glob(f"*{suffix}"))
        if len(files) == 1:
            return files[0]
        if files:
            raise InvalidInput(f"{place} holds {len(files)} {suffix} files and none is named model{suffix}")
    for code in (place / "handler.py", folder / "handler.py"):
        if code.is_file():
            return code
    raise InvalidInput(f"{place} holds no {MODEL_FILE}, and {folder.name} has no handler.py")


def _not_there(path: Path) -> str:
    """Say that a path does not exist, with what is nearly named so beside it."""
    parent = path.expanduser().absolute().parent
    while not parent.is_dir():
        path, parent = parent, parent.parent
    near = get_close_matches(path.name, [child.name for child in parent.iterdir()], n=3, cutoff=0.6)
    hint = f"; near it there is {', '.join(str(path.parent / name) for name in near)}" if near else ""
    return f"{path} does not exist{hint}"
