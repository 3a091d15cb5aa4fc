"""YAML that is built to cost time or memory is refused, and what people write is read."""

import re
import subprocess
import time
from datetime import date
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.runtime.plain_yaml import MAX_DEPTH, NotYaml, Refused, document, documents

ROOT = Path(__file__).parents[4]
PLAIN = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=20)
VALUES = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=20,
)


@given(VALUES)
def test_document_reads_what_was_written(value: Any) -> None:
    assert document(yaml.safe_dump(value)) == value


def test_documents_reads_what_people_write() -> None:
    text = """
    # Two jobs.
    id: a
    args: [-p, "0x10", 0x10, 1.5, yes, ~, 1e3]
    note: |
      two
      lines
    quoted: 'yes'
    when: 2026-11-24
    --- # nothing
    --- &unused {b: {}}
    """
    assert documents(dedent(text)) == [
        {
            "id": "a",
            "args": ["-p", "0x10", 16, 1.5, True, None, "1e3"],
            "note": "two\nlines\n",
            "quoted": "yes",
            "when": date(2026, 11, 24),
        },
        None,
        {"b": {}},
    ]
    assert document("") is None
    assert document(b'{"a": ["b", 1]}') == {"a": ["b", 1]}


def merges(levels: int) -> str:
    """Mappings each of which takes the one before it nine times in."""
    each = (f"l{n}: &l{n} {{<<: [{', '.join([f'*l{n - 1}'] * 9)}]}}" for n in range(1, levels))
    return "\n".join(["l0: &l0 {a: b}", *each])


@pytest.mark.parametrize(
    ("text", "problem", "line"),
    [
        (merges(9), "YAML merge keys are not accepted", 2),
        ("a: {<<: {b: c}}", "YAML merge keys are not accepted", 1),
        ("a: &a [x]\nb: *a", "YAML aliases are not accepted", 2),
        ("a: &a [*a]", "YAML aliases are not accepted", 1),
        ("a: !!python/name:os.system x", "YAML tags are not accepted", 1),
        ("a: !!binary aGk=", "YAML tags are not accepted", 1),
        ("a: !!bool perhaps", "YAML tags are not accepted", 1),
        ("a: !!timestamp soon", "YAML tags are not accepted", 1),
        ("a: !!set {b, c}", "YAML tags are not accepted", 1),
        ("a: ! b", "YAML tags are not accepted", 1),
        ("a: 1\nb: 2\na: 3", "a key stands twice", 3),
        ("1: x", "a key is no text; put it in quotes", 1),
        ("on: x", "a key is no text; put it in quotes", 1),
        ("? [a, b]\n: c", "a key is no text; put it in quotes", 1),
        ("[" * (MAX_DEPTH + 1), f"nested deeper than {MAX_DEPTH}", 1),
        ("? " * 5000, f"nested deeper than {MAX_DEPTH}", 1),
        ("a: " + "9" * 5000, "a number of more than 64 characters", 1),
        ("a: 1" + ":1" * 200_000, "a number of more than 64 characters", 1),
        ("a: 1" + ":1" * 200_000 + ".5", "a number of more than 64 characters", 1),
        ("a: 2026-13-45", "a scalar that is none of its kind; put it in quotes", 1),
        ("a: 0b_", "a scalar that is none of its kind; put it in quotes", 1),
        ("a: =", "a scalar that is none of its kind; put it in quotes", 1),
    ],
)
def test_yaml_beyond_plain_values_is_refused_by_line(text: str, problem: str, line: int) -> None:
    began = time.process_time()
    with pytest.raises(Refused) as caught:
        documents(text)
    assert (caught.value.problem, caught.value.line) == (problem, line)
    assert time.process_time() - began < 5  # of one core; PyYAML's own constructor takes minutes


@pytest.mark.parametrize(
    "text", ["a: [", "a: b: c", b"\xff\xfe\x00", b"\xc3(", "a: \x07", "\ud800", "a: *b\x00"]
)
def test_text_that_is_no_yaml_is_refused(text: str | bytes) -> None:
    with pytest.raises(NotYaml):
        documents(text)


def test_document_refuses_a_second_one() -> None:
    with pytest.raises(NotYaml, match="single document"):
        document("a: 1\n---\nb: 2")


def test_colliding_numbers_are_no_keys() -> None:
    """Python gives multiples of 2^61 - 1 one hash, so a mapping of them takes quadratic time."""
    text = "{" + ", ".join(f"{n * (2**61 - 1)}: x" for n in range(1, 50_000)) + "}"
    with pytest.raises(Refused, match="no text"):
        documents(text)


def test_no_other_module_reads_yaml() -> None:
    files = subprocess.run(
        ["git", "ls-files", "services/*.py"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split()
    reads = re.compile(r"yaml\.(?:\w*load|parse|compose|scan)\w*\(|[Ss]afeLoader|load_kube")
    found = [file for file in files if reads.search((ROOT / file).read_text())]
    assert found == [
        "services/berthmaster/lab/controlplane/api.py",  # definitions of the modules it compiles
        "services/berthmaster/lib/runtime/plain_yaml.py",
    ]
