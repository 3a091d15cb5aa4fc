"""Expressions mean what CEL means by them, and cost what they cost.

What they mean was compared, expression by expression, with Google's own C++ implementation.
"""

import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.placement.cel.errors import CelError, EvalError, Malformed, TooCostly, WrongType
from berthmaster.placement.cel.program import Program, compiled
from berthmaster.placement.cel.values import Meter
from tests.unit.placement.objects import UNHURRIED

NAMES = frozenset({"managedCluster"})
METHODS = frozenset({"scores"})
CLUSTER: dict[str, Any] = {
    "metadata": {"name": "c1", "labels": {"a": "b", "1": "x"}},
    "status": {
        "clusterClaims": [{"name": "id", "value": "v1.30.2"}],
        "allocatable": {"cpu": "10", "memory": "16Gi"},
        "n": 4,
    },
}


def scores(meter: Meter, cluster: Any, resource: Any) -> list[dict[str, Any]]:
    if resource != "gpus":
        raise EvalError(f"no AddOnPlacementScore {resource!r}")
    return [{"name": "free", "value": 7}, {"name": "calm", "value": -3}]


def program(text: str) -> Program:
    return compiled(text, NAMES, METHODS)


def holds(text: str, steps: int = 100_000) -> bool:
    return program(text).holds({"managedCluster": CLUSTER}, Meter(steps), {"scores": scores})


