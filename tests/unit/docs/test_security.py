"""docs/reference/threats: each attack names a test that exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs" / "reference" / "threats").glob("*.md"))
ROW = re.compile(
    r"^\| (?P<attack>[^|]+) \| (?P<outcome>[^|]+) \| (?P<test>[^|]+) \|$", re.MULTILINE
)
PLAYED = re.compile(r"`(?P<file>[\w/]+\.py)::(?P<test>\w+)`")


def test_each_attack_names_a_test_that_exists() -> None:
    found = [row for page in PAGES for row in ROW.finditer(page.read_text())]
    rows = [row for row in found if row["attack"] != "attack"]
    assert len(rows) > 90
    for row in rows:
        played = PLAYED.fullmatch(row["test"].strip())
        assert played is not None, row[0]
        text = (ROOT / "tests" / played["file"]).read_text()
        assert re.search(rf"^(async )?def {played['test']}\(", text, re.MULTILINE), row[0]


def test_each_kind_of_attacker_has_a_table_and_each_page_its_limits() -> None:
    texts = [page.read_text() for page in PAGES]
    heads = [head for text in texts for head in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    for word in ("tenant", "agent", "service", "network", "hub", "operator", "webhook", "token"):
        assert any(word in head for head in heads), word
    assert heads.count("Not defended") == len(PAGES) == 4
