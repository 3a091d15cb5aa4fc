"""What scripts/test keeps from run to run: proofs of the bed, figures, and unstable tests."""

from pathlib import Path
from typing import Any

import pytest

from scripts.run_tests import Run, shared
from scripts.suite import bed, kept
from scripts.suite.report import Row
from scripts.suite.summary import stability
from scripts.suite.tiers import ROOT, TESTS, TIERS

SOURCES = "0123456789abcdef"


def ran(tier: str = "bed", **what: Any) -> Row:
    row = Row(tier, wall_s=12.34, cpu_s=5.6, passed=3, tests_s={f"tests.{tier}.test_a.test_x": 2.0})
    for name, value in what.items():
        setattr(row, name, value)
    return row


def test_a_proof_is_found_for_the_same_sources_only(tmp_path: Path) -> None:
    proofs = kept.Proofs(tmp_path)
    assert proofs.find("bed", SOURCES) is None
    proofs.keep(ran(), SOURCES, "abc123")
    found = proofs.find("bed", SOURCES)
    assert found is not None
    assert (found.sources, found.passed, found.wall_s) == (SOURCES, 3, 12.3)
    assert str(found).startswith("all 3 tests passed in 12 s on 20")
    assert proofs.find("bed", SOURCES[::-1]) is None
    assert proofs.find("cluster", SOURCES) is None


@pytest.mark.parametrize(
    "less", [{"failed": 1}, {"skipped": 1}, {"unstable": ["a"]}, {"passed": 0}], ids=str
)
def test_only_a_run_in_which_every_test_passed_at_once_is_a_proof(
    tmp_path: Path, less: dict[str, Any]
) -> None:
    proofs = kept.Proofs(tmp_path)
    proofs.keep(ran(**less), SOURCES, "abc123")
    assert proofs.find("bed", SOURCES) is None


@pytest.mark.parametrize("text", ["", "[]", '{"sources": "0123456789abcdef"}', '{"new": 1}'])
def test_a_proof_that_cannot_be_read_is_none(tmp_path: Path, text: str) -> None:
    kept.write(tmp_path / "proofs" / f"bed-{SOURCES}.json", text)
    assert kept.Proofs(tmp_path).find("bed", SOURCES) is None


def test_the_beds_sources_are_its_files_and_the_programs_that_were_handed_in(
    tmp_path: Path,
) -> None:
    root, binary = tmp_path / "root", tmp_path / "kueue"
    go_mod = root / "tests" / "controlplane" / "kubernetes" / "go.mod"
    go_mod.parent.mkdir(parents=True)
    go_mod.write_text("v1")
    binary.write_bytes(b"v1")
    real = {"KUEUE_BIN": str(binary)}
    seen = [bed.sources_hash(root, {}), bed.sources_hash(root, real)]
    go_mod.with_name("README.md").write_text("is not loaded")
    assert [bed.sources_hash(root, {}), bed.sources_hash(root, real)] == seen

    binary.write_bytes(b"v2")
    seen.append(bed.sources_hash(root, real))
    go_mod.write_text("v2")
    seen.append(bed.sources_hash(root, {}))
    go_mod.rename(go_mod.with_name("go.work"))
    seen.append(bed.sources_hash(root, {}))
    assert len(set(seen)) == len(seen)


def test_all_that_the_bed_is_made_of_is_there() -> None:
    assert [name for name in bed.SOURCES if not (ROOT / name).exists()] == []


def test_a_proven_bed_is_told_and_counted_as_skipped_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_CACHE", str(tmp_path))
    calls: list[str] = []

    def pretend(name: str, *_: object) -> Row:
        calls.append(name)
        return ran(name)

    monkeypatch.setattr("scripts.run_tests.run_tier", pretend)
    first, second = (Run([], [], everything=False) for _ in range(2))
    assert first._run_tier("bed").verdict == "passed"
    row = second._run_tier("bed")
    assert (row.verdict, row.passed, row.skipped, calls) == ("proven earlier", 0, 3, ["bed"])
    assert row.skips[0].startswith("all 3 tests passed in 12 s on ")

    for asked in (Run([], [], everything=True), Run(["bed"], [], everything=False)):
        assert asked._run_tier("bed").verdict == "passed"
    assert calls == ["bed"] * 3


