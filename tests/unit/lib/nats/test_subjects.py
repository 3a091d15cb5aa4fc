"""Subjects: any text to one token and back, and nobody else spells one."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import berthmaster
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.subjects import MAX_TOKEN_CHARS, SubjectError, WorkloadSubject

NAMES = st.text(min_size=1, max_size=40)  # each character at most 12 in a token
TOKEN = re.compile(r"[A-Za-z0-9_=-]+\Z")
SOURCE = Path(berthmaster.__file__).parent


@given(NAMES)
def test_any_text_becomes_one_token_and_comes_back(name: str) -> None:
    token = subjects.token(name)
    assert TOKEN.match(token)  # so neither separator, wildcard, space nor control character
    assert token != subjects.NONE
    assert subjects.text(token) == name


@given(NAMES, NAMES)
def test_two_texts_never_share_a_token(one: str, other: str) -> None:
    assert (subjects.token(one) == subjects.token(other)) == (one == other)


@given(st.text(alphabet="=0123456789ABCDEFabcdef.-*> \n\xe9", max_size=12))
def test_a_token_that_is_not_how_its_text_is_spelled_is_refused(token: str) -> None:
    try:
        name = subjects.text(token)
    except SubjectError:
        return
    assert subjects.token(name) == token


@pytest.mark.parametrize(
    ("name", "token"),
    [
        ("train-7", "train-7"),
        ("A_b-3", "A_b-3"),
        ("-", "=2D"),
        ("--", "--"),
        ("a.b", "a=2Eb"),
        ("a b", "a=20b"),
        ("*", "=2A"),
        (">", "=3E"),
        ("a=2Eb", "a=3D2Eb"),
        ("a\n", "a=0A"),
        ("\0", "=00"),
        ("é", "=C3=A9"),
        ("🚢", "=F0=9F=9A=A2"),
        ("gpu-node.eu.example.com", "gpu-node=2Eeu=2Eexample=2Ecom"),
    ],
    ids=ascii,
)
def test_odd_names_have_these_tokens(name: str, token: str) -> None:
    assert subjects.token(name) == token
    assert subjects.text(token) == name


def test_the_longest_kubernetes_name_fits() -> None:
    name = ".".join(["a" * 62] * 4)[:253]
    assert len(name) == 251
    assert subjects.text(subjects.token(name)) == name
    assert subjects.token("a" * MAX_TOKEN_CHARS) == "a" * MAX_TOKEN_CHARS


@pytest.mark.parametrize(
    "name", ["", "a" * (MAX_TOKEN_CHARS + 1), "é" * 100, "\ud800"], ids=["empty", "long", "é", "�"]
)
def test_what_no_subject_can_hold_is_refused(name: str) -> None:
    with pytest.raises(SubjectError):
        subjects.token(name)


@pytest.mark.parametrize(
    "token",
    ["", "-", "=2d", "=61", "=FF", "=C3", "=", "=2", "a.b", "a b", "*", "é", "a\n", "=2Db" * 200],
    ids=ascii,
)
def test_tokens_that_we_do_not_write_are_refused(token: str) -> None:
    with pytest.raises(SubjectError):
        subjects.text(token)


@given(NAMES, NAMES, st.none() | NAMES)
def test_the_subject_of_an_event_says_whose_it_is(
    tenant: str, workload: str, cluster: str | None
) -> None:
    subject = subjects.workload_event(tenant, workload, "placed", cluster)
    assert subjects.parse_workload_event(subject) == WorkloadSubject(
        tenant, workload, "placed", cluster
    )
    assert matches(subjects.aggregate(tenant, workload), subject)
    assert matches(subjects.workload_events_of("placed"), subject)
    assert matches(subjects.workloads_of(tenant), subject)
    assert matches(subjects.ALL_WORKLOADS, subject)
    assert matches(subjects.aggregate_kind(tenant, workload, "placed"), subject)


@given(NAMES, NAMES, NAMES, NAMES)
def test_the_guard_of_a_workload_covers_its_events_and_no_other(
    tenant: str, workload: str, other_tenant: str, other: str
) -> None:
    guard = subjects.aggregate(tenant, workload)
    subject = subjects.workload_event(other_tenant, other, "claimed", "c1")
    assert matches(guard, subject) == ((tenant, workload) == (other_tenant, other))


@given(NAMES, NAMES)
def test_subjects_match_their_readers(cluster: str, node: str) -> None:
    for subject in (
        subjects.alive(cluster),
        subjects.profile(cluster),
        subjects.score(cluster),
        subjects.node(cluster, node),
    ):
        assert matches(subjects.ALL_FLEET, subject)
        assert matches(subjects.fleet_of(cluster), subject)
    assert matches(subjects.fleet_facts("alive"), subjects.alive(cluster))
    assert matches(subjects.node_facts(), subjects.node(cluster, node))
    assert subjects.parse_node(subjects.node(cluster, node)) == (cluster, node)
    assert subjects.parse_node(subjects.alive(cluster)) is None
    assert matches(subjects.telemetry_of(), subjects.telemetry(cluster, node))
    assert matches(subjects.telemetry_of(cluster), subjects.telemetry(cluster, node))
    assert subjects.parse_telemetry(subjects.telemetry(cluster, node)) == (cluster, node)
    assert matches(subjects.ALL_CONTROL, subjects.cordon(cluster, node))
    assert subjects.cordon(cluster, None) != subjects.cordon(cluster, "-")
    assert matches(subjects.api_of_all_tenants("get"), subjects.api(cluster, "get"))
    assert subjects.parse_api(subjects.api(cluster, "get")) == (cluster, "get")


@pytest.mark.parametrize(
    "subject",
    [
        "berth.workload.a.b.placed",
        "berth.workload.a.b.placed.c.d",
        "berth.decision.a.b.placed.c",
        "other.workload.a.b.placed.c",
        "berth.workload.-.b.placed.c",
        "berth.workload.a.=62.placed.c",
        "",
    ],
)
def test_a_subject_that_is_not_an_events_is_refused(subject: str) -> None:
    with pytest.raises(SubjectError):
        subjects.parse_workload_event(subject)


@given(st.none() | NAMES, NAMES, NAMES)
def test_figures_of_a_job_are_found_by_tenant_and_by_cluster(
    tenant: str | None, cluster: str, job: str
) -> None:
    subject = subjects.job_figures(tenant, cluster, job)
    assert subjects.parse_job_figures(subject) == (tenant, cluster, job)
    assert matches(subjects.job_figures_of(), subject)
    assert matches(subjects.job_figures_of(None, cluster), subject)
    if tenant is not None:
        assert matches(subjects.job_figures_of(tenant, cluster), subject)
    for other in (f"{subject}.more", subject.replace("figures", "workload"), "berth.figures.a.b"):
        with pytest.raises(SubjectError):
            subjects.parse_job_figures(other)


@pytest.mark.parametrize(
    "subject", ["berth.api.a", "berth.api.a.b.c", "berth.apis.a.get", "berth.api.-.get"]
)
def test_a_subject_that_is_not_of_the_api_is_refused(subject: str) -> None:
    with pytest.raises(SubjectError):
        subjects.parse_api(subject)


def test_what_shares_a_stream_is_told_apart_by_subject() -> None:
    event = subjects.workload_event("decision", "a", "placed", "c1")
    assert [subjects.is_decision(s) for s in (subjects.decision("all"), event)] == [True, False]
    archived = subjects.archive("t", "a"), subjects.archived_decision("all", 1)
    assert [subjects.is_archived_story(s) for s in archived] == [True, False]


def test_a_facts_subject_says_what_it_is_about() -> None:
    for subject, parts in (
        (subjects.profile("east"), ("east", "profile", ())),
        (subjects.node("a.b", "n.1"), ("a.b", "node", ("n.1",))),
        (subjects.copy_report("east", "team", "w.x"), ("east", "copy", ("team", "w.x"))),
    ):
        assert subjects.parse_fact(subject) == parts
    for subject in ("berth.fleet.east", subjects.queue_setting("q"), "berth.fleet.a=2e.alive"):
        with pytest.raises(SubjectError):
            subjects.parse_fact(subject)


def test_only_a_copy_reports_subject_names_a_copy() -> None:
    copied = subjects.copy_report("east.1", "team", "w.x")
    assert subjects.parse_copy(copied) == ("east.1", "team", "w.x")
    for other in (
        subjects.node("east.1", "n.1"),
        f"{copied}.more",
        copied.replace("fleet", "workload"),
        copied.replace("copy", "node"),
    ):
        assert subjects.parse_copy(other) is None


def test_a_leases_dots_are_levels() -> None:
    assert subjects.lease("resolver.my cell") == "berth.lease.resolver.my=20cell"
    # A name with dots of its own is one level: what a user of that name may renew.
    one_level = f"inventory.{subjects.token('east.example')}"
    assert subjects.lease(one_level) == "berth.lease.inventory.east=2Eexample"
    with pytest.raises(SubjectError):
        subjects.lease("resolver.")


def test_nobody_else_spells_a_subject() -> None:
    spelled = [
        f"{path.relative_to(SOURCE)}:{line}: {text[:60]!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path.relative_to(SOURCE).as_posix() not in SPELLERS
        for line, text in texts_in(path.read_text())
        if FAMILY.search(text)
    ]
    assert spelled == []


# permissions.py and claims.py list patterns for the server, to be read beside them; the tests of
# tests/bus run every service behind them, so one that has drifted is found.
SPELLERS = {"lib/nats/subjects.py", "lib/access/permissions.py", "lib/access/claims.py"}
FAMILY = re.compile(
    r"\bberth\.(workload|decision|fleet|telemetry|control|api|operator|archive|dead|lease)\b"
)


def texts_in(source: str) -> Iterator[tuple[int, str]]:
    """Every text of a module that is not a docstring."""
    tree = ast.parse(source)
    words = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in words:
            yield node.lineno, node.value


def test_the_search_for_spelled_subjects_finds_them() -> None:
    source = '"""berth.fleet.> in words"""\nwhere = f"berth.fleet.{cluster}.alive"\n'
    assert [line for line, text in texts_in(source) if FAMILY.search(text)] == [2]


def matches(pattern: str, subject: str) -> bool:
    wanted, found = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted.pop()
        if len(found) <= len(wanted):
            return False
        found = found[: len(wanted)]
    return len(wanted) == len(found) and all(
        w in ("*", f) for w, f in zip(wanted, found, strict=True)
    )
