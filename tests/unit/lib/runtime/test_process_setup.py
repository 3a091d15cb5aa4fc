"""How many files a process may have open."""

import subprocess
import sys

import pytest

from tests.support.patience import hang_s

SCRIPT = """
import resource
from berthmaster.lib.runtime.process_setup import raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (64, {hard}))
print(raise_open_files(), *resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("hard", [64, 300])
def test_the_soft_limit_is_raised_to_the_hard_one(hard: int) -> None:
    script = SCRIPT.format(hard=hard)
    told = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=hang_s(), check=True
    )
    assert told.stdout.split() == [str(hard)] * 3
