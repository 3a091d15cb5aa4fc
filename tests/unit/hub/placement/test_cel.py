"""Expressions mean what CEL means by them; what OCM answers is compared in test_golden."""

from typing import Any

import pytest

from berthmaster.hub.placement.cel.question import CelAnswer, ClusterInput, Question
from tests.unit.hub.placement.objects import language

DOCUMENT: dict[str, Any] = {
    "metadata": {"name": "c1", "labels": {"a": "b", "1": "x"}},
    "status": {
        "clusterClaims": [{"name": "id", "value": "v1.30.2"}],
        "allocatable": {"cpu": "10", "memory": "16Gi"},
        "n": 4,
    },
}
CLUSTER = ClusterInput(DOCUMENT, {"gpus": [("free", 7), ("calm", -3)]}, [0])


def ask(*texts: str, predicates: tuple[tuple[int, ...], ...] = ((0,),)) -> CelAnswer:
    cluster = ClusterInput(CLUSTER.document, CLUSTER.scores, list(range(len(predicates))))
    return language().answer(Question(texts, predicates, [cluster]))


@pytest.mark.parametrize(
    "text",
    [
        'managedCluster.metadata.labels["1"] == "x"',
        "has(managedCluster.metadata.labels) && !has(managedCluster.metadata.labels.zz)",
        'managedCluster.scores("gpus").exists(s, s.name == "free" && s.value > 5)',
        'managedCluster.scores("gpus").filter(s, s.name == "calm").all(s, s.value < 0)',
        'managedCluster.status.clusterClaims.map(c, c.value)[0] == "v1.30.2"',
        "managedCluster.status.n > 3.5",
        "true || 1/managedCluster.status.zero == 1",
        "!" * 50 + "true",
        "7 / 2 == 3 && -7 / 2 == -3 && -7 % 3 == -1 && 7 % -3 == 1",
        "[0,1].exists(x, 1/x == 1) && ![0,1].all(x, 1/x == 2)",
        '"v1.30.1".matches("^v1\\\\.[0-9]+") && matches("abc", "b+")',
        "string(3) == '3' && int('12') == 12 && double('1.5') == 1.5 && int(-2.9) == -2",
        "string(1.5) == '1.5' && string(1234567.5) == '1.2345675e+06' && string(2.0) == '2'",
        "int(timestamp('1970-01-01T00:01:00Z')) == 60 && int(duration('2s')) == 2000000000",
        "timestamp(60) == timestamp('1970-01-01T00:01:00Z') && duration('-1.5s') < duration('0')",
        "timestamp(timestamp(60)) == timestamp(60) && duration(duration('1m')) == duration('60s')",
        "string(b'abc') == 'abc' && string(7u) == '7' && bool('T') && !bool('false')",
        "'a,b,c'.split(',') == ['a','b','c'] && 'a,b,c'.split(',', 2) == ['a', 'b,c']",
        "'abc'.split('', 2) == ['a', 'bc'] && 'abc'.split('', 0) == []",
        "['a','b'].join('-') == 'a-b' && ['a','b'].join() == 'ab'",
        "'hello'.substring(1, 3) == 'el' && 'hello'.substring(3) == 'lo'",
        "'hello'.indexOf('l') == 2 && 'hello'.lastIndexOf('l') == 3",
        "'hello'.indexOf('l', 3) == 3 && 'hello'.lastIndexOf('l', 2) == 2",
        "'aXbX'.replace('X', '-') == 'a-b-' && 'aXbX'.replace('X', '-', 1) == 'a-bX'",
        "' a '.trim() == 'a' && 'aB'.lowerAscii() == 'ab' && 'aB'.upperAscii() == 'AB'",
        "'abc'.charAt(1) == 'b' && 'abc'.reverse() == 'cba' && strings.quote('a') == '\"a\"'",
        "'%s is %d, %.2f%%'.format(['a', 2.5, 1.0]) == 'a is 2.5, 1.00%'",
        "'aabcab'.find('b+c?') == 'bc' && 'x'.find('y') == ''",
        "'a1b2'.findAll('[0-9]') == ['1','2']",
        "'a1b2'.findAll('[0-9]', 1) == ['1'] && 'ab'.findAll('') == ['', '', '']",
        "[3,1,2].min() == 1 && [3,1,2].max() == 3 && [1,2].sum() == 3 && [1,2,2].isSorted()",
        "[1,2,1].indexOf(1) == 0 && [1,2,1].lastIndexOf(1) == 2 && [[1], [2]].indexOf([2]) == 1",
        "[{'a': 1}].indexOf({'a': 1}) == 0 && [1, 2].indexOf(3) == -1",
        '\'{"a": [1, {"b": "c"}]}\'.parseJSON().a[1].b == "c"',
        "quantity(managedCluster.status.allocatable.memory).isGreaterThan(quantity('8Gi'))",
        "quantity('1').add(quantity('1k')).asInteger() == 1001 && sign(quantity('1k')) == 1",
        "quantity('1000m') == quantity('1') && !quantity('1000m').isInteger()",
        "semver('1.30.2').isGreaterThan(semver('1.9.10')) && semver('1.2.3+a') == semver('1.2.3')",
        "type(quantity('1')) != type(semver('1.0.0')) && type(1) == int",
        "optional.of(1).hasValue() && managedCluster.?nothing.orValue(3) == 3",
        "google.protobuf.Int64Value{value: 1} == 1 && 1u == 1u && b'a' == b'a'",
    ],
)
def test_answer_selects_where_the_expression_holds(text: str) -> None:
    answer = ask(text)
    assert (answer.refused, answer.why) == ({}, {})
    assert answer.clusters[0].selected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "at character "),
        ("1 +", "at character 4: Syntax error"),
        ("true &&\nfoo(1)", "at line 2, character 4: undeclared reference to 'foo'"),
        ("managed.name == 'x'", "undeclared reference to 'managed.name'"),
        ("managedCluster.foo()", "undeclared reference to 'foo'"),
        ("managedCluster.scores()", "undeclared reference to 'scores'"),
        ("size(1, 2) == 1", "undeclared reference to 'size'"),
        ("'a' + 1 == 2", "no matching overload for '_+_' applied to '(string, int)'"),
        ("1 == 1.0", "no matching overload for '_==_' applied to '(int, double)'"),
        ("int(true) == 1", "no matching overload for 'int' applied to '(bool)'"),
        ("quantity('1') == '1'", "applied to '(kubernetes.Quantity, string)'"),
        ("[1].indexOf('a') == 0", "no matching overload for 'indexOf'"),
        ("string(duration('1s')) == '1s'", "no matching overload for 'string'"),
        ("has(managedCluster.metadata.managedFields)", "managedFields are not kept here"),
        ("1 + 1", "the expression is a int, not true or false"),
        ("managedCluster", "the expression is a map<string, dyn>, not"),
        ("'abc", "Syntax error"),
        ("9223372036854775808 > 1", "at character"),
        ("1e400 > 1.0", "a number beyond a double"),
        ("'a'.matches('\\\\C')", "half a character"),
        ("(" * 600 + "true" + ")" * 600, "recursion limit exceeded"),
        (" + ".join(["1"] * 500) + " == 500", "recursion depth"),
        ("true" + " " * 9000, "9004 characters, at most 8192"),
    ],
)
def test_answer_refuses_what_is_wrong_for_every_cluster(text: str, problem: str) -> None:
    answer = ask("true", text)
    assert list(answer.refused) == [1]
    assert problem in answer.refused[1]


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("managedCluster.metadata.missing == 1", False),
        ("managedCluster.status.clusterClaims[7].name == 'x'", False),
        ("managedCluster.scores('other').exists(s, true)", False),
        ("int(managedCluster.metadata.name) == 1", False),
        ("managedCluster.metadata.name.parseJSON() == 1", False),
        ("'[' .parseJSON() == 1", False),
        ("managedCluster.status.n / (managedCluster.status.n - 4) == 1", False),
        ("managedCluster.status.n * 9223372036854775807 > 0", False),
        ("[managedCluster.status.n, 9223372036854775807].sum() > 0", False),
        ("timestamp(managedCluster.metadata.name) > timestamp(0)", False),
        ("duration(managedCluster.metadata.name) > duration('0')", False),
        ("dyn(null)", False),
        ("managedCluster.metadata.name.matches(managedCluster.metadata.name + '[')", True),
        ("managedCluster.metadata.name + 1 == 2", True),
        ("managedCluster.metadata.name", True),
        ("managedCluster.metadata.name && true", True),
        ("managedCluster.metadata.name.foo == 1", True),
        ("managedCluster.metadata.name[0] == 'c'", True),
        ("managedCluster.metadata.labels.a.all(x, true)", True),
        ("managedCluster.status.n.contains('4')", True),
        ("managedCluster.status.n.trim() == '4'", True),
        ("managedCluster.status.n ? true : false", True),
        ("managedCluster.metadata in managedCluster.metadata.name", True),
        ("managedCluster.scores(managedCluster.status.n).exists(s, true)", True),
        ("{'metadata': {'name': 'c2'}}.scores('gpus').size() == 2", True),
        ("[1, managedCluster.metadata.name].isSorted()", True),
        ("[1, managedCluster.metadata.name].sum() == 1", True),
        ("quantity(managedCluster.status.n).isInteger()", True),
        ("quantity('1').add(managedCluster.metadata.name).isInteger()", True),
        ("'%s %s'.format(['a']) == ''", True),
        ("'%d'.format(['a']) == ''", True),
        ("'%z'.format([1]) == ''", True),
    ],
)
def test_answer_tells_no_value_from_a_wrong_type(text: str, wrong: bool) -> None:
    answer = ask(text)
    [cluster] = answer.clusters
    assert (cluster.selected, cluster.wrong, cluster.meant) == (False, int(wrong), int(not wrong))
    assert bool(answer.why) == wrong


