"""What `berth top --queues` shows; unknown is not zero."""

from berthmaster.cli.top.screen import quality
from berthmaster.lib.messages.quality import QualityReport, QueueQuality
from tests.unit.cli.screens import screen


def test_a_report_shows_the_whole_and_its_queues() -> None:
    told = QualityReport(
        cell="all",
        decider="resolver/h/1",
        observed_at_s=1_700_000_000.0,
        waiting=12,
        live=30,
        allocation_percent=93.456,
        fragmentation_percent=4.0,
        fairness=0.875,
        placements_per_s=120.5,
        decide_ms=0.2345,
        queues=(
            QueueQuality(
                queue="vision",
                waiting=12,
                live=29,
                used_gpu_milli=57_500,
                placed=41,
                mean_wait_s=3.25,
                succeeded=12,
                mean_completion_s=7300.0,
                evicted=1,
            ),
            QueueQuality(queue="new", live=1),
        ),
    )
    assert screen(quality(told)) == (
        "resolver/h/1 at 22:13:20 UTC\n"
        "30 placed, 12 wait; GPUs 93.5% taken, 4.0% of the rest fragmented; fairness\n"
        "0.88; 120.5 placements/s, 0.23 ms each\n"
        "QUEUE   PLACED  WAIT  GPUS  MEAN WAIT  DONE  MEAN TIME  EVICTED\n"
        "vision      29    12  57.5     3.25 s    12      2h01m        1\n"
        "new          1     0     0          -     0          -        0"
    )


def test_what_is_not_known_is_not_shown_as_zero() -> None:
    told = QualityReport(cell="all", decider="r", observed_at_s=0.0)
    assert "GPUs ?% taken, ?% of the rest" in screen(quality(told))


def test_at_80_columns_long_names_are_folded_and_figures_stay_whole() -> None:
    busy = QueueQuality(
        queue="a-queue-with-a-name-of-sixty-three-characters-as-kubernetes-has",
        waiting=123_456,
        live=12_345,
        used_gpu_milli=12_345_500,
        placed=1_234_567,
        mean_wait_s=100_000.0,
        succeeded=1_234_567,
        mean_completion_s=1_000_000.0,
        evicted=12_345,
    )
    told = QualityReport(cell="all", decider="r", observed_at_s=0.0, queues=(busy,))
    lines = screen(quality(told)).splitlines()
    titles = next(at for at, line in enumerate(lines) if line.startswith("QUEUE"))
    rows = lines[titles + 1 :]
    figures = ["12,345", "123,456", "12345.5", "1d03h", "1,234,567", "11d13h", "12,345"]
    assert rows[0].split()[1:] == figures
    assert "".join(row.split()[0] for row in rows) == busy.queue
    assert max(map(len, lines)) <= 80
