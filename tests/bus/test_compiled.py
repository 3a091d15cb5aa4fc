"""Services run what the tests run: compiled modules, where those are given to this tier."""

import os
from pathlib import Path

from berthmaster.engine.scoring.compiled import MODULES
from tests.support import warm
from tests.support.patience import hang_s


def test_a_service_s_process_has_the_modules_that_the_tests_have(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("ab") as output:
        child = warm.start("tests.unit.support.program", ["modules"], output=output, env={})
    assert child.wait(hang_s()) == 0
    given = "compiled" if "berth-compiled-" in os.environ.get("PYTHONPATH", "") else "interpreted"
    assert (log.read_text().strip(), MODULES) == (given, given)
