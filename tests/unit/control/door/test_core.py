"""What the door answers: pages, cursors, resets, and facts that it takes or not."""

import itertools
from typing import Any

import msgspec
import pytest

from berthmaster.control.door.core import door as core_module
from berthmaster.control.door.core.bounds import Limits
from berthmaster.control.door.core.door import (
    FIGURES_BURST_S,
    Door,
    PassedFigures,
    decoded,
    reported,
)
from berthmaster.control.door.settings import DoorSettings
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.door import (
    MAX_AGENT_BYTES,
    FactsReply,
    FactsRequest,
    PodLogEnd,
    ReportedFact,
    ReportOutcome,
    StoryRequest,
    TakeReply,
    TakeRequest,
    TellRequest,
)
from berthmaster.lib.messages.families import DOOR_REPLIES, JOB_FIGURES, TELL_REQUESTS, encode
from berthmaster.lib.messages.fleet import (
    Amounts,
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    FleetFact,
    NodeReport,
    Stamp,
)
from berthmaster.lib.messages.telemetry import HostUse, JobFigures
from berthmaster.lib.messages.workload import Evicted
from berthmaster.lib.nats import subjects
from tests.unit.control.door.test_log_view import RED, Log, claimed, head, succeeded

LIMITS = Limits(
    max_facts=3,
    max_fact_bytes=1024,
    facts_bytes_per_s=1000,
    facts_burst_bytes=10_000,
    telemetry_per_s=2,
)


def door(log: Log | None = None) -> Door:
    made = Door(LIMITS)
    made.log_name, made.fleet_name = "log-1", "fleet-1"
    if log is not None:
        made.log = log.view
    return made


def taken(answer: Any) -> TakeReply:
    reply = DOOR_REPLIES.decode(encode(answer))
    assert isinstance(reply, TakeReply)
    return reply


def told(answer: Any) -> FactsReply:
    reply = DOOR_REPLIES.decode(encode(answer))
    assert isinstance(reply, FactsReply)
    return reply


def report(node: str = "n1", *, cluster: str = RED, counter: int = 1, fill: str = "") -> NodeReport:
    return NodeReport(
        cluster=cluster,
        node=node,
        stamp=Stamp(epoch=7, counter=counter),
        observed_at_s=0.0,
        labels={"fill": fill} if fill else {},
        allocatable=Amounts(cpu_milli=1000),
    )


def put(core: Door, sequence: int, fact: FleetFact, subject: str) -> tuple[str, str] | None:
    return core.fleet.take(subject, sequence, 50.0, encode(fact))


def test_from_nothing_all_that_is_open_is_listed_and_then_what_happens() -> None:
    log = Log()
    log.place(RED, "early")
    log.view.caught_up()
    core = door(log)
    listed = taken(core.take(RED, TakeRequest()))
    assert (listed.reset, listed.next, listed.cursor) == (True, "", log.last)
    assert [hint.event.id for hint in listed.hints] == ["early"]
    behind = TakeRequest(after=listed.cursor, log="log-1")
    assert core.take(RED, behind) is None
    assert taken(core.nothing(behind)) == TakeReply(cursor=log.last, log="log-1")
    log.place(RED, "late")
    news = taken(core.take(RED, behind))
    assert (news.reset, news.cursor) == (False, log.last)
    assert [hint.event.id for hint in news.hints] == ["late"]


def test_a_cursor_of_another_log_or_of_before_the_window_begins_anew() -> None:
    log = Log()
    for name in ("a", "b"):
        log.place(RED, name)
    log.view.caught_up()
    core = door(log)
    for request in (
        TakeRequest(after=log.last, log="log-0"),
        TakeRequest(after=1, log="log-1"),
        TakeRequest(after=log.last),
    ):
        listed = taken(core.take(RED, request))
        assert (listed.reset, len(listed.hints)) == (True, 2), request


def test_an_empty_log_has_a_cursor_to_wait_behind() -> None:
    core = door(Log())
    core.log.caught_up()
    listed = taken(core.take(RED, TakeRequest()))
    assert (listed.reset, listed.cursor, listed.hints) == (True, 1, ())
    assert core.take(RED, TakeRequest(after=1, log="log-1")) is None