def test_a_selection_of_the_bed_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_CACHE", str(tmp_path))
    monkeypatch.setattr("scripts.run_tests.run_tier", lambda name, *_: ran(name))
    Run(["bed"], ["-k", "crash"], everything=False)._run_tier("bed")
    assert not (tmp_path / "suite" / "proofs").exists()


def test_a_test_that_passed_only_when_repeated_fails_the_third_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unstable = kept.Unstable(tmp_path)
    row = ran("bus", unstable=["tests.bus.test_a.test_x[a b]"])
    verdicts = []
    for _ in range(kept.MOST_TIMES):
        unstable.add([row])
        told = stability([row], unstable.times(), unstable.path)
        assert told is not None
        verdicts.append((told.verdict, told.failed))
    assert verdicts == [("passed", 0), ("passed", 0), ("FAILED", 1)]
    assert unstable.path.read_text() == "3 bus tests.bus.test_a.test_x[a b]\n"
    shown = capsys.readouterr().out
    assert "test_x[a b] failed and then passed when run once more, 3 times" in shown
    assert f"listed in {unstable.path}" in shown

    # A run without that tier says nothing of it.
    assert stability([ran("unit")], unstable.times(), unstable.path) is None
    unstable.path.write_text("# a note\n")
    assert stability([row], unstable.times(), unstable.path) is None


def test_a_run_in_which_it_passes_at_once_takes_one_off(tmp_path: Path) -> None:
    unstable = kept.Unstable(tmp_path)
    repeated = ran("bus", unstable=["a.test_x"], tests_s={"a.test_x": 2.0, "a.test_y": 1.0})
    at_once = ran("bus", tests_s={"a.test_x": 1.0, "a.test_y": 1.0})
    failed = ran("bus", failures=["a.test_x"], tests_s={"a.test_x": 1.0})
    skipped = ran("bus", skipped_tests={"a.test_x"}, tests_s={"a.test_x": 0.1})
    elsewhere = ran("unit", tests_s={"a.test_x": 1.0})
    told = []
    for row in (repeated, repeated, at_once, elsewhere, failed, skipped):
        unstable.add([row])
        told.append(unstable.times())
    assert told == [{"bus a.test_x": count} for count in (1, 2, 1, 1, 1, 1)]
    unstable.add([at_once])
    assert unstable.times() == {}
    assert unstable.path.read_text() == ""


def test_figures_of_a_tier_stand_until_it_is_run_again(tmp_path: Path) -> None:
    figures = kept.Figures(tmp_path)
    assert figures.file_seconds("bus") == {}
    slow = {"tests.bus.test_a.test_x[1.5-a]": 2.0, "tests.bus.test_a.Of.test_y": 1.0}
    figures.keep([ran("bus", tests_s=slow), ran("unit")], "abc123")
    figures.keep([ran("unit", tests_s={"tests.unit.one.test_b.test_z": 4.0})], "def456")
    assert figures.file_seconds("bus") == {"tests.bus.test_a": 3.0}
    assert figures.file_seconds("unit") == {"tests.unit.one.test_b": 4.0}
    assert kept.read(figures.path)["bus"]["commit"] == "abc123"


def test_the_file_that_took_longest_goes_first_and_a_new_one_before_it() -> None:
    files = sorted((ROOT / "tests" / "bus").rglob("test_*.py"))
    modules = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    known = {module: float(n) for n, module in enumerate(modules) if n != 1}
    argv = shared([TESTS / "bus"], TIERS["bus"], known)
    assert argv[:2] == ["--numprocesses", str(TIERS["bus"].processes)]
    order = [Path(word).name for word in argv if word.endswith(".py")]
    expected = [files[1].name, *(file.name for n, file in enumerate(files) if n != 1)][::-1]
    assert order == [files[1].name, *expected[:-1]]
