"""Triton's perf_analyzer for the tests, out of an old wheel of its client that runs on any glibc.

The wheel itself is not installed, as the tests use a newer client. `python -m tests.perf_analyzer` fetches
the binary and the two libraries that it wants into the environment's ``share``; without it the tests that
need it are skipped.
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory

NAME = "perf_analyzer"
PLACE = Path(sys.prefix) / "share" / NAME
WHEELS = ("tritonclient==2.41.0", "nvidia-cuda-runtime-cu12==12.9.79")
WANTED = (f"/bin/{NAME}", "/lib/libcudart.so.12")
BASE64 = "libb64-0d"
LAUNCHER = '#!/bin/sh\nLD_LIBRARY_PATH="{place}" exec "{place}/bin/{name}" "$@"\n'


def find() -> str | None:
    """Return the command, None where there is none."""
    return str(PLACE / NAME) if (PLACE / NAME).is_file() else shutil.which(NAME)


def main() -> int:
    """Fetch it; returns the exit code."""
    with TemporaryDirectory() as folder:
        try:
            _fetch(Path(folder))
            subprocess.run([PLACE / NAME, "--version"], check=True, capture_output=True, timeout=20)
        except (OSError, subprocess.SubprocessError) as error:
            shutil.rmtree(PLACE, ignore_errors=True)
            print(f"there is no {NAME} to be had, tests with it are skipped: {error}", file=sys.stderr)  # noqa: T201
            return 1
    return 0


def _fetch(folder: Path) -> None:
    argv = [sys.executable, "-m", "pip", "download", "--quiet", "--retries", "1", "--no-deps"]
    argv += ["--only-binary", ":all:", "--dest", str(folder), *WHEELS]
    subprocess.run(argv, timeout=120, check=True)
    (PLACE / "bin").mkdir(parents=True, exist_ok=True)
    for file in folder.glob("*.whl"):
        with zipfile.ZipFile(file) as wheel:
            for name in wheel.namelist():
                if name.endswith(WANTED):
                    place = PLACE / "bin" if name.endswith(NAME) else PLACE
                    (place / Path(name).name).write_bytes(wheel.read(name))
    _fetch_base64(folder)
    (PLACE / "bin" / NAME).chmod(0o755)
    (PLACE / NAME).write_text(LAUNCHER.format(place=PLACE, name=NAME))
    (PLACE / NAME).chmod(0o755)


def _fetch_base64(folder: Path) -> None:
    """Take the library from the distribution's package, without installing it."""
    subprocess.run(["apt-get", "download", BASE64], cwd=folder, timeout=60, check=True, capture_output=True)
    (package,) = folder.glob(f"{BASE64}_*.deb")
    subprocess.run(["dpkg-deb", "-x", package, folder / "package"], timeout=20, check=True)
    for library in (folder / "package").rglob("libb64.so.*"):
        shutil.copyfile(library, PLACE / library.name)


if __name__ == "__main__":
    raise SystemExit(main())
