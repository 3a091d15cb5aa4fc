"""What lines of a log say of a job, and what they do not."""

import pytest

from berthmaster.lib.jobs.progress import MAX_SAID_BYTES, Heard, heard_in
from berthmaster.lib.messages.workload import Checkpoint, Progress

SAVED = Checkpoint(step=400, uri="s3://runs/train/400")


def test_the_newest_of_each_counts_with_when_it_was_written() -> None:
    lines = [
        b"2026-11-24T10:00:00Z epoch 1\n",
        b'2026-11-24T10:00:01Z BERTH {"step": 400, "loss": 0.5, "eta_s": 90, "lr": 0.1}\n',
        b'2026-11-24T10:00:02Z BERTH {"checkpoint": {"step": 400, "uri": "s3://runs/train/400"}}\n',
        b'2026-11-24T10:00:03.5Z [rank0]: BERTH {"step": 410}\r\n',
        b"2026-11-24T10:00:04Z BERTH is a word\n",
    ]
    assert heard_in(lines) == Heard(Progress(step=410), SAVED, 1_795_514_403_500_000_000)
    assert heard_in(lines[:2]).progress == Progress(step=400, loss=0.5, eta_s=90)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b'[1,0]<stdout>:BERTH {"step": 1}', Heard(Progress(step=1))),
        (b'[default0]:BERTH {"step": 1, "loss": NaN, "eta_s": Infinity}', Heard(Progress(step=1))),
        (b'BERTH {"step": 2, "loss": -1e-3}', Heard(Progress(step=2, loss=-0.001))),
        (b'BERTH {"step": -1}', Heard(unreadable=1)),
        (b'BERTH {"step": "7"}', Heard(unreadable=1)),
        (b'BERTH {"step": 1, "eta_s": -5}', Heard(unreadable=1)),
        (b'BERTH {"loss": 1.0}', Heard(unreadable=1)),
        (b'BERTH {"checkpoint": {"step": 1}}', Heard(unreadable=1)),
        (b'BERTH {"step": 1', Heard()),
        (b'BERTH {"step": 1}, and more', Heard()),
        (b'BERTH {"\xff": 1}', Heard(unreadable=1)),
        (b'say BERTH {"step": 1}', Heard()),
        (b'BERTH {"step": 1, "x": "' + b"y" * MAX_SAID_BYTES + b'"}', Heard(unreadable=1)),
    ],
)
def test_foreign_line_is_ignored_wrong_counted(line: bytes, expected: Heard) -> None:
    assert heard_in([line]) == expected
