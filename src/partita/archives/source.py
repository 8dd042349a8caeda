"""From an archive on disk to a source of a model, and from that to what a worker can load."""

import logging
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from partita.archives import folders
from partita.archives.containers import SUFFIXES, manifest_of
from partita.archives.model_config import read_config, under, warn_of_config
from partita.core.errors import InvalidInput
from partita.settings import ModelSettings, Requirements, cache_dir
from partita.wire.archive_call import RUNTIME

if TYPE_CHECKING:
    from partita.sources import ModelSource

log = logging.getLogger("partita")

SAMPLES = ".samples"
"""Ending of a file or folder beside an archive that holds bodies of requests to profile it with."""
PACKAGES = "partita-packages"
"""Folder, beside an archive's files, of the packages that it asked for."""
INSTALL_LIMIT_S = 600.0


def archive_source(
    path: Path,
    settings: ModelSettings,
    name: str | None = None,
    defaults: Mapping[str, Mapping[str, Any]] | None = None,
) -> "ModelSource":
    """Return the model of an archive, under its own name or another. Raises `InvalidInput`.

    `defaults` are keys of ``[model.NAME]``, by name or ``*`` for all, below what the archive says.
    """
    from partita.sources import ModelSource  # which asks for archives here

    manifest = manifest_of(path)
    settings = under(settings, read_config(path, manifest), str(path))
    for key in (name or manifest.model.model_name, "*"):
        settings = under(settings, dict((defaults or {}).get(key, {})), str(path))
    if (beside := path.with_name(f"{_stem(path)}{SAMPLES}")).exists():
        settings = under(settings, {"samples": str(beside)}, str(path))
    return ModelSource(
        name=name or manifest.model.model_name,
        version=manifest.version,
        path=path,
        runtime=RUNTIME,
        settings=settings,
    )


def unpacked(source: "ModelSource", requirements: Requirements) -> "ModelSource":
    """Return the source with its archive unpacked, which takes as long as the disk does.

    `folders.release` the path when no worker needs it any more. Raises `InvalidInput`.
    """
    manifest = manifest_of(source.path)
    warn_of_config(source.path, manifest)
    wanted = manifest.model.requirements_file
    if wanted and requirements == "refuse":
        raise InvalidInput(
            f"{source.path} wants packages installed ({wanted}), which is not allowed; install them yourself "
            'and set [server] requirements = "ignore", or "install" to let archives install what they like'
        )
    if wanted and requirements == "install" and source.path.is_dir():
        raise InvalidInput(f"{source.path} is a folder: packages are installed for packed archives only")
    if source.path.is_dir():
        _check_links(source.path)
        return source
    installs = bool(wanted) and requirements == "install"
    here = folders.folders_below(cache_dir())
    folder = here.acquire(
        source.path,
        variant="-installed" if installs else "",
        finish=(lambda folder: _install(folder, str(wanted))) if installs else None,
    )
    options = {"archive": source.path.name, **source.settings.options}
    from msgspec.structs import replace as changed

    return replace(source, path=folder, settings=changed(source.settings, options=options))


def _stem(path: Path) -> str:
    return next((path.name.removesuffix(end) for end in SUFFIXES if path.name.endswith(end)), path.name)


def _check_links(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_symlink():
            raise InvalidInput(
                f"{folder}: {path.relative_to(folder)} is a link; archives hold files and folders"
            )


def _install(folder: Path, requirements: str) -> None:
    """Install what an archive asks for beside its files. Raises `InvalidInput` with pip's last words."""
    if not (folder / requirements).is_file():
        raise InvalidInput(f"the archive names {requirements}, and does not hold it")
    log.info("installing the packages of %s", requirements)
    argv = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    try:
        done = subprocess.run(
            [*argv, "--target", str(folder / PACKAGES), "--requirement", requirements],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidInput(f"{requirements}: pip was not done within {INSTALL_LIMIT_S:g} s") from None
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise InvalidInput(f"{requirements}: pip failed: {said[-1] if said else done.returncode}")
