"""Who else has written a nomination, by managedFields."""

import msgspec
import pytest

from berthmaster.lib.kueue.multikueue import ManagedWorkload, others_nominating, others_writing

NOMINATION: dict[str, object] = {"f:status": {"f:nominatedClusterNames": {}}}
STATUS: dict[str, object] = {"f:status": {"f:conditions": {}}}
OURS = "berthmaster-multikueue"


def managed(*entries: tuple[str, dict[str, object], str]) -> ManagedWorkload:
    fields = [
        {"manager": manager, "fieldsV1": of_it, "time": time, "subresource": "status"}
        for manager, of_it, time in entries
    ]
    text = msgspec.json.encode({"metadata": {"name": "a", "managedFields": fields}})
    return msgspec.json.decode(text, type=ManagedWorkload)


@pytest.mark.parametrize(
    ("found", "nominating", "writing"),
    [
        (managed(), (), ()),
        (managed((OURS, NOMINATION, "2026-01-01T00:00:01Z")), (), ()),
        (
            managed(
                ("kueue-admission", STATUS, "2026-01-01T00:00:09Z"),
                ("rival", NOMINATION, "2026-01-01T00:00:02Z"),
                (OURS, NOMINATION, "2026-01-01T00:00:01Z"),
            ),
            ("rival",),
            ("rival",),
        ),
        (
            managed(
                ("kueue-admission", STATUS, "2026-01-01T00:00:01Z"),
                ("clears", STATUS, "2026-01-01T00:00:02Z"),
            ),
            (),
            ("clears",),
        ),
    ],
)
def test_others_are_those_who_have_it_or_else_who_wrote_last(
    found: ManagedWorkload, nominating: tuple[str, ...], writing: tuple[str, ...]
) -> None:
    assert (others_nominating(found), others_writing(found)) == (nominating, writing)
