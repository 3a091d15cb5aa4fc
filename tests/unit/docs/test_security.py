"""docs/security.md: each line of the threat model names a test that is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "security.md").read_text()
ROW = re.compile(r"^\| (?P<tries>[^|]+) \| (?P<then>[^|]+) \| (?P<played>[^|]+) \|$", re.MULTILINE)
PLAYED = re.compile(r"`(?P<file>[\w/]+\.py)::(?P<test>\w+)`")


def test_each_line_is_played_by_a_test_that_is_there() -> None:
    rows = [row for row in ROW.finditer(PAGE) if row["tries"] != "tries to"]
    assert len(rows) > 30
    for row in rows:
        played = PLAYED.fullmatch(row["played"].strip())
        assert played is not None, row[0]
        text = (ROOT / "tests" / played["file"]).read_text()
        assert re.search(rf"^(async )?def {played['test']}\(", text, re.MULTILINE), row[0]


def test_each_kind_of_attacker_has_a_table() -> None:
    heads = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    words = ("tenant", "agent", "service", "network", "hub", "operator", "not defended")
    assert all(any(word in head for head in heads) for word in words)
