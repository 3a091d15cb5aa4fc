"""Pages do not rot in silence: links, named files and commands exist, and the site builds."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import prose
from scripts.reference import pages

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "services" / "berthmaster"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(r"`([a-z_]+(?:/[a-z_]+)+(?:\.(?:py|md|yaml|toml))|[a-z_]+/(?:[a-z_]+/)*)`")
MAX_WORDS = 1500
GENERATED = {*pages.pages(), ROOT / "CHANGELOG.md"}
WRITTEN = [each for each in DOCUMENTS if each not in GENERATED]


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _anchors(document: Path) -> set[str]:
    """Of a document's headings, as they are made from their texts where documents are shown."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in kept}


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in LINK.findall(document.read_text()):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        there = (document.parent / path).resolve() if path else document
        assert there.exists(), target
        if anchor:
            assert anchor in _anchors(there), target


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_every_file_that_is_named_is_there(document: Path) -> None:
    for name in NAMED_FILE.findall(document.read_text()):
        places = (ROOT / name, PACKAGE / name, ROOT / "deploy" / "chart" / name)
        assert any(place.exists() for place in places), name


@pytest.mark.parametrize("document", WRITTEN, ids=_name)
def test_page_has_at_most_1500_words(document: Path) -> None:
    assert len(prose.FENCE.sub("", document.read_text()).split()) <= MAX_WORDS


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Pages outside the navigation, and links and anchors without a target, are warnings. With
    `--quiet` mkdocs would count none."""
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", str(tmp_path)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "search" / "search_index.json").is_file()
    page = (tmp_path / "concepts" / "event-log" / "index.html").read_text()
    assert 'class="mermaid"' in page
    copied = (tmp_path / "assets" / "mermaid.min.js").is_file()  # npm answered
    assert ('src="../../assets/mermaid.min.js"' in page) == copied


def test_sentences_of_all_pages_are_within_the_limits() -> None:
    found = map(prose.read, prose.files([ROOT / name for name in prose.PATHS]))
    assert prose.beyond(prose.totals([text for text in found if text is not None])) == []


def test_prose_measures_sentences_and_leaves_out_headings_and_tables() -> None:
    words = " ".join(["word"] * 31)
    figures = prose.measure(prose.plain(f"# Heading\n\nIt {words}.\n\n| a | table |\n"), 1)
    assert prose.beyond({"all docs": figures}) == [
        "all docs: mean 32.0 > 17",
        "all docs: over30 100.0 > 8",
        "all docs: wh 100.0 > 3",
        "all docs: long 1.0 > 0",
    ]


def test_changelog_release_has_at_most_60_entries_of_40_words() -> None:
    _, *releases = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    for release in releases:
        sections = re.findall(r"^### (.*)$", release, re.MULTILINE)
        assert set(sections) <= {"Added", "Changed", "Fixed", "Security", "Action required"}
        entries = re.findall(r"^- (.*(?:\n  .*)*)", release, re.MULTILINE)
        assert len(entries) <= 60
        assert [entry for entry in entries if len(entry.split()) > 40] == []
