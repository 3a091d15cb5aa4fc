"""No character that steers a terminal leaves by JSON, YAML, CSV, tables, errors or log lines."""

import io
import json
import sys

import msgspec
import pytest
import yaml

from berthmaster.cli.output.errors import complain
from berthmaster.cli.output.listing import as_csv, as_yaml
from berthmaster.cli.session import Output
from berthmaster.lib.runtime.visible_text import dumps, pretty, visible

ALL = [chr(n) for n in range(0x110000) if not 0xD800 <= n < 0xE000]
# CSI, an escape sequence, backspace, DEL, marks of direction, isolates, zero width, a line end of
# Unicode, a tag, a private and an unassigned character.
STEERING = (
    "\x9b\x1b\b\x7f\u202e\u202a\u2066\u2069\u200f\u200b\ufeff\u2028\x85\U000e0041\ue000\u0378"
)
SEEN = f"é 漢 😀 {STEERING}"


class Row(msgspec.Struct):
    """One item of a listing."""

    name: str
    labels: dict[str, str]


ROW = Row(SEEN, {SEEN: SEEN})


def steers(text: str) -> str:
    """What of a text is neither printable nor a line end."""
    return "".join(char for char in text if not char.isprintable() and char != "\n")


def test_json_of_every_character_is_printable_and_the_same_value() -> None:
    for text in ("".join(ALL), *STEERING, "😀"):
        for body in (dumps({text: text}), pretty({text: text})):
            assert json.loads(body) == {text: text}
            assert steers(body.decode()) == ""
    assert dumps("é 漢 😀") == '"é 漢 😀"'.encode()


def test_lists_in_each_form_are_printable() -> None:
    assert steers(as_csv([ROW])) == ""
    assert "\\x9b" in as_csv([ROW])
    text = as_yaml([ROW])
    assert steers(text) == ""
    assert yaml.safe_load(text) == [{"name": SEEN, "labels": {SEEN: SEEN}}]
    assert "漢" in as_yaml([Row("漢", {})])


def test_output_of_a_command_is_printable(monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    Output(as_json=True).document(ROW, lambda: "")
    Output(as_json=True).item(ROW, lambda: "")
    Output(as_json=False).say(SEEN)
    complain(SEEN)
    out.flush()
    for text in (out.buffer.getvalue().decode(), err.getvalue()):
        assert text
        assert steers(text) == ""


def test_visible_shows_an_escape_for_what_steers() -> None:
    assert visible("a\x9b31m\u202eb\nc é") == "a\\x9b31m\\u202eb\nc é"
    assert visible("a\nb", keep="") == "a\\nb"