def test_a_cursor_that_another_replica_gave_is_waited_for() -> None:
    log = Log()
    log.view.caught_up()
    core = door(log)
    ahead = TakeRequest(after=3, log="log-1")
    assert core.take(RED, ahead) is None
    assert core.nothing(ahead).cursor == 3
    page = TakeRequest(after=3, log="log-1", page="acme/a")
    assert core.take(RED, page) is None
    waited = core.nothing(page)
    assert (waited.cursor, waited.next, waited.reset) == (3, "acme/a", True)
    assert core.story(RED, StoryRequest(tenant="acme", id="train", after=3)) is None
    log.place(RED)
    log.place(RED, "next")
    assert core.story(RED, StoryRequest(tenant="acme", id="train", after=3)) is not None
    assert taken(core.take(RED, ahead)).cursor == log.last


def test_facts_are_told_behind_a_cursor_by_kind() -> None:
    core = door()
    assert put(core, 5, report("a"), subjects.node(RED, "a")) == (RED, "node")
    score = ClusterScore(
        cluster=RED, stamp=Stamp(epoch=9, counter=1), freshness="fresh", input_age_s=0.0
    )
    put(core, 6, score, subjects.score(RED))
    put(core, 7, report("b"), subjects.node(RED, "b"))
    put(core, 8, report("c", cluster="blue"), subjects.node("blue", "c"))
    first = told(core.facts(RED, FactsRequest(kinds=("node",))))
    assert (first.reset, first.cursor, first.epoch, first.more) == (True, 7, 9, False)
    assert [one.sequence for one in first.facts] == [5, 7]
    assert [one.sequence for one in told(core.facts(RED, FactsRequest())).facts] == [5, 6, 7]
    behind = FactsRequest(kinds=("node",), after=7, log="fleet-1")
    assert core.facts(RED, behind) is None
    assert put(core, 9, report("a", counter=2), subjects.node(RED, "a")) == (RED, "node")
    assert [one.sequence for one in told(core.facts(RED, behind)).facts] == [9]
    # Facts never go back, and another stream's cursor means nothing.
    assert put(core, 10, report("a", counter=1), subjects.node(RED, "a")) is None
    other = told(core.facts(RED, FactsRequest(after=9, log="fleet-0")))
    assert (other.reset, [one.sequence for one in other.facts]) == (True, [6, 7, 9])


def test_a_page_of_facts_goes_on_where_the_last_ended() -> None:
    core = Door(Limits())
    for number in range(1, 301):
        node = f"n{number}"
        put(core, number, report(node, fill="x" * 2000), subjects.node(RED, node))
    seen: list[int] = []
    request = FactsRequest()
    while True:
        page = told(core.facts(RED, request))
        seen += [one.sequence for one in page.facts]
        request = FactsRequest(after=page.cursor, log=page.log)
        if not page.more:
            break
    assert seen == list(range(1, 301))


def test_what_a_new_list_does_not_name_is_gone() -> None:
    core = door()
    put(core, 1, report("a"), subjects.node(RED, "a"))
    put(core, 2, report("b"), subjects.node(RED, "b"))
    core.fleet.start_listing(False)
    put(core, 2, report("b"), subjects.node(RED, "b"))
    core.fleet.end_listing()
    assert [one.sequence for one in told(core.facts(RED, FactsRequest())).facts] == [2]


def test_a_fact_is_taken_under_the_subject_that_it_says_and_for_its_own_cluster() -> None:
    core = door()
    fact = report()
    assert core.admit(RED, ReportedFact(fact=fact), 0.0) == (subjects.node(RED, "n1"), encode(fact))
    other = core.admit("blue", ReportedFact(fact=fact), 0.0)
    assert not isinstance(other, tuple)
    assert (other.result, other.why) == ("forbidden", "cluster: it is another cluster's fact")
    unnamed = core.admit(RED, ReportedFact(fact=report("")), 0.0)
    assert not isinstance(unnamed, tuple)
    assert unnamed.result == "forbidden"


def test_facts_are_bounded_in_size_count_and_rate() -> None:
    core = door()

    def result(fact: NodeReport, now_s: float = 0.0) -> str:
        found = core.admit(RED, ReportedFact(fact=fact), now_s)
        return "admitted" if isinstance(found, tuple) else found.result

    assert result(report(fill="x" * 1024)) == "too_large"
    for number in range(3):
        put(core, number + 1, report(f"n{number}"), subjects.node(RED, f"n{number}"))
    assert result(report("n3")) == "too_many"
    assert result(report("n2", counter=2)) == "admitted"  # a newer value of one that is there
    results = [result(report("n1", counter=count)) for count in range(200)]
    assert results.count("unavailable") > 100
    assert result(report("n1"), 100.0) == "admitted"
    # Another cluster is not concerned.
    found = core.admit("blue", ReportedFact(fact=report(cluster="blue")), 0.0)
    assert isinstance(found, tuple)


