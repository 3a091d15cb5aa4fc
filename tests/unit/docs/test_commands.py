"""Every command line of `berth` in the documentation names commands and options that exist.

Those of README.md, of docs/users/python.md and of blocks ```console run in tests/pipeline.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.reference import pages
from tests.unit.docs.command_lines import fault

ROOT = Path(__file__).parents[3]
BLOCK = re.compile(r"^ *```(?:shell|sh|console)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`(berth [^`]+)`")
TYPED = re.compile(r"(?:^|[|;&(]|-- )\s*(?:\$ )?(berth [^|;&)]*)")
PAGES = sorted({ROOT / "README.md", *ROOT.glob("docs/**/*.md")} - set(pages.pages()))


def command_lines(text: str) -> Iterator[str]:
    """Yield the command lines of a page without comments."""
    for block in BLOCK.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            for found in TYPED.findall(line.strip().partition("  #")[0]):
                yield found.strip()
    yield from (" ".join(each.split()) for each in INLINE.findall(BLOCK.sub("", text)))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_command_lines_of_page_exist(page: Path) -> None:
    found = [line.replace("\\|", " ") for line in command_lines(page.read_text())]
    assert [wrong for line in found if (wrong := fault(line))] == []


def test_command_lines_are_found_in_pipes_comments_and_behind_kubectl() -> None:
    text = """```shell
kubectl exec berth-accounts-0 -- berth cluster add W1 --stdout | kubectl apply -f -
berth jobs --all-tenants -o wide   # operators
```
and `berth queue set NAME --hold`."""
    assert list(command_lines(text)) == [
        "berth cluster add W1 --stdout",
        "berth jobs --all-tenants -o wide",
        "berth queue set NAME --hold",
    ]
    assert fault("berth jobs --colour") == "berth jobs --colour: jobs has no --colour"