TEN = "[1,2,3,4,5,6,7,8,9,10]"


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"{TEN}.all({name}, " for name in "abcdefgh")
        + "managedCluster.metadata.name != ''))))))))",
        " && ".join(["[" + ",".join(["1"] * 200) + f"].all(x, {TEN}.all(y, x > 0))"] * 8),
    ],
    ids=["nested loops", "loops in a row"],
)
def test_answer_refuses_loops_without_an_end(text: str) -> None:
    assert "costs more" in ask("true", text, predicates=((0, 1),)).refused[1]


def test_answer_refuses_the_dearest_expression_beyond_the_budget(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("berthmaster.hub.placement.cel.question.FREE_S", -1.0)
    dear = f"{TEN}.all(a, {TEN}.all(b, a > 0))"
    answer = ask("true", dear, "1 == 1", predicates=((0, 1, 2),))
    assert list(answer.refused) == [1]


def test_answer_asks_no_further_than_the_outcome_depends_on() -> None:
    wrong = "managedCluster.metadata.name + 1 == 2"
    one = ask("false", wrong, "true", predicates=((0, 1), (2,), (1,))).clusters[0]
    assert (one.selected, one.meant, one.wrong) == (True, 0b101, 0)


def test_answer_names_the_scores_that_were_looked_up() -> None:
    text = "managedCluster.scores('gpus').size() == 0 || managedCluster.scores('none').size() == 0"
    assert ask(text).clusters[0].looked == ("gpus", "none")


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_parse_json_takes_bounded_levels_and_characters(opening: str, closing: str) -> None:
    def selected(text: str) -> bool:
        document = {"metadata": {"name": "c1"}, "text": text}
        cluster = ClusterInput(document, {}, [0])
        question = Question(("managedCluster.text.parseJSON() != 1.0",), ((0,),), [cluster])
        return language().answer(question).clusters[0].selected

    assert selected(opening * 49 + "1" + closing * 49)
    assert not selected(opening * 50 + "1" + closing * 50)
    assert selected('"' + "a" * (65_536 - 2) + '"')
    assert not selected('"' + "a" * (65_536 - 1) + '"')


def test_every_pattern_is_matched_in_linear_time() -> None:
    for wanted in ("(a+)+b", "(a*)*b", "(.*)(.*)(.*)(.*)b"):
        document = {"metadata": {"name": "c1"}, "text": "a" * 50_000}
        text = (
            f"managedCluster.text.matches('{wanted}') || managedCluster.text.find('{wanted}') != ''"
        )
        answer = language().answer(Question((text,), ((0,),), [ClusterInput(document, {}, [0])]))
        assert answer.refused == {}
        assert not answer.clusters[0].selected