def test_all_facts_of_a_cluster_together_are_bounded() -> None:
    core = Door(Limits(max_facts_bytes=1 << 20))
    for number in range(5):
        node = f"n{number}"
        put(core, number + 1, report(node, fill="x" * 209_000), subjects.node(RED, node))
    found = core.admit(RED, ReportedFact(fact=report("one-more", fill="x" * 10_000)), 0.0)
    assert not isinstance(found, tuple)
    assert found.result == "too_many"
    smaller = core.admit(RED, ReportedFact(fact=report("n1")), 0.0)
    assert isinstance(smaller, tuple)


def test_the_settings_are_those_limits() -> None:
    assert DoorSettings().limits == Limits()


def test_telemetry_is_passed_on_under_its_own_cluster_and_node_at_a_bounded_rate() -> None:
    core = door()
    good = b'{"type":"telemetry.node.v1","cluster":"red","node":"n 1","new":[]}'
    now_s = itertools.count(0.0, 10.0)
    assert core.telemetry(RED, good, next(now_s)) == "berth.telemetry.red.n=201"
    for wrong in (
        good.replace(b"red", b"blue"),
        b"{",
        b'{"cluster":"red","node":""}',
        good + b" " * 70_000,
        good.replace(b"[]", b'[],"epoch":%d' % (1 << 70)),
        good.replace(b"[]", b'[],"counter":-1'),
        good.replace(b"[]", b'[],"interval_s":1e300'),
    ):
        assert core.telemetry(RED, wrong, next(now_s)) == "", wrong[:80]
    at_s = next(now_s)
    assert core.telemetry(RED, good, at_s) != ""
    assert core.telemetry(RED, good, at_s) != ""
    assert core.telemetry(RED, good, at_s) == ""  # two a second
    assert core.telemetry(RED, good, at_s + 1) != ""


def evicted(after: int, cluster: str = RED, attempt: int = 1) -> Evicted:
    fields = head(after, by=f"executor/{cluster}", cluster=cluster, attempt=attempt)
    return Evicted(**fields, reason="node lost")


def figures(
    cluster: str = RED, id: str = "train", *, attempt: int = 1, ended: bool = False, **more: Any
) -> bytes:
    whose: dict[str, Any] = {"tenant": "acme", "id": id, "attempt": attempt} if id else {}
    told = JobFigures(
        cluster=cluster, epoch=1, counter=1, observed_at_s=1.0, ended=ended, **whose, **more
    )
    return encode(told)


def test_figures_are_passed_on_for_jobs_that_are_in_the_cluster_and_for_those_of_nobody() -> None:
    log = Log()
    log.place(RED)
    core = Door(Limits())
    core.log = log.view
    assert core.figures(RED, figures(), 0.0).subject == "berth.figures.acme.red.train"
    others = figures(id="", namespace="ml", kind="PyTorchJob", name="bert")
    assert core.figures(RED, others, 0.0).subject == "berth.figures.-.red.ml=2FPyTorchJob=2Fbert"
    for wrong in (
        figures("blue"),
        figures(id="other"),
        figures(id="other", ended=True),
        figures(attempt=2),
        figures(attempt=0, ended=True),
        b'{"type":"telemetry.job.v1","cluster":"red","tenant":"acme"}',
        b"[",
        figures() + b" " * 30_000,
        figures().replace(b'"epoch":1', b'"epoch":%d' % (1 << 70)),
        figures().replace(b'"epoch":1', b'"epoch":1,"window_s":1e300'),
        figures().replace(b'"epoch":1', b'"epoch":1,"use":{"measured":%d}' % (1 << 70)),
    ):
        assert core.figures(RED, wrong, 0.0).subject == "", wrong[:200]
    assert core.figures("blue", figures("blue"), 0.0).subject == ""
    assert core.figures("blue", figures("blue", ended=True), 0.0).subject == ""


def test_figures_lose_values_that_no_job_can_have() -> None:
    log = Log()
    log.place(RED)
    core = Door(Limits())
    core.log = log.view
    told = JOB_FIGURES.decode(figures())
    host = HostUse(pods=1, cpu_cores=1e9, memory_mib=100.0)
    passed = core.figures(RED, encode(msgspec.structs.replace(told, host=host)), 0.0)
    right = JOB_FIGURES.decode(passed.data)
    assert (passed.refused, right.host) == (1, HostUse(pods=1, memory_mib=100.0))
    assert core.figures(RED, figures(), 0.0).data == figures()


