"""The direction of imports (DESIGN, section 6), read from the source without running it."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "src" / "partita"
BASE = {"core", "planning", "machines", "wire", "system"}

MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "planning": {"core"},
    "machines": {"core"},
    "wire": {"core"},
    "system": {"core"},
    "worker": BASE,
    "engine": BASE,
    "profiling": BASE | {"engine"},
    "protocols": BASE | {"engine"},
    "simulator": BASE - {"system", "wire"},
}
"""What each package may import besides itself; what is not named here is at the top."""

PURE = ("core", "planning", "machines", "wire", "simulator")
IMPURE = {
    *("asyncio", "concurrent", "httptools", "logging", "mmap", "multiprocessing", "os", "random", "select"),
    *("selectors", "signal", "socket", "subprocess", "tempfile", "threading", "time", "uvloop"),
}
NUMERIC_RUNTIMES = {"onnxruntime", "openvino", "torch", "onnx", "tensorflow", "sklearn"}
UNSAFE = {"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"}
READS_ENVIRONMENT = ("settings.py", "system/", "worker/")
"""The settings read it; the other two hand it to a child, or set it there before a numeric import."""

MODULES = sorted(SOURCE.rglob("*.py"))
LONGEST_MODULE = 400


def _name(path: Path) -> str:
    return path.relative_to(SOURCE).as_posix()


def _layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@cache
def _imports(path: Path) -> tuple[tuple[str, int], ...]:
    """Return every module imported anywhere in a file, deferred imports too, with its line; parsed once."""
    return tuple(_imported(path))


def _imported(path: Path) -> Iterator[tuple[str, int]]:
    package = ("partita", *path.relative_to(SOURCE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*start, *([node.module] if node.module else [])])
            yield from ((f"{origin}.{alias.name}", node.lineno) for alias in node.names)


def _ours(path: Path) -> Iterator[tuple[str, int]]:
    """Yield the layers of Partita that a file imports, with the line."""
    for name, line in _imports(path):
        parts = name.split(".")
        if parts[0] == "partita":
            yield (parts[1] if len(parts) > 1 else "partita"), line


def _faults(path: Path, forbidden: set[str]) -> list[str]:
    return [
        f"{_name(path)}:{line} imports {name}"
        for name, line in _imports(path)
        if name.split(".")[0] in forbidden
    ]


def test_the_source_is_found() -> None:
    assert {"core", "wire", "system"} <= {_layer(path) for path in MODULES}


@pytest.mark.parametrize("layer", sorted(MAY_IMPORT))
def test_imports_point_downwards(layer: str) -> None:
    allowed = MAY_IMPORT[layer] | {layer}
    faults = [
        f"{_name(path)}:{line} imports partita.{imported}"
        for path in MODULES
        if _layer(path) == layer
        for imported, line in _ours(path)
        if imported not in allowed
    ]
    assert not faults, f"{layer} may import {sorted(allowed)}"


def test_nothing_below_imports_the_package_root() -> None:
    """The root re-exports the public face, so importing from it would drag in every layer."""
    faults = [
        f"{_name(path)}:{line}"
        for path in MODULES
        for name, line in _imports(path)
        if name == "partita" and _layer(path) in MAY_IMPORT
    ]
    assert not faults


@pytest.mark.parametrize("layer", PURE)
def test_pure_layers_touch_no_system(layer: str) -> None:
    faults = [fault for path in MODULES if _layer(path) == layer for fault in _faults(path, IMPURE)]
    assert not faults


def test_only_workers_import_numeric_runtimes() -> None:
    faults = [
        fault for path in MODULES if _layer(path) != "worker" for fault in _faults(path, NUMERIC_RUNTIMES)
    ]
    assert not faults


def test_nothing_imports_a_deserialiser_that_runs_code() -> None:
    faults = [fault for path in MODULES for fault in _faults(path, UNSAFE)]
    assert not faults


def test_only_settings_read_the_environment() -> None:
    faults = [
        f"{_name(path)}:{node.lineno} uses os.{node.attr}"
        for path in MODULES
        if not _name(path).startswith(READS_ENVIRONMENT)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr in {"environ", "environb", "getenv"}
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
    ]
    assert not faults


def test_modules_stay_small() -> None:
    lengths = {_name(path): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert not {name: lines for name, lines in lengths.items() if lines > LONGEST_MODULE}


# --- the checker itself can fail ------------------------------------------------------------------


def test_the_walk_sees_relative_and_deferred_imports(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "engine" / "inner" / "module.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import os.path\n"
        "from ..worker import loop\n"
        "from ...worker import entry\n"
        "from partita import wire\n"
        "def f():\n    from partita.worker.entry import main\n"
    )
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    assert [name for name, _ in _imports(file)] == [
        "os.path",
        "partita.engine.worker.loop",
        "partita.worker.entry",
        "partita.wire",
        "partita.worker.entry.main",
    ]
    assert [name for name, _ in _ours(file)] == ["engine", "worker", "wire", "worker"]
    assert _faults(file, IMPURE) == ["engine/inner/module.py:1 imports os.path"]
