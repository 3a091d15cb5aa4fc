from io import StringIO

from rich.console import Console

from berthmaster.cli.cluster.credentials import screen
from berthmaster.hub.credentials.core import status
from berthmaster.hub.credentials.core.status import Line

NOW_S = 1_767_225_600.0  # 2026-01-01T00:00:00Z


def shown(lines: dict[str, Line], more: int = 0) -> list[list[str]]:
    console = Console(file=StringIO(), width=160)
    console.print(screen(lines, more, NOW_S))
    assert isinstance(console.file, StringIO)
    return [line.split() for line in console.file.getvalue().splitlines()]


def line(expires_at: str = "", **more: object) -> Line:
    base: dict[str, object] = {"state": "Held", "ready": True, "by": "bootstrap"}
    return Line(expires_at=expires_at, **(base | more))  # type: ignore[arg-type]


def test_each_cluster_has_a_row_with_what_is_left_of_its_token() -> None:
    rows = shown(
        {
            "west": line("2026-01-01T12:00:00Z"),
            "east": line("2026-01-03T00:00:00Z", by="ocm"),
            "north": line("2026-01-01T00:01:30Z", message="no answer"),
            "south": line("2025-12-31T00:00:00Z", ready=False, state="Preparing"),
            "new": line(ready=False, state="NoSource", by=""),
        },
        more=3,
    )
    assert rows == [
        ["CLUSTER", "STATE", "WORKS", "BY", "EXPIRES", "IN", "MESSAGE"],
        ["east", "Held", "yes", "ocm", "2d"],
        ["new", "NoSource", "no", "-", "-"],
        ["north", "Held", "yes", "bootstrap", "90s", "no", "answer"],
        ["south", "Preparing", "no", "bootstrap", "over"],
        ["west", "Held", "yes", "bootstrap", "12h"],
        ["…", "and", "3", "more"],
    ]


def test_an_empty_table_says_what_is_missing() -> None:
    [words] = shown({})
    assert " ".join(words).endswith("does `berth serve credentials` run?")


def test_what_the_service_writes_is_read_back() -> None:
    assert status.parse({"east": '{"state":"Held","ready":true}', status.MORE: "7"}) == (
        {"east": Line(state="Held", ready=True)},
        7,
    )