def test_figures_of_job_that_left_are_its_last_message() -> None:
    log = Log()
    log.place(RED)
    log.store(claimed(log.last))
    log.store(evicted(log.last))
    core = Door(Limits())
    core.log = log.view
    assert core.figures(RED, figures(), 0.0).subject == ""
    assert core.figures(RED, figures(ended=True), 0.0).subject != ""
    log.place("blue", attempt=2)
    assert core.figures(RED, figures(ended=True), 0.0).subject != ""
    assert core.figures(RED, figures(attempt=2, ended=True), 0.0).subject == ""
    assert core.figures("blue", figures("blue", attempt=2), 0.0).subject != ""
    assert core.figures("blue", figures("blue", attempt=1, ended=True), 0.0).subject == ""
    log.store(claimed(log.last, "blue", attempt=2))
    log.store(succeeded(log.last, "blue", attempt=2))
    assert core.figures("blue", figures("blue", attempt=2, ended=True), 0.0).subject != ""
    assert core.figures("blue", figures("blue", attempt=2), 0.0).subject == ""
    assert core.figures(RED, figures(attempt=2, ended=True), 0.0).subject == ""


def test_log_end_is_kept_for_the_attempt_of_its_cluster() -> None:
    log = Log()
    log.place(RED)
    core = Door(Limits())
    core.log = log.view

    def may_keep(cluster: str, id: str = "train", attempt: int = 1) -> bool:
        return core.may_keep_end(cluster, PodLogEnd(tenant="acme", id=id, attempt=attempt))

    assert may_keep(RED)
    assert not may_keep("blue")
    assert not may_keep(RED, attempt=2)
    assert not may_keep(RED, "other")
    log.store(claimed(log.last))
    log.store(succeeded(log.last))
    assert may_keep(RED)
    assert not may_keep("blue")


def test_tombstone_tells_which_cluster_had_the_job() -> None:
    log = Log()
    log.last = 7
    log.store(succeeded(7))
    assert log.view.had(RED, "acme/train", 1)
    assert not log.view.had("blue", "acme/train", 1)
    assert not log.view.has(RED, "acme/train", 1)


def test_cluster_bytes_are_rated_before_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    class Counting:
        def decode(self, data: bytes) -> object:
            read.append(len(data))
            raise msgspec.DecodeError

    for name in ("JOB_FIGURES", "_HEAD", "_READER"):
        monkeypatch.setattr(core_module, name, Counting())
    for passes, rate in (
        (Door.figures, "figures_bytes_per_s"),
        (Door.telemetry, "telemetry_bytes_per_s"),
        (Door.log_chunk, "logs_bytes_per_s"),
    ):
        core = Door(Limits()._replace(**{rate: 10_000}))
        read.clear()
        for _ in range(1000):
            assert passes(core, RED, b"x" * 5000, 0.0) in ("", PassedFigures("", b"", 0))
        assert sum(read) <= FIGURES_BURST_S * 10_000, rate
        read.clear()
        passes(core, "blue", b"x" * 5000, 0.0)
        assert read == [5000], rate


def test_requests_of_one_cluster_are_rated_by_their_bytes() -> None:
    core = Door(Limits()._replace(requests_bytes_per_s=1000, requests_burst_bytes=3000))
    assert [core.may_ask(RED, 1000, 0.0) for _ in range(4)] == [True, True, True, False]
    assert core.may_ask("blue", 1000, 0.0)
    assert core.may_ask(RED, 1000, 1.0)


def test_fact_beyond_bounds_is_refused_alone() -> None:
    good = encode(ReportedFact(fact=report()))
    odd = {
        "stamp.epoch": good.replace(b'"epoch":7', b'"epoch":%d' % (1 << 70)),
        "observed_at_s": good.replace(b'"observed_at_s":0.0', b'"observed_at_s":1e300'),
        "gpus[0].model": good.replace(
            b'"allocatable"',
            b'"gpus":[{"index":0,"uuid":"","model":"<b>H100</b>","memory_mib":1}],"allocatable"',
        ),
        "gpus[0].model ": good.replace(
            b'"allocatable"',
            b'"gpus":[{"index":0,"uuid":"","model":"%s","memory_mib":1}],"allocatable"'
            % (b"H" * 500),
        ),
        "allocatable.cpu_milli": good.replace(b'"cpu_milli":1000', b'"cpu_milli":%d' % (1 << 62)),
    }
    body = b'{"facts":[' + b",".join([good, *odd.values()]) + b"]}"
    found = reported(body)
    assert not isinstance(found, Refusal)
    assert found[0] == ReportedFact(fact=report())
    for field, outcome in zip(odd, found[1:], strict=True):
        assert isinstance(outcome, ReportOutcome)
        assert outcome.result == "forbidden"
        assert outcome.why.startswith(f"fact.{field.strip()} is "), outcome.why
    assert isinstance(reported(b'{"facts":[]}'), Refusal)
    assert isinstance(reported(b'{"facts":['), Refusal)


