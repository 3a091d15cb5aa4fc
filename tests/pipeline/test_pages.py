"""The commands of the site print what its pages show, in order, on one `berth up`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from scripts import transcripts

Place = tuple[Path, Mapping[str, str]]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with transcripts.up(tmp_path) as env:
        yield tmp_path, env


def test_commands_of_pages_print_what_the_pages_show(place: Place) -> None:
    for name in transcripts.PAGES:
        text = (transcripts.DOCS / name).read_text()
        shown = transcripts.steps(text)
        assert shown, name
        for old, new in zip(shown, transcripts.played(text, *place), strict=True):
            differs = transcripts.words(old.output) ^ transcripts.words(new.output)
            why = f"{name}: {old.command}: run python -m scripts.transcripts\n{new.output}"
            assert differs == set(), why


def test_every_page_with_a_console_block_is_played() -> None:
    with_blocks = {
        str(page.relative_to(transcripts.DOCS))
        for page in transcripts.DOCS.rglob("*.md")
        if "```console" in page.read_text()
    }
    assert with_blocks == set(transcripts.PAGES)


def test_words_of_outputs_ignore_numbers_and_clusters() -> None:
    measured = "GPUs       t4: 2 GPUs, 89% busy\nqueue default"
    assert transcripts.words(measured) == {"queue", "default"}
    table = "1  t4     62.0\n\nLEFT OUT  WHY\na10       busy: no room now"
    assert transcripts.words(table) == set()
    assert transcripts.words(f"{table}\ng3        cordoned") == {"LEFT", "OUT", "WHY", "cordoned"}
    one = transcripts.words("t4  run on g2-b, g2-0028: score 58.9, 9s ago")
    assert one == {"run", "score", "ago"} == transcripts.words("run on g3: score 7, 12s ago")