@pytest.mark.parametrize(
    "text",
    [
        'managedCluster.metadata.labels["1"] == "x"',
        'managedCluster.metadata.labels.a == "b"',
        'managedCluster.metadata["name"] == "c1"',
        '"labels" in managedCluster.metadata',
        "has(managedCluster.metadata.labels) && !has(managedCluster.metadata.labels.zz)",
        'managedCluster.scores("gpus").exists(s, s.name == "free" && s.value > 5)',
        'managedCluster.scores("gpus").filter(s, s.name == "calm").all(s, s.value < 0)',
        'managedCluster.status.clusterClaims.exists(c, c.name == "id" && c.value.startsWith("v"))',
        'managedCluster.status.clusterClaims.map(c, c.value)[0] == "v1.30.2"',
        "managedCluster.status.n > 3.5",
        'managedCluster.metadata.labels.all(k, k != "q")',
        "size(managedCluster.metadata.labels) == 2",
        "!" * 50 + "true",
        "1 + 2 * 3 == 7 && (1 + 2) * 3 == 9",
        "7 / 2 == 3 && -7 / 2 == -3 && -7 % 3 == -1 && 7 % -3 == 1",
        "1 == dyn(1.0) && dyn(1.5) < 2 && 1.0 / 0.0 > 1000.0",
        "1 - -1 == 2 && --3 == 3 && !!true && -(-3) == 3",
        "!(1 > 2) ? true : false",
        "true || 1/managedCluster.status.zero == 1",
        "1/managedCluster.status.zero == 1 || true",
        "!(managedCluster.missing == 1 && false)",
        "[1,2,3].exists_one(x, x > 2) && [1,2,3].map(x, x > 1, x * 2) == [4, 6]",
        "[0,1].exists(x, 1/x == 1) && ![0,1].all(x, 1/x == 2)",
        '{"a": {"b": [1,2]}}["a"].b[1] == 2 && {"a": 1} == {"a": dyn(1.0)}',
        "null == null && [1, 'a', null, true] == [1.0, 'a', null, true]",
        '"v1.30.1".matches("^v1\\\\.[0-9]+") && matches("abc", "b+")',
        r'r"\d" == "\\d" && "\u00e9" == "é" && "\x41\101" == "AA"',
        'size("héllo") == 5 && "abc".contains("b") && "abc".endsWith("c")',
        '"abc".charAt(1) == "b" && "abc".charAt(3) == "" && "abc".reverse() == "cba"',
        "string(3) == '3' && int('12') == 12 && double('1.5') == 1.5 && int(-2.9) == -2",
        "bool('true') && string(1.5) == '1.5' && string(true) == 'true' && string(2.0) == '2'",
        "!(1 in managedCluster.metadata) && int('+7') == 7 && int('-0012') == -12",
        "0x1F == 31 && 1e3 == 1000.0 && .5 == 0.5 // a comment",
        "'''a\nb''' == 'a\\nb'",
        "'a,b,c'.split(',') == ['a','b','c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c']",
        "['a','b'].join('-') == 'a-b' && ['a','b'].join() == 'ab' && ''.split(',', 0) == []",
        "'hello'.substring(1, 3) == 'el' && 'hello'.indexOf('l') == 2",
        "'hello'.lastIndexOf('l') == 3 && 'hello'.indexOf('l', 3) == 3 && 'x'.indexOf('y') == -1",
        "'aXbX'.replace('X', '-') == 'a-b-' && 'aXbX'.replace('X', '-', 1) == 'a-bX'",
        "' a '.trim() == 'a' && 'aB'.lowerAscii() == 'ab' && 'aB'.upperAscii() == 'AB'",
        "[3,1,2].min() == 1 && [3,1,2].max() == 3 && [1,2].sum() == 3 && [1,2,2].isSorted()",
        "[1,2,1].indexOf(1) == 0 && [1,2,1].lastIndexOf(1) == 2",
        '\'{"a": [1, {"b": "c"}]}\'.parseJSON().a[1].b == "c"',
        "quantity(managedCluster.status.allocatable.memory).isGreaterThan(quantity('8Gi'))",
        "quantity('1').add(quantity('1k')).asInteger() == 1001 && sign(quantity('1k')) == 1",
        "isQuantity('1Ki') && !isQuantity('x') && quantity('1').compareTo(quantity('2')) == -1",
        "quantity('-1').isLessThan(quantity('0')) && quantity('1.5').asApproximateFloat() == 1.5",
        "semver('1.30.2').isGreaterThan(semver('1.9.10')) && isSemver('1.0.0') && !isSemver('v1')",
        "semver('1.0.0-rc.2').isLessThan(semver('1.0.0')) && semver('1.2.3').minor() == 2",
        "semver('1.0.0-rc.2').compareTo(semver('1.0.0-rc.10')) == -1",
        "dyn(1) == 1",
    ],
)
def test_what_is_true_of_a_cluster(text: str) -> None:
    assert holds(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "a value expected, not the end"),
        ("1 +", "a value expected, not the end"),
        ("(true", "')' expected, not the end"),
        ("true)", "')' where the expression should end"),
        ("true false", "'false' where the expression should end"),
        ("managed.name == 'x'", "nothing is named 'managed'; there is managedCluster"),
        ("foo(1)", "no function 'foo' is offered here"),
        ("managedCluster.foo()", "no method 'foo' is offered here"),
        ("managedCluster.scores()", "scores takes 1, not 0 values"),
        ("size(1, 2) == 1", "size takes 1, not 2 values"),
        ("has(managedCluster)", "has takes one field"),
        ("[1].all(1, true)", "begins with the name of a variable"),
        ("[1].all(x)", "takes a variable and an expression"),
        ("x == 1", "nothing is named 'x'"),
        ("[1].all(x, true) && x == 1", "nothing is named 'x'"),
        ("'a' + 1 == 2", "no + of string and int"),
        ("1 + 1", "it is a int, not true or false"),
        ("managedCluster", "it is a map, not true or false"),
        ("[managedCluster]", "it is a list, not true or false"),
        ("'abc", "a string that is not closed"),
        ("'a\nb'", "a string that is not closed"),
        (r"'\q' == ''", "no escape sequence"),
        (r"'\ud800' == ''", "no character has this code"),
        ("b'a' == b'a'", "bytes are not offered"),
        ("1u == 1u", "unsigned numbers are not offered"),
        ("managedCluster.?a == 1", "optional values are not offered"),
        ("9223372036854775808 > 1", "beyond 64 bits"),
        ("a := 1", "'=' has no meaning here"),
        ("package == 1", "'package' is a reserved word"),
        ("'a'.matches('(')", "missing ): ("),
        ("managedCluster.metadata.name.matches('[')", "missing ]: ["),
        ("sign(quantity('x')) == 1", "no quantity"),
        ("1 / 0 == 1 && managedCluster.x", "division by zero"),
        ("has(managedCluster.metadata.managedFields)", "managedFields are not kept here"),
        ("1 == 1.0", "no == of int and double"),
        ("'1' in [1]", "no in of string and list(int)"),
        ("'a'.startsWith(1)", "no startsWith(int) of a string"),
        ("int(true) == 1", "no int(bool)"),
        ("timestamp('x') == timestamp('y')", "no time such as"),
        ("duration('1d') > duration('1s')", "no duration such as"),
        ("'%d'.format(['a']) == ''", "format: %d of a string"),
        ("'%s %s'.format(['a']) == ''", "format: 2 clauses for 1 values"),
        ("'%z'.format(['a']) == ''", "format: '%z' is none of"),
        ("managedCluster.metadata.name.find('(') == ''", "missing ): ("),
        ("'a'.matches('\\\\C')", "half a character"),
        ("[1].all(x, x)", "all of what is a int"),
        ("1 && true", "&& of a int"),
        ("'a'.all(x, true)", "all of a string"),
        ("1.a == 1", "a int has no field 'a'"),
        ("{null: 2} == {}", "only strings, numbers and bools are keys here"),
        ("(" * 60 + "true" + ")" * 60, "levels"),
        ("!" * 60 + "true", "signs in a row"),
        (" + ".join(["1"] * 500) + " == 500", "levels"),
        ("true" + " " * 9000, "at most 8192"),
        ("\x00", "has no meaning here"),
    ],
)
def test_what_is_wrong_for_every_cluster_is_found_when_it_is_read(text: str, problem: str) -> None:
    with pytest.raises(Malformed) as caught:
        program(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("managedCluster.metadata.missing == 1", EvalError),
        ("managedCluster.metadata.labels['missing'] == 'x'", EvalError),
        ("managedCluster.status.clusterClaims[7].name == 'x'", EvalError),
        ("managedCluster.scores('other').exists(s, true)", EvalError),
        ("int(managedCluster.metadata.name) == 1", EvalError),
        ("managedCluster.metadata.name.parseJSON() == 1", EvalError),
        ("managedCluster.metadata.name.matches(managedCluster.metadata.name + '[')", EvalError),
        ("managedCluster.status.n / (managedCluster.status.n - 4) == 1", EvalError),
        ("managedCluster.status.n * 9223372036854775807 > 0", EvalError),
        ("managedCluster.metadata.name + 1 == 2", WrongType),
        ("managedCluster.metadata.name", WrongType),
        ("managedCluster.metadata.name && true", WrongType),
        ("!managedCluster.metadata.name", WrongType),
        ("managedCluster.metadata.name.foo == 1", WrongType),
        ("managedCluster.metadata.name[0] == 'c'", WrongType),
        ("managedCluster.metadata < 1", WrongType),
        ("managedCluster.metadata.labels.a.all(x, true)", WrongType),
        ("managedCluster.status.n.contains('4')", WrongType),
        ("managedCluster.status.n ? true : false", WrongType),
        ("managedCluster.metadata in managedCluster.metadata.name", WrongType),
        ("int(dyn(true && managedCluster.metadata.name != '')) == 1", WrongType),
        ("managedCluster.scores(managedCluster.status.n).exists(s, true)", EvalError),
    ],
)
def test_what_has_no_value_for_a_cluster(text: str, kind: type[EvalError]) -> None:
    with pytest.raises(kind) as caught:
        holds(text)
    assert type(caught.value) is kind


