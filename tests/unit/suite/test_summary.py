"""What scripts/test says at its end, from what pytest has reported."""

import subprocess
import sys
from pathlib import Path

from scripts.suite.report import Row, read_report
from scripts.suite.steps import Step, call
from scripts.suite.summary import summarize
from tests.support.patience import wait_until

REPORT = """<testsuites><testsuite>
<testcase classname="tests.bus.test_a" name="test_good" time="0.5"/>
<testcase classname="tests.bus.test_a" name="test_bad" time="1.5"><failure>no</failure></testcase>
<testcase classname="tests.bus.test_a" name="test_bad" time="0.5"><error>nor that</error></testcase>
<testcase classname="" name="tests.bus.test_b" time="0">
<skipped message="collection skipped">('b.py', 3, 'Skipped: no engine')</skipped></testcase>
<testcase classname="tests.bus.test_c" name="test_c" time="2"><skipped message="why"/></testcase>
</testsuite></testsuites>"""


def report(tmp_path: Path, text: str) -> Row:
    path = tmp_path / "report.xml"
    path.write_text(text)
    return read_report("bus", path)


def test_a_report_is_counted_with_every_reason_and_the_seconds(tmp_path: Path) -> None:
    assert report(tmp_path, REPORT) == Row(
        "bus",
        passed=1,
        failed=2,
        skipped=2,
        skips=["tests.bus.test_b: no engine", "tests.bus.test_c.test_c: why"],
        failures=["tests.bus.test_a.test_bad"],
        causes={"tests.bus.test_a.test_bad": ["no"]},
        skipped_tests={"tests.bus.test_b", "tests.bus.test_c.test_c"},
        tests_s={
            "tests.bus.test_a.test_good": 0.5,
            "tests.bus.test_a.test_bad": 2.0,
            "tests.bus.test_b": 0.0,
            "tests.bus.test_c.test_c": 2.0,
        },
    )
    assert report(tmp_path, REPORT).passed_at_once == {"tests.bus.test_a.test_good"}
    assert read_report("bus", tmp_path / "none.xml") == Row("bus")


def test_a_test_that_passes_when_repeated_is_unstable_and_one_that_does_not_stays_failed() -> None:
    row = Row("bus", passed=8, failed=2, failures=["a", "b"])
    row.add_repeated(Row("bus", passed=1, failed=1, failures=["b"]))
    assert row == Row("bus", passed=9, failed=1, failures=["b"], unstable=["a"])


def test_why_a_test_failed_stands_beside_the_total_also_when_it_passed_later(
    tmp_path: Path,
) -> None:
    text = ">       assert 1 == 2\nE       assert 1 == 2\n\na.py:3: AssertionError"
    failed = f"<failure>{text}</failure>".join(('<testcase classname="a" name="b">', "</testcase>"))
    row = report(tmp_path, f"<testsuites>{failed}</testsuites>")
    assert summarize([row])[-4:-1] == [
        "FAILED in bus: a.b",
        "    E       assert 1 == 2",
        "    a.py:3: AssertionError",
    ]
    row.add_repeated(Row("bus", passed=1))
    assert "failed, then passed when run once more in bus: a.b" in summarize([row])


def test_the_summary_shows_slow_tests_and_every_skip_and_ends_with_the_total() -> None:
    rows = [
        Row("mypy", passed=1, wall_s=20.0, cpu_s=19.5),
        Row("bus", passed=16, skipped=1, skips=["x: no engine"], wall_s=61.0, cpu_s=30.25),
    ]
    rows[1].tests_s = {f"test_{n}": float(n) for n in range(17)}
    lines = summarize(rows)
    assert lines[2].split() == ["bus", "passed", "16", "0", "1", "61.0", "30.2"]
    slow = [line.split()[1] for line in lines if line.strip().endswith(tuple(rows[1].tests_s))]
    assert slow == [f"test_{n}" for n in range(16, 1, -1)]
    assert lines[-2:] == ["skipped in bus: x: no engine", "17 passed, 0 failed, 1 skipped"]


def test_a_step_tells_its_cpu_time_and_that_of_its_children() -> None:
    burn = "import time\nwhile time.process_time() < 0.2: pass"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"
    took = call([sys.executable, "-c", child], 30)
    assert took.code == 0
    assert took.cpu_s >= 0.2
    assert (took + took).cpu_s == 2 * took.cpu_s


def test_a_step_is_ended_at_its_limit_with_its_children(tmp_path: Path) -> None:
    mark = tmp_path / "pid"
    step = Step(["sh", "-c", f"sleep 600 & echo $! >{mark}; wait"])
    wait_until(lambda: mark.exists() and mark.read_text().strip(), "its child runs")
    assert step.wait(0).code == -1
    child = ["ps", "-o", "stat=", "-p", mark.read_text().strip()]
    assert subprocess.run(child, capture_output=True, check=False).stdout.strip()[:1] in (b"", b"Z")


def test_a_step_in_the_background_writes_its_log_and_stands_back(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert Step(["sh", "-c", "nice; exit 3"], log).wait(30).code == 3
    assert int(log.read_text()) >= 15
