"""The kept runs against versions, and their table."""

from pathlib import Path

import pytest

from berthmaster.lab.controlplane.projects import KUEUE
from scripts import versions
from scripts.outcomes import Outcomes

FOUND = Outcomes(
    passed={"tests/cluster/test_b.py": 3, "tests/cluster/test_a.py": 2},
    failed=("tests/cluster/test_c.py::test_x: boom",),
    skipped=(),
    rerun=("tests/cluster/test_a.py::test_y: late",),
)


def test_run_replaces_the_earlier_one_of_its_versions_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "versions.json"
    monkeypatch.setattr(versions, "commit", lambda: "abc")
    monkeypatch.delenv("BERTH_KUBERNETES", raising=False)
    versions.record(FOUND, "0.19.2", kept)
    monkeypatch.setenv("BERTH_KUBERNETES", "1.35.4")
    versions.record(FOUND, "0.18.6", kept)
    versions.record(Outcomes(passed=FOUND.passed, failed=(), skipped=(), rerun=()), "0.18.6", kept)
    monkeypatch.setattr(versions, "commit", lambda: "def")
    versions.record(FOUND, "0.18.6", kept)
    rows = [line.split(" | ") for line in versions.table(versions.runs(kept))[2:]]
    assert [[row[0], *row[1:6], row[7]] for row in rows] == [
        ["| 1.36.3", "0.19.2", "`a`, `b`, `c`", "5 (1 at the second try)", "1", "0", "abc |"],
        ["| 1.35.4", "0.18.6", "`a`, `b`, `c`", "5 (1 at the second try)", "1", "0", "def |"],
        ["| 1.35.4", "0.18.6", "`a`, `b`", "5", "0", "0", "abc |"],
    ]


def test_kueue_without_a_module_must_be_handed_in(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KUEUE_BIN", "KUEUE_CRDS"):
        monkeypatch.delenv(name, raising=False)
    assert versions.check_kueue(KUEUE.version) == ""
    assert versions.check_kueue("0.1.0").endswith("KUEUE_BIN and KUEUE_CRDS hand in 0.1.0")
    for name in ("KUEUE_BIN", "KUEUE_CRDS"):
        monkeypatch.setenv(name, "/tmp")
    assert versions.check_kueue("0.1.0") == ""
