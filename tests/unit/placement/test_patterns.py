"""Patterns mean what RE2 means by them, in time linear in the text."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.placement.cel.errors import EvalError, TooCostly
from berthmaster.placement.cel.patterns import pattern
from berthmaster.placement.cel.values import Meter
from tests.unit.placement.objects import UNHURRIED


def found(text: str, wanted: str, steps: int = 1_000_000) -> bool:
    return pattern(wanted).found_in(text, Meter(steps))


@pytest.mark.parametrize(
    ("wanted", "yes", "no"),
    [
        ("", "anything", None),
        ("b+", "abc", "ac"),
        ("^abc$", "abc", "abcd"),
        ("^(foo|bar|)$", "bar", "baz"),
        ("a{2,3}$", "caaa", "ca"),
        ("^a{2}$", "aa", "aaa"),
        ("^a{2,}$", "aaaa", "a"),
        ("a{,2}", "a{,2}", "aa"),
        ("^a*?b??$", "aaab", "c"),
        ("[a-c]x", "bx", "dx"),
        ("[^a-c]", "d", "b"),
        ("[]a]", "]", "b"),
        ("[a-]", "-", "b"),
        (r"[\w.-]+@[\d]", "a.b@1", "@x"),
        (r"\d\D\s\S\w\W", "1a b_!", "111111"),
        (r"\bbar\b", "foo bar", "foobar"),
        (r"\Boo", "foo", "oo"),
        (r"\.\*\\", r"a.*\b", "axyz"),
        (".", "é", "\n"),
        ("(?s)a.b", "a\nb", "ab"),
        ("(?i)nvidia-[A-C]100", "NVIDIA-a100", "nvidia-d100"),
        ("(?i:a)b", "Ab", "AB"),
        ("(?m)^b$", "a\nb\nc", "ab"),
        ("(?-i)a", "a", "A"),
        (r"\Aab\z", "ab", "ab\n"),
        ("(?P<name>a)(?:b)", "ab", "b"),
        ("((a|b)*c)+", "abcabc", "ab"),
        ("(){3}x", "x", "y"),
        (r"^\p{Lu}[[:alpha:]]+$", "Äb", "äb"),
    ],
)
def test_what_matches_and_what_does_not(wanted: str, yes: str, no: str | None) -> None:
    assert found(yes, wanted)
    assert no is None or not found(no, wanted)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("(", "missing ): ("),
        (")", "unexpected ): )"),
        ("[a", "missing ]: [a"),
        ("[b-a]", "invalid character class range: b-a"),
        ("*a", "no argument for repetition operator: *"),
        ("a**", "bad repetition operator: **"),
        ("a{3,2}", "invalid repetition size: {3,2}"),
        ("a{1001}", "invalid repetition size: {1001}"),
        ("(a{100}){100}", "invalid repetition size: {100}"),
        (r"(\pL{100}){10}", "pattern too large"),
        (r"\p{Nothing}", "invalid character class range: \\p{Nothing}"),
        (r"(a)\1", r"invalid escape sequence: \1"),
        ("(?=a)", "invalid perl operator: (?="),
        ("(?<=a)", "invalid perl operator: (?<="),
        ("a\\", "trailing \\"),
        ("(" * 50, "missing ): "),
        ("\ud800", "half a character"),
        ("a" * 2000, "at most 1024"),
    ],
)
def test_what_is_no_pattern(wanted: str, problem: str) -> None:
    with pytest.raises(EvalError) as caught:
        pattern(wanted)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "wanted",
    ["(a+)+b", "(a|aa)+b", "(a*)*b", "(.*)(.*)(.*)(.*)b", "(x+x+)+y", "((a{10}){10}){9}b"],
)
def test_what_makes_others_go_back_and_forth_for_years_is_linear_here(wanted: str) -> None:
    # The price is linear in the text, and what it buys takes no longer than a step of ours does.
    short, long = Meter(10**7), Meter(10**7)
    assert not pattern(wanted).found_in("a" * 10_000, short)
    began_s = time.process_time()
    assert not pattern(wanted).found_in("a" * 100_000, long)
    took_s = time.process_time() - began_s
    paid = 10**7 - long.left
    assert paid <= 10 * (10**7 - short.left)
    assert took_s < 0.1 + 10e-6 * paid


def test_a_match_is_paid_for_before_it_is_looked_for() -> None:
    wanted = "(a|b|c|d|e|f)*g"
    steps = pattern(wanted).steps
    meter = Meter(1000)
    assert not pattern(wanted).found_in("a" * 500, meter)
    assert meter.left == 1000 - 1 - 500 * steps // 100
    with pytest.raises(TooCostly):
        found("a" * 100_000, wanted, steps=1000)
    with pytest.raises(TooCostly):
        found("g", "((a{10}){10}){9}b", steps=5)


def test_a_longer_pattern_costs_more() -> None:
    def price(wanted: str) -> int:
        meter = Meter(10**6)
        pattern(wanted).found_in("a" * 1000, meter)
        return 10**6 - meter.left

    assert price("a{900}b") > 10 * price("a{50}b") > 20 * price("b")


def test_half_a_character_is_no_text() -> None:
    with pytest.raises(EvalError, match="half a character"):
        found("\ud800", "a")


PIECES = st.sampled_from(
    ["a", "b", ".", "[ab]", "[^a]", "(a|b)", "(ab)", r"\w", "a?", "b*", "a+", "(a|)", "b{1,2}"]
)


@UNHURRIED
@given(
    st.lists(PIECES, max_size=6), st.text(alphabet="abc", max_size=8), st.booleans(), st.booleans()
)
def test_where_python_has_the_same_syntax_it_gives_the_same_answer(
    pieces: list[str], text: str, start: bool, end: bool
) -> None:
    wanted = ("^" if start else "") + "".join(pieces) + ("$" if end else "")
    assert found(text, wanted) is (re.search(wanted, text) is not None)
