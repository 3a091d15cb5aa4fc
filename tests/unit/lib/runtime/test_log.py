import io
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.runtime.log import MAX_FIELD_CHARS, Bridge, Format, Level, Log


class Page:
    """A log into memory at a fixed time."""

    def __init__(self, format: Format = "json", level: Level = "info") -> None:
        self.bytes = io.BytesIO()
        self.log = Log(
            "scorer", format=format, level=level, stream=self.bytes, clock=lambda: 1_700_000_000.25
        )

    def text(self) -> str:
        return self.bytes.getvalue().decode()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]


def test_an_event_is_one_line_of_json_with_its_fields() -> None:
    page = Page()
    page.log.bind(cell="all").info("placed", workload="train-7", gpus=(0, 1))
    assert page.lines() == [
        {
            "time": "2023-11-14T22:13:20.250Z",
            "level": "info",
            "service": "scorer",
            "event": "placed",
            "cell": "all",
            "workload": "train-7",
            "gpus": [0, 1],
        }
    ]


def test_levels_below_the_chosen_one_are_left_out() -> None:
    page = Page(level="warning")
    page.log.debug("a")
    page.log.info("b")
    page.log.warning("c")
    page.log.error("d")
    assert [line["event"] for line in page.lines()] == ["c", "d"]


def test_an_exception_becomes_fields_and_stays_on_one_line() -> None:
    page = Page()
    try:
        raise ValueError("first\nsecond")
    except ValueError as error:
        page.log.error("decode_failed", error=error, subject="berth.x")
    (line,) = page.lines()
    assert line["error"] == "ValueError: first\nsecond"
    assert line["traceback"].startswith("Traceback")
    assert line["subject"] == "berth.x"


def test_fields_cannot_replace_the_lines_own() -> None:
    page = Page()
    page.log.info("placed", level="none", event="other", time=0)
    (line,) = page.lines()
    assert (line["level"], line["event"]) == ("info", "placed")
    assert (line["level_"], line["event_"], line["time_"]) == ("none", "other", 0)


def test_text_from_outside_cannot_pretend_to_be_a_line_of_its_own() -> None:
    page = Page(format="text")
    page.log.info("refused", name="a\n12:00:00 error scorer: forged\x1b[2J")
    assert len(page.text().splitlines()) == 1
    assert "\x1b" not in page.text()


def test_the_text_form_reads_like_a_sentence() -> None:
    page = Page(format="text")
    page.log.warning("stale", cluster="lake", age_s=3.5, why="no report")
    expected = '22:13:20.250 warning scorer: stale cluster=lake age_s=3.5 why="no report"\n'
    assert page.text() == expected


@pytest.mark.parametrize("format", ["json", "text"])
def test_secrets_are_hidden_in_both_forms(format: Format) -> None:
    page = Page(format=format)
    page.log.info("x", seed="abc123", api_token="t0k", text="SUAM" + "A" * 54)
    page.log.info("y", url="nats://me:pw@host:4222")
    assert not any(secret in page.text() for secret in ("abc123", "t0k", "SUAM", "me:pw"))
    assert "host:4222" in page.text()


@pytest.mark.parametrize("format", ["json", "text"])
def test_a_line_has_a_largest_size_and_a_cut_shows_no_part_of_a_secret(format: Format) -> None:
    page = Page(format=format)
    token = "eyJ" + "h" * 40 + "." + "p" * 40 + "." + "s" * 40
    at_the_cut = "x" * (MAX_FIELD_CHARS - 20) + " " + token
    page.log.info("big", body=at_the_cut + "y" * 100_000, items=["z" * 100_000], small="here")
    text = page.text()
    assert len(text) < 3 * MAX_FIELD_CHARS
    assert "eyJ" not in text
    assert "more characters" in text
    assert "here" in text
    if format == "json":
        assert json.loads(text)["small"] == "here"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=8,
)


@given(anything, st.sampled_from(["json", "text"]))
def test_any_value_at_all_becomes_exactly_one_line(value: object, format: Format) -> None:
    page = Page(format=format)
    page.log.info("odd", value=value)
    assert page.bytes.getvalue().count(b"\n") == 1


def test_values_that_json_lacks_are_still_shown() -> None:
    page = Page()
    loop: list[object] = []
    loop.append(loop)
    page.log.info("odd", kind=Page, surrogate="\ud800", loop=loop)
    assert page.bytes.getvalue().count(b"\n") == 1
    assert "odd" in page.text()


def test_a_log_that_cannot_be_written_does_not_stop_the_work() -> None:
    page = Page()
    page.bytes.close()
    page.log.info("unheard")


def test_what_libraries_say_comes_out_in_the_same_form() -> None:
    page = Page()
    logger = logging.Logger("nats.aio")
    logger.addHandler(Bridge(page.log))
    logger.info("quiet")
    logger.warning("slow consumer on %s", "berth.x")
    (line,) = page.lines()
    assert (line["level"], line["event"], line["logger"]) == ("warning", "library", "nats.aio")
    assert line["text"] == "slow consumer on berth.x"
