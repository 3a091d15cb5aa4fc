"""Files of jobs: what YAML becomes, whom jobs wait for, and what is wrong with a file."""

import msgspec
import pytest

from berthmaster.cli.job.files import read_jobs
from berthmaster.cli.job.submit import bodies_of
from berthmaster.cli.values import WrongInput

FLOW = b"""
# A workflow: each after the others.
id: report
after: [train, "score:ended"]
---
id: score
after: train
labels: {stage: "no"}
---
- id: train
  pod_sets: [{gpus: 2, gpu_milli: 1000}]
  expected_duration_s: 600
"""


def ids(bodies: list[bytes]) -> list[str]:
    return [msgspec.json.decode(body)["id"] for body in bodies]


def test_documents_are_jobs_and_go_behind_those_they_wait_for() -> None:
    report, score, train = (msgspec.json.decode(body) for body in read_jobs(FLOW, "flow.yaml"))
    assert report == {
        "id": "report",
        "depends_on": [{"id": "train"}, {"id": "score", "until": "ended"}],
    }
    assert score == {"id": "score", "labels": {"stage": "no"}, "depends_on": [{"id": "train"}]}
    assert train["pod_sets"] == [{"gpus": 2, "gpu_milli": 1000}]


def test_json_stays_as_it_was_written_but_for_after() -> None:
    text = b'{"id": "a",  "x": 1}\n{"id": "b", "after": "a"}'
    assert read_jobs(text, "f") == [
        b'{"id": "a",  "x": 1}',
        b'{"id":"b","depends_on":[{"id":"a"}]}',
    ]


def test_a_file_is_put_in_order_and_a_circle_is_refused_with_its_way(tmp_path: object) -> None:
    from pathlib import Path

    file = Path(str(tmp_path)) / "flow.yaml"
    file.write_bytes(FLOW)
    assert ids(bodies_of((str(file),), {})) == ["train", "score", "report"]
    file.write_text("id: a\nafter: c\n---\nid: b\nafter: a\n---\nid: c\nafter: b\n")
    with pytest.raises(WrongInput, match="goes in a circle: a -> c -> b -> a"):
        bodies_of((str(file),), {})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "f is empty"),
        (b"# nothing\n---\n", "f holds no job"),
        (b"a: [1, 2", "f, line 2 is neither JSON nor YAML"),
        (b"id: a\n  b: c", "f, line 2 is neither JSON nor YAML"),
        (b"hello", "f, document 1 is no job"),
        (b"id: a\nafter: 5", "job a: after is 5; right is an id, or a list"),
        (b"id: a\nafter: 'b:soon'", "right is ID, ID:succeeded or ID:ended"),
        (b"id: a\nafter: b\ndepends_on: []", "give after or depends_on, not both"),
        (b"id: a\nlabels: {day: 2026-11-24}", "f, document 1.labels.day: 2026-11-24 is read as"),
        (b"id: a\nlabels: {1: x}", "f, line 2: a key is no text"),
        (b"id: a\npriority: .inf", "document 1.priority: inf is no number"),
        (b"id: a\nrun: &x {env: *x}", "f, line 2: YAML aliases are not accepted"),
        (b"id: a\nx: !!binary aGk=", "f, line 2: YAML tags are not accepted"),
        (b"id: !!python/object:os.system a", "f, line 1: YAML tags are not accepted"),
        (b"id: a\nid: b", "f, line 2: a key stands twice"),
        (b"id: a\npriority: 99999999999999999999", "99999999999999999999 has more than 64 bits"),
    ],
)
def test_what_is_wrong_is_said_by_its_place(text: bytes, told: str) -> None:
    with pytest.raises(WrongInput) as raised:
        read_jobs(text, "f")
    assert told in str(raised.value)
