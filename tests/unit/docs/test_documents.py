"""Documents do not rot in silence: what they link to and which files they name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "services" / "berthmaster"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(r"`([a-z_]+(?:/[a-z_]+)+(?:\.(?:py|md|yaml|toml))|[a-z_]+/(?:[a-z_]+/)*)`")
INDEX = (ROOT / "docs" / "README.md").read_text()


def _anchors(document: Path) -> set[str]:
    """Of a document's headings, as they are made from their texts where documents are shown."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in kept}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (document.parent / path).resolve() if path else document
        assert there.exists(), target
        if anchor:
            assert anchor in _anchors(there), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_file_that_is_named_is_there(document: Path) -> None:
    for name in NAMED_FILE.findall(document.read_text()):
        places = (ROOT / name, PACKAGE / name, ROOT / "deploy" / "chart" / name)
        assert any(place.exists() for place in places), name


def test_the_index_names_every_document() -> None:
    for document in ROOT.glob("docs/*.md"):
        assert document.name == "README.md" or f"({document.name})" in INDEX, document.name


def test_changelog_release_has_at_most_60_entries_of_40_words() -> None:
    _, *releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    for release in releases:
        sections = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert set(sections) <= {"Added", "Changed", "Fixed", "Security", "Action required"}
        entries = re.findall(r"^- (.*(?:\n  .*)*)", release, re.MULTILINE)
        assert len(entries) <= 60
        assert [entry for entry in entries if len(entry.split()) > 40] == []