TEN = "[1,2,3,4,5,6,7,8,9,10]"


@pytest.mark.parametrize(
    "text",
    [
        # A hundred million looks at one another …
        "".join(f"{TEN}.all({name}, " for name in "abcdefgh")
        + "managedCluster.metadata.name != ''))))))))",
        # … a string of ten gigabytes …
        "[managedCluster.metadata.name]" + ".map(x, x+x+x+x+x+x+x+x+x+x)" * 9 + ".exists(s, true)",
        # … lists that double …
        "[managedCluster.metadata.labels.map(k, k)]" + ".map(x, x+x+x+x)" * 12 + ".all(s, true)",
        # … a replacement that grows …
        "[managedCluster.metadata.name]"
        + ".map(x, x.replace('', 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'))" * 6
        + ".all(s, true)",
        # … texts that are written into one another, or quoted again and again …
        "[managedCluster.metadata.name]"
        + ".map(x, '%s%s%s%s%s%s%s%s%s%s'.format([x,x,x,x,x,x,x,x,x,x]))" * 9
        + ".exists(s, true)",
        "[managedCluster.metadata.name + '\"']"
        + ".map(x, strings.quote(x + x + x))" * 14
        + ".exists(s, true)",
        # … all that is found of nothing in a long text …
        "['aaaaaaaaaaaaaaaaaaaa']"
        + ".map(x, x+x+x+x+x+x+x+x)" * 3
        + ".all(x, x.findAll('').size() > 0)",
        "['a']" + ".map(x, x+x+x+x+x+x+x+x)" * 5 + ".all(x, x.find('a{1,900}c') == '')",
        # … comparisons of what is large.
        "[managedCluster.metadata.labels.map(k, k)]"
        + ".map(x, [x,x,x,x,x,x])" * 8
        + ".all(x, x == x)",
    ],
)
def test_what_costs_too_much_is_stopped_and_costs_no_more_than_it_may(text: str) -> None:
    meter = Meter(200_000)
    with pytest.raises(TooCostly):
        program(text).holds({"managedCluster": CLUSTER}, meter, {"scores": scores})


