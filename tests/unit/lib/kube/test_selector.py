"""Label selectors mean what Kubernetes means by them."""

import pytest

from berthmaster.lib.kube.selector import (
    Operator,
    Requirement,
    Selector,
    SelectorError,
    parse_selector,
    selector_of,
)

LABELS = {"tier": "gold", "gpu": "nvidia-tesla-t4", "count": "8", "empty": "", "a.b/c": "d"}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("", True),
        ("  ", True),
        ("tier", True),
        ("!tier", False),
        ("missing", False),
        ("!missing", True),
        ("tier=gold", True),
        ("tier==gold", True),
        (" tier = gold ", True),
        ("tier=silver", False),
        ("tier!=silver", True),
        ("tier!=gold", False),
        ("missing!=gold", True),
        ("tier in (gold,silver)", True),
        ("tier in ( silver , bronze )", False),
        ("missing in (gold)", False),
        ("tier notin (gold)", False),
        ("tier notin (silver)", True),
        ("missing notin (gold)", True),
        ("empty=", True),
        ("empty in (,x)", True),
        ("missing=", False),
        ("count>7", True),
        ("count>8", False),
        ("count<9", True),
        ("tier>1", False),
        ("missing<1", False),
        ("a.b/c=d", True),
        ("tier=gold,gpu in (nvidia-tesla-t4,x),!missing,count>1", True),
        ("tier=gold,gpu=other", False),
        ("in=x", False),
    ],
)
def test_a_text_selects_as_kubectl_would(text: str, matches: bool) -> None:
    assert parse_selector(text).matches(LABELS) is matches


@pytest.mark.parametrize(
    ("text", "part", "reason"),
    [
        ("a=b,", "''", "a comma too many"),
        ("a=b,,c", "''", "a comma too many"),
        ("a=b,tier in gold", "'tier in gold'", "need values in parentheses"),
        ("tier in (a", "'tier in (a'", "need values in parentheses"),
        ("x>many", "'x>many'", "> needs a whole number, not 'many'"),
        ("a b", "'a b'", "none of a, !a, a=b"),
        ("a=b=c", "'a=b=c'", "none of a, !a, a=b"),
        ("!a=b", "'!a=b'", "none of a, !a, a=b"),
        ("=b", "'=b'", ""),
        ("-a=b", "'-a=b'", "'-a' is no label"),
        ("a=-b", "'a=-b'", "'-b' is no label value"),
        ("UPPER.case/x=b", "'UPPER.case/x=b'", "no DNS name before its /"),
        ("a in (b c)", "'a in (b c)'", "'c' cannot stand between the values"),
        (f"a={'x' * 64}", "", "at most 63"),
        ("ä=b", "'ä=b'", "is no label"),
    ],
)
def test_bad_selector_names_part_and_reason(text: str, part: str, reason: str) -> None:
    with pytest.raises(SelectorError) as caught:
        parse_selector(text)
    assert part in str(caught.value)
    assert reason in str(caught.value)


def test_a_selector_longer_than_any_is_refused_unread() -> None:
    with pytest.raises(SelectorError, match="at most 16384"):
        parse_selector("a," * 10_000)


def test_a_text_means_its_requirements_and_these_can_be_written_again() -> None:
    text = "a=b,c in (d,e),!f,g,h!=i,j notin (k,l),m>1,n<2"
    assert parse_selector(text) == Selector(
        (
            Requirement("a", Operator.IN, ("b",)),
            Requirement("c", Operator.IN, ("d", "e")),
            Requirement("f", Operator.DOES_NOT_EXIST),
            Requirement("g", Operator.EXISTS),
            Requirement("h", Operator.NOT_IN, ("i",)),
            Requirement("j", Operator.NOT_IN, ("k", "l")),
            Requirement("m", Operator.GREATER, ("1",)),
            Requirement("n", Operator.LESS, ("2",)),
        )
    )
    assert str(parse_selector(text)) == text


def test_the_fields_of_an_object_mean_the_same_as_the_text() -> None:
    fields = selector_of(
        {"tier": "gold"}, [("gpu", "In", ["x", "nvidia-tesla-t4"]), ("missing", "DoesNotExist", ())]
    )
    assert fields == parse_selector("tier=gold,gpu in (nvidia-tesla-t4,x),!missing")
    assert fields.matches(LABELS)
    assert selector_of({}, ()).matches({})


@pytest.mark.parametrize(
    ("labels", "expressions", "reason"),
    [
        ({"-a": "b"}, (), "matchLabels: '-a' is no label"),
        ({"a": "b c"}, (), "matchLabels 'a': 'b c' is no label value"),
        ({}, [("a", "Gt", ["1"])], "operator 'Gt', right are In, NotIn, Exists, DoesNotExist"),
        ({}, [("a", "In", [])], "In needs at least one value"),
        ({}, [("a", "Exists", ["b"])], "Exists needs no values"),
        ({}, [("a", "NotIn", ["ä"])], "'ä' is no label value"),
        ({}, [("", "Exists", [])], "is no label"),
    ],
)
def test_fields_that_cannot_be_used_are_named(
    labels: dict[str, str], expressions: list[tuple[str, str, list[str]]], reason: str
) -> None:
    with pytest.raises(SelectorError) as caught:
        selector_of(labels, expressions)
    assert reason in str(caught.value)
