"""The walks of docs/contributing/walks.md name modules that the pure cores really enter."""

import re

import pytest

from scripts.walks import WALKS, longest_chain, walked
from tests.unit.docs.test_documents import ROOT

PAGE = (ROOT / "docs" / "contributing" / "walks.md").read_text()
NAMED = re.compile(r"`([a-z_]+(?:/[a-z_]+)+\.py)`")
MAX_LINES = 15


def section(walk: str) -> str:
    """The text below the heading of a walk."""
    _, *sections = re.split(r"^### ", PAGE, flags=re.MULTILINE)
    (found,) = (each for each in sections if each.lower().startswith(walk.lower() + "\n"))
    return found.partition("\n")[2].strip()


@pytest.fixture(scope="module")
def entered() -> dict[str, list[str]]:
    return walked()


@pytest.mark.parametrize("walk", WALKS)
def test_walk_of_the_page_names_only_modules_that_are_entered(
    walk: str, entered: dict[str, list[str]]
) -> None:
    named = NAMED.findall(section(walk))
    assert len(named) >= 5
    assert [module for module in named if module not in entered[walk]] == []


@pytest.mark.parametrize("walk", WALKS)
def test_walk_of_the_page_has_at_most_15_lines(walk: str) -> None:
    assert len(section(walk).splitlines()) <= MAX_LINES


def test_longest_chain_counts_a_circle_as_one_module() -> None:
    assert longest_chain({"a": {"b"}, "b": {"c"}, "c": set()}) == 3
    assert longest_chain({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": set()}) == 3