def test_a_long_expression_is_read_quickly() -> None:
    # Each list has a type that is to be found out, and each call tries all that it could be.
    text = " && ".join(["[] + [[]] == []"] * 400)
    began_s = time.thread_time()
    assert not holds(text)
    assert time.thread_time() - began_s < 2


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("1 == 1", 4),
        ("L == L", 21),
        ("L + L == L", 47),
        ("L < L", 21),
        ("L.contains('b')", 17),
        ("L.substring(10) == L", 32),
        ("L.substring(10, 20) == L", 17),
        ("L.indexOf('b') == 1", 20),
        ("L.indexOf('b', 3) == 1", 21),
        ("L.replace('a', 'bb') == L", 55),
        ("L.replace('a', 'bb', 2) == L", 36),
        ("L.split('') == []", 119),
        ("L.split('b', 2) == []", 120),
        ("[L, L].join('-') == L", 58),
        ("L.reverse() == L", 33),
        ("L.trim() == L", 44),
        ("L.lowerAscii() == L", 44),
        ("strings.quote(L) == L", 44),
        ("'%s'.format([L]) == L", 58),
        ("'%x'.format([L]) == L", 77),
        ("'%s'.format([[L, {'a': L}]]) == L", 129),
        ("L.charAt(3) == L", 14),
        ("'[1,[2,{\"a\":3}]]'.parseJSON() == 1", 13),
        ("managedCluster.scores('gpus') == []", 15),
        ("[3,1,2].max() == 3", 23),
        ("[1,2].sum() == 3", 19),
        ("[1,2,3].isSorted()", 20),
        ("[1,2,3].indexOf(3) == 2", 21),
        ("{'a': 1, 2: 3} == {}", 66),
        ("{'a': 1} == {'a': 1}", 67),
        ("3 in [1,2,3]", 18),
        ("timestamp('2026-01-01T00:00:00Z').getHours() == 0", 8),
        ("duration('1h') > duration('1m')", 10),
        ("quantity('1').isLessThan(quantity('2'))", 8),
        ("semver('1.0.0') == semver('1.0.0')", 8),
        ("type(L) == string", 9),
        ("string(L) == L", 23),
        ("int('12') == 12", 6),
        ("double('1.5') == 1.5", 6),
        ("bool('t')", 3),
        ("size(L) == 3", 9),
        ("[1,2,3].all(x, x > 0)", 29),
        ("[1,2,3].filter(x, x > 1) == []", 41),
        ("[1,2,3].map(x, x + 1) == []", 38),
        ("true ? true : false", 3),
        ("!true", 2),
        ("-L.size() == 1", 10),
        ("[1,2] + [3] == []", 40),
    ],
)
def test_each_step_has_its_price(text: str, steps: int) -> None:
    """``L`` stands for a label of 100 characters; ten of them cost a step."""
    asked = program(re.sub(r"\bL\b", "managedCluster.metadata.labels.long", text))
    long = {"metadata": {"name": "c1", "labels": {"long": "a" * 100}}}
    meter = Meter(1_000)
    asked.holds({"managedCluster": long}, meter, {"scores": scores})
    assert 1_000 - meter.left == steps


def test_json_has_so_many_characters() -> None:
    asked = program("managedCluster.text.parseJSON() != 1")
    fits = '"' + "a" * (65_536 - 2) + '"'
    assert asked.holds({"managedCluster": {"text": fits}}, Meter(100_000), {})
    with pytest.raises(EvalError, match="JSON of 65537 characters, at most 65536"):
        asked.holds({"managedCluster": {"text": fits + " "}}, Meter(100_000), {})


@UNHURRIED
@given(st.text(alphabet="managedCluster.()[]{}'\"\\&|!=<>+-*/%?:, 0123456789xrub\n", max_size=60))
def test_any_text_is_an_expression_or_is_refused(text: str) -> None:
    try:
        found = program(text)
    except Malformed:
        return
    try:
        assert found.holds({"managedCluster": CLUSTER}, Meter(10_000), {"scores": scores}) in (
            True,
            False,
        )
    except CelError:
        pass


@UNHURRIED
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3)
        ),
    )
)
def test_every_value_of_json_is_equal_to_itself(value: Any) -> None:
    names = {"managedCluster": {"v": value}}
    same = compiled("managedCluster.v == managedCluster.v", NAMES, METHODS)
    assert same.holds(names, Meter(10_000), {})
    in_list = compiled("managedCluster.v in [1000, managedCluster.v]", NAMES, METHODS)
    assert in_list.holds(names, Meter(10_000), {})


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_json_has_so_many_levels(opening: str, closing: str) -> None:
    def nested(levels: int) -> str:
        return f"'{opening * levels}1{closing * levels}'.parseJSON() != 1"

    assert holds(nested(49))
    with pytest.raises(CelError, match="JSON of more than 50 levels"):
        holds(nested(50))