def test_dead_letters_are_rated() -> None:
    core = door()
    assert [core.may_bury(RED, 0.0) for _ in range(25)].count(True) == 20
    assert core.may_bury("blue", 0.0)
    assert core.may_bury(RED, 2.0)


@pytest.mark.parametrize(
    ("body", "code", "field"),
    [
        (b"{", "malformed", ""),
        (b'{"events":[]}', "invalid", "events"),
        (b'{"events":[{"type":"workload.submitted.v1"}]}', "invalid", "events[0].type"),
        (b'{"events":[{"type":"workload.placed.v1"}]}', "invalid", "events[0].type"),
        (b'{"events":[{"type":"workload.claimed.v1","tenant":7}]}', "invalid", "events[0].tenant"),
        (b" " * (MAX_AGENT_BYTES + 1), "too_large", ""),
        (b"\xff\xfe", "malformed", ""),
    ],
)
def test_what_cannot_be_read_is_answered_with_the_field(body: bytes, code: str, field: str) -> None:
    refusal = decoded(TellRequest, TELL_REQUESTS, body)
    assert isinstance(refusal, Refusal)
    assert (refusal.code, refusal.field) == (code, field)


def test_no_more_events_than_a_request_may_hold() -> None:
    many = TellRequest(events=(claimed(1),) * 201)
    refusal = decoded(TellRequest, TELL_REQUESTS, msgspec.json.encode(many))
    assert isinstance(refusal, Refusal)
    assert refusal.field == "events"


def test_a_sign_of_life_is_a_fact_like_others() -> None:
    core = door()
    alive = ClusterAlive(
        cluster=RED, stamp=Stamp(epoch=1, counter=1), observed_at_s=0.0, interval_s=1.0
    )
    found = core.admit(RED, ReportedFact(fact=alive), 0.0)
    assert found == (subjects.alive(RED), encode(alive))


def profile_of(cluster: str, uid: str, counter: int = 1, since_s: float = 0.0) -> ClusterProfile:
    return ClusterProfile(
        cluster=cluster,
        stamp=Stamp(epoch=1, counter=counter),
        observed_at_s=0.0,
        uid=uid,
        uid_since_s=since_s,
    )


def test_the_door_dates_a_uid_itself_and_keeps_the_date() -> None:
    core = door()
    sequence = 0

    def stored(cluster: str, uid: str, counter: int, now_s: float, since_s: float = 0.0) -> float:
        nonlocal sequence
        fact = profile_of(cluster, uid, counter, since_s)
        found = core.admit(cluster, ReportedFact(fact=fact), now_s)
        assert isinstance(found, tuple)
        sequence += 1
        core.fleet.take(found[0], sequence, now_s, found[1])
        made = core.fleet.profile(cluster)
        assert made is not None
        return made.uid_since_s

    assert stored(RED, "5c1e", 1, 10.0) == 10.0
    assert stored(RED, "5c1e", 2, 20.0, since_s=1.0) == 10.0
    # Another cluster's agent that claims to have been there before is not believed.
    assert stored("blue", "5c1e", 1, 30.0, since_s=1.0) == 30.0
    twins = core.fleet.twins
    assert (twins.first(RED), twins.first("blue")) == ("", RED)
    # A cluster that was made anew is another one, from then on.
    assert stored(RED, "77aa", 3, 40.0) == 40.0
    assert twins.first("blue") == ""
    assert stored(RED, "5c1e", 4, 50.0) == 50.0
    assert twins.first(RED) == "blue"
    assert stored(RED, "", 5, 60.0) == 0.0


def test_a_twin_whose_profile_is_no_more_is_none() -> None:
    core = door()
    for number, cluster in enumerate((RED, "blue"), start=1):
        fact = profile_of(cluster, "5c1e", since_s=float(number))
        put(core, number, fact, subjects.profile(cluster))
    assert core.fleet.twins.first("blue") == RED
    core.fleet.start_listing(False)
    fact = profile_of("blue", "5c1e", since_s=2.0)
    put(core, 3, fact, subjects.profile("blue"))
    core.fleet.end_listing()
    assert core.fleet.twins.first("blue") == ""
