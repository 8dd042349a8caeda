"""How many files may be open: raised as far as the hard limit lets it, in a process of its own."""

import subprocess
import sys

import pytest

CODE = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
from partita.system.descriptors import allow_descriptors
print(allow_descriptors({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "allowed"),
    [(64, 512, 256, 256), (64, 512, 1024, 512), (256, 512, 100, 256)],
    ids=["raised", "up to the hard limit", "never lowered"],
)
def test_the_soft_limit(soft: int, hard: int, wanted: int, allowed: int) -> None:
    code = CODE.format(soft=soft, hard=hard, wanted=wanted)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(allowed)] * 2, done.stderr
