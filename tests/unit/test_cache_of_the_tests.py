"""No test may write to the cache folder of whoever runs the tests."""

import subprocess
import sys
from pathlib import Path

import pytest

from partita.system.artefacts import cache_dir

SAY = "from partita.system.artefacts import cache_dir; print(cache_dir())"


def test_profiles_of_tests_are_kept_in_a_folder_of_theirs(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    assert base in cache_dir().parents
    child = subprocess.run([sys.executable, "-c", SAY], capture_output=True, text=True, check=True)
    assert Path(child.stdout.strip()) == cache_dir()
