"""Patterns mean what RE2 means by them, in time linear in the text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.placement.cel.errors import EvalError, TooCostly
from berthmaster.placement.cel.pattern import pattern
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
    ],
)
def test_what_matches_and_what_does_not(wanted: str, yes: str, no: str | None) -> None:
    assert found(yes, wanted)
    assert no is None or not found(no, wanted)


@pytest.mark.parametrize(
    ("wanted", "problem"),
    [
        ("(", "( without its )"),
        (")", ") without its ("),
        ("[a", "[ without its ]"),
        ("[b-a]", "no range from 'b' to 'a'"),
        ("*a", "* with nothing before it"),
        ("a**", "a repetition of a repetition"),
        ("a{3,2}", "the lower number first"),
        ("a{1000}", "from 0 to 200"),
        ("(a{100}){100}", "more than 1000 steps"),
        (r"\p{L}", r"\p is not offered"),
        (r"(a)\1", r"\1 is not offered"),
        ("[[:alpha:]]", "[[:…:]] is not offered"),
        ("(?=a)", "after (? only"),
        ("(?<=a)", "cannot look behind"),
        ("a\\", "\\ at its end"),
        ("(" * 50, "levels"),
        ("a" * 2000, "at most 1024"),
    ],
)
def test_what_is_no_pattern(wanted: str, problem: str) -> None:
    with pytest.raises(EvalError) as caught:
        pattern(wanted)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    "wanted", ["(a+)+b", "(a|aa)+b", "(a*)*b", "(.*)(.*)(.*)(.*)b", "((){200}){200}a{0}b$"]
)
def test_what_makes_others_go_back_and_forth_for_years_is_linear_here(wanted: str) -> None:
    short, long = Meter(10**6), Meter(10**6)
    assert not pattern(wanted).found_in("a" * 100, short)
    assert not pattern(wanted).found_in("a" * 1000, long)
    assert 10**6 - long.left <= 11 * (10**6 - short.left)


def test_a_match_is_paid_for() -> None:
    with pytest.raises(TooCostly):
        found("a" * 10_000, "(a|b|c|d|e|f)*g", steps=1000)


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
