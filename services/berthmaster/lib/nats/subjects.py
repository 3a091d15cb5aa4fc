"""Every subject of the system, built and parsed in one place.

Names are arbitrary, and Kubernetes names may contain dots. ``token`` turns any text into one NATS
token, and ``text`` turns the token back. Example: ``a.b`` becomes ``a=2Eb``. No other module spells
a subject.
"""

import re
import zlib
from collections.abc import Iterable
from typing import Final, NamedTuple

_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+\Z")
_ESCAPE: Final = re.compile(r"=([0-9A-F]{2})")
_LANE: Final = re.compile(r"\bberth\.lane\.\d+\.")
_UNSAFE: Final = re.compile(rb"[^A-Za-z0-9_-]")

NONE: Final = "-"  # token for a missing cluster or node
MAX_TOKEN_CHARS: Final = 512  # a 253-byte name (Kubernetes' limit), half of it escaped

ALL_WORKLOADS: Final = "berth.workload.>"
# A stream republishes its messages: berth.x.y as berth.stored.x.y.
ALL_STORED: Final = "berth.stored.>"
ALL_EVENTS: Final = "berth.event.>"  # how other accounts import stored messages of ALL_WORKLOADS
ALL_DECISIONS: Final = "berth.decision.>"
ALL_FLEET: Final = "berth.fleet.>"
ALL_CONTROL: Final = "berth.control.>"
ALL_ARCHIVE: Final = "berth.archive.>"
ALL_STORIES: Final = "berth.archive.workload.>"
# The server keeps every subject of a stream in memory, some 300 bytes each. A year's event
# histories share these subjects, some hundreds each when the archive's 16 GiB are full.
ARCHIVE_BUCKETS: Final = 16_384
ALL_DEAD: Final = "berth.dead.>"
ALL_LOG_ENDS: Final = "berth.log_end.>"
ALL_LEASES: Final = "berth.lease.>"
ALL_ASSIGNMENTS: Final = "berth.assign.>"
ALL_INQUIRIES: Final = "berth.inquiry.*"
SNAPSHOT_PARTS: Final = ("$O.SNAPSHOTS.C.>", "$O.SNAPSHOTS.M.>")
ALL_LOG_MARKS: Final = "berth.lease.log.>"
# Not under ``berth.``: these requests contain tokens, and operators receive all of ``berth.``.
LOGIN: Final = "login.token"


# Requests to JetStream, as the account STREAMS names them. Every account imports these names by
# default, with the result "JetStream not enabled". So other accounts import them under another
# name.
JETSTREAM: Final = "$JS.API."
IMPORTED_JETSTREAM: Final = "JS.API."
# Answered by a stream or a consumer, so an import under the original name works.
ANSWERED_BY_STREAMS: Final = ("DIRECT.GET.", "CONSUMER.MSG.NEXT.")

# All messages of a connection are handled in order, so a flooding client delays the others. So
# requests of tenants and clusters come by several connections, and each client always by the same
# one. The server writes the lane's number into the subject.
LANES: Final = 16


def jetstream(request: str, *, imported: bool) -> str:
    """Return the subject of a request to JetStream. ``imported``: from an account other than
    STREAMS.
    """
    own_name = not imported or request.startswith(ANSWERED_BY_STREAMS)
    return f"{JETSTREAM if own_name else IMPORTED_JETSTREAM}{request}"


def covers(wider: str, narrower: str) -> bool:
    """Return whether the first pattern matches everything that the second matches."""
    some, others = wider.split("."), narrower.split(".")
    for at, token_ in enumerate(some):
        if token_ == ">":
            return len(others) > at
        if at >= len(others) or others[at] == ">" or token_ not in ("*", others[at]):
            return False
    return len(some) == len(others)


def among(patterns: Iterable[str], subject: str) -> bool:
    """Return whether any of the patterns covers the subject or pattern."""
    return any(covers(each, subject) for each in patterns)


class SubjectError(ValueError):
    """The text cannot be a token, or the subject is none of Berthmaster's."""


def token(text: str) -> str:
    """Return one NATS token for any non-empty text: special characters become ``=XX`` of UTF-8.

    The text ``-`` is escaped too, since the token means "none". Raises SubjectError.
    """
    if _PLAIN.match(text) and text != NONE and len(text) <= MAX_TOKEN_CHARS:
        return text
    if not text:
        raise SubjectError("an empty name cannot stand in a subject")
    try:
        raw = text.encode()
    except UnicodeEncodeError as error:
        raise SubjectError(f"the name {text!r} is not valid Unicode") from error
    escaped = "=2D" if text == NONE else _UNSAFE.sub(lambda m: b"=%02X" % m[0][0], raw).decode()
    if len(escaped) > MAX_TOKEN_CHARS:
        raise SubjectError(f"the name {text[:40]!r}… is longer than a subject may hold")
    return escaped


def text(token_: str) -> str:
    """Return the text of a token made by ``token``. Raises SubjectError.

    Any other spelling is refused. So a workload has exactly one aggregate, and a tenant exactly one
    prefix for permissions.
    """
    if _PLAIN.match(token_) and token_ != NONE and len(token_) <= MAX_TOKEN_CHARS:
        return token_
    try:
        raw = _ESCAPE.sub(lambda m: chr(int(m[1], 16)), token_).encode("latin-1")
        name = raw.decode()
        spelled = token(name)
    except ValueError as error:
        raise SubjectError(f"{token_[:40]!r} is not an encoded name") from error
    if spelled != token_:
        raise SubjectError(f"{token_[:40]!r} is not how {name[:40]!r} is spelled in a subject")
    return name


# Workloads


class WorkloadSubject(NamedTuple):
    tenant: str
    id: str
    kind: str
    cluster: str | None


def workload_event(tenant: str, workload_id: str, kind: str, cluster: str | None) -> str:
    place = token(cluster) if cluster else NONE
    return f"berth.workload.{token(tenant)}.{token(workload_id)}.{kind}.{place}"


def parse_workload_event(subject: str) -> WorkloadSubject:
    """Parse the subject of a workload event. Raises SubjectError."""
    parts = subject.split(".")
    if len(parts) != 6 or parts[0] != "berth" or parts[1] != "workload":
        raise SubjectError(f"{subject!r} is not the subject of a workload event")
    cluster = None if parts[5] == NONE else text(parts[5])
    return WorkloadSubject(text(parts[2]), text(parts[3]), parts[4], cluster)


def aggregate(tenant: str, workload_id: str) -> str:
    """Return the filter of all events of a workload, also the only guard string.

    Replicated servers compare guards as strings. A guarded append must use this exact spelling, so
    no other function builds the string.
    """
    return f"berth.workload.{token(tenant)}.{token(workload_id)}.>"


def aggregate_kind(tenant: str, workload_id: str, kind: str) -> str:
    """Return the filter of a kind of event of a workload, in any cluster. Never a guard string."""
    return f"berth.workload.{token(tenant)}.{token(workload_id)}.{kind}.*"


def workload_events_of(kind: str) -> str:
    """Return the filter of one kind of event of every workload."""
    return f"berth.workload.*.*.{kind}.*"


def workloads_of(tenant: str) -> str:
    return f"berth.workload.{token(tenant)}.>"


def stored(subject: str) -> str:
    """Return where the stream republishes stored messages of this subject or filter."""
    return f"berth.stored.{subject.removeprefix('berth.')}"


def stored_event(tenant: str, workload_id: str, kind: str, cluster: str | None) -> str:
    """Return where a tenant receives a stored event of a workload."""
    return imported(stored(workload_event(tenant, workload_id, kind, cluster)))


def offered(event: str) -> str:
    """Return the subject that an account imports under a part of ALL_EVENTS: the inverse of
    ``imported``.
    """
    return f"berth.stored.workload.{event.removeprefix('berth.event.')}"


def imported(stored_events: str) -> str:
    """Return the name of stored events of workloads in accounts of tenants and watchers (read-only
    users).
    """
    return f"berth.event.{stored_events.removeprefix('berth.stored.workload.')}"


def decision(cell: str) -> str:
    """Return the subject of a cell's decisions, also the guard string."""
    return f"berth.decision.{token(cell)}"


def is_decision(subject: str) -> bool:
    """Return whether a message of the stream WORKLOADS is a decision, not a workload's event."""
    return subject.startswith("berth.decision.")


# Telemetry and fleet facts


def telemetry(cluster: str, node: str) -> str:
    return f"berth.telemetry.{token(cluster)}.{token(node)}"


def cell_of(decision_subject: str) -> str:
    """Return the cell of a decision's subject."""
    return text(decision_subject.removeprefix("berth.decision."))


def quality(cell: str) -> str:
    return f"berth.quality.{token(cell)}"


def quality_of_all() -> str:
    """Return the filter of every cell's decision quality."""
    return "berth.quality.*"


def telemetry_of(cluster: str | None = None) -> str:
    """Return the filter of a cluster's telemetry; None = all clusters."""
    return f"berth.telemetry.{token(cluster)}.*" if cluster else "berth.telemetry.*.*"


def parse_telemetry(subject: str) -> tuple[str, str]:
    """Return (cluster, node) of a telemetry subject. Raises SubjectError."""
    parts = subject.split(".")
    if len(parts) != 4 or parts[:2] != ["berth", "telemetry"]:
        raise SubjectError(f"{subject!r} is not a telemetry subject")
    return text(parts[2]), text(parts[3])


def job_figures(tenant: str | None, cluster: str, job: str) -> str:
    """Return the subject of a job's usage metrics in a cluster. Without a tenant, the job is
    unmanaged.
    """
    return f"berth.figures.{token(tenant) if tenant else NONE}.{token(cluster)}.{token(job)}"


def job_figures_of(tenant: str | None = None, cluster: str | None = None) -> str:
    """Return the filter of usage metrics: of a tenant's jobs, of a cluster's, or of all."""
    whose = token(tenant) if tenant else "*"
    return f"berth.figures.{whose}.{token(cluster) if cluster else '*'}.*"


def parse_job_figures(subject: str) -> tuple[str | None, str, str]:
    """Return (tenant, cluster, job) of a subject of usage metrics. Raises SubjectError."""
    parts = subject.split(".")
    if len(parts) != 5 or parts[:2] != ["berth", "figures"]:
        raise SubjectError(f"{subject!r} is not the subject of a job's figures")
    return None if parts[2] == NONE else text(parts[2]), text(parts[3]), text(parts[4])


def alive(cluster: str) -> str:
    return f"berth.fleet.{token(cluster)}.alive"


def profile(cluster: str) -> str:
    return f"berth.fleet.{token(cluster)}.profile"


def score(cluster: str) -> str:
    return f"berth.fleet.{token(cluster)}.score"


def node(cluster: str, node_: str) -> str:
    return f"berth.fleet.{token(cluster)}.node.{token(node_)}"


def membership(cluster: str) -> str:
    return f"berth.fleet.{token(cluster)}.membership"


def queue_report(cluster: str, queue: str) -> str:
    """Return the subject of a Kueue ClusterQueue of the cluster."""
    return f"berth.fleet.{token(cluster)}.queue.{token(queue)}"


def copy_report(cluster: str, namespace: str, workload: str) -> str:
    """Return the subject of a Kueue Workload that MultiKueue has copied to the cluster."""
    return f"berth.fleet.{token(cluster)}.copy.{token(namespace)}.{token(workload)}"


def parse_copy(subject: str) -> tuple[str, str, str] | None:
    """Return (cluster, namespace, Workload) of a copy report's subject; None for other facts.
    Raises SubjectError.
    """
    parts = subject.split(".")
    if len(parts) != 6 or parts[:2] != ["berth", "fleet"] or parts[3] != "copy":
        return None
    return text(parts[2]), text(parts[4]), text(parts[5])


def fleet_facts(kind: str) -> str:
    """Return the filter of one kind of fact (alive, profile, score) of every cluster."""
    return f"berth.fleet.*.{kind}"


def node_facts() -> str:
    """Return the filter of the reports of every node of every cluster."""
    return "berth.fleet.*.node.*"


def parse_node(subject: str) -> tuple[str, str] | None:
    """Return (cluster, node) of a node report's subject; None for other facts. Raises
    SubjectError.
    """
    parts = subject.split(".")
    if len(parts) != 5 or parts[:2] != ["berth", "fleet"] or parts[3] != "node":
        return None
    return text(parts[2]), text(parts[4])


def parse_fact(subject: str) -> tuple[str, str, tuple[str, ...]]:
    """Return (cluster, kind, names) of a fact about the fleet. Raises SubjectError."""
    parts = subject.split(".")
    if len(parts) < 4 or parts[:2] != ["berth", "fleet"]:
        raise SubjectError(f"{subject!r} is not the subject of a fact about the fleet")
    return text(parts[2]), parts[3], tuple(text(part) for part in parts[4:])


def fleet_of(cluster: str) -> str:
    return f"berth.fleet.{token(cluster)}.>"


# Control facts


def queue_setting(queue: str) -> str:
    return f"berth.control.queue.{token(queue)}"


def runtime_setting(runtime: str) -> str:
    return f"berth.control.runtime.{token(runtime)}"


def cordon(cluster: str, node_: str | None) -> str:
    """Return the subject of the cordon of a cluster, or of one node."""
    return f"berth.control.cordon.{token(cluster)}.{token(node_) if node_ else NONE}"


def gpu_cordon(cluster: str, node_: str, gpu: str) -> str:
    """Return the subject of a GPU's cordon. ``gpu``: the GPU's index."""
    return f"berth.control.gpu.{token(cluster)}.{token(node_)}.{token(gpu)}"


def lost(cluster: str) -> str:
    return f"berth.control.lost.{token(cluster)}"


# Requests


def api(tenant: str, verb: str) -> str:
    """Return where a tenant sends requests."""
    return f"berth.api.{token(tenant)}.{verb}"


def api_of_all_tenants(verb: str) -> str:
    """Return where a service listens for one verb."""
    return f"berth.api.*.{verb}"


def parse_api(subject: str) -> tuple[str, str]:
    """Return (tenant, verb) of an API subject. Raises SubjectError."""
    parts = subject.split(".")
    if len(parts) != 4 or parts[:2] != ["berth", "api"]:
        raise SubjectError(f"{subject!r} is not an API subject")
    return text(parts[2]), parts[3]


def asker(subject: str) -> str:
    """Return the client of a request's subject: a tenant, or "" for operators."""
    parts = subject.split(".")
    return parts[2] if parts[1] == "api" else ""


def kinds_in_lanes(names: Iterable[str]) -> list[str]:
    """Return the kinds of requests by lanes among the subjects: "api", "agent"."""
    return sorted({name.split(".")[1] for name in names} & {"api", "agent"})


def kind_and_verb(subject: str) -> tuple[str, str]:
    """Return the client's kind ("api", "agent", "operator") and the verb of a request's subject."""
    parts = subject.split(".")
    return parts[1], parts[-1]


def lane(number: int, kind: str) -> str:
    """Return where a service listens for requests of one lane."""
    return f"berth.lane.{number}.{kind}.*.*"


def without_lanes(text: str) -> str:
    """Return a server's text with the subjects of requests in place of those of lanes."""
    return _LANE.sub("berth.", text)


def lane_of_subject(subject: str) -> str:
    """Return the server's mapping of the subject of one verb of all tenants or clusters."""
    berth, kind, _, verb = subject.split(".")
    return f"{berth}.lane.{{{{partition({LANES},1)}}}}.{kind}.{{{{wildcard(1)}}}}.{verb}"


def operator(verb: str) -> str:
    """Return where operators send requests."""
    return f"berth.operator.{verb}"


# Agents of worker clusters


def agent(cluster: str, verb: str) -> str:
    """Return where a cluster's agent sends requests to the door (agent API)."""
    return f"berth.agent.{token(cluster)}.{verb}"


def agent_of_all_clusters(verb: str) -> str:
    """Return where the door listens for one verb."""
    return f"berth.agent.*.{verb}"


def parse_agent(subject: str) -> tuple[str, str]:
    """Return (cluster, verb) of an agent's request. Raises SubjectError."""
    parts = subject.split(".")
    if len(parts) != 4 or parts[:2] != ["berth", "agent"]:
        raise SubjectError(f"{subject!r} is no request of an agent")
    return text(parts[2]), parts[3]


def assign(cluster: str) -> str:
    """Return where the door wakes a cluster's agent to fetch updates."""
    return f"berth.assign.{token(cluster)}.news"


def assign_logs(cluster: str) -> str:
    """Return where the gateway requests log lines from a cluster's agent."""
    return f"berth.assign.{token(cluster)}.logs"


def inquiry(cluster: str) -> str:
    """Return where `berth recover`, through the door, asks a cluster's agent which attempts the
    agent holds.
    """
    return f"berth.inquiry.{token(cluster)}"


def parse_inquiry(subject: str) -> str:
    """Return the cluster of an inquiry's subject. Raises SubjectError."""
    parts = subject.split(".")
    if len(parts) != 3 or parts[:2] != ["berth", "inquiry"]:
        raise SubjectError(f"{subject!r} is not the subject of an inquiry")
    return text(parts[2])


def held(cluster: str) -> str:
    """Return where the door forwards an agent's answers to inquiries."""
    return f"berth.held.{token(cluster)}"


def held_of_all_clusters() -> str:
    """Return where `berth recover` listens for the answers."""
    return "berth.held.*"


def log_chunks(cluster: str, reader: str) -> str:
    """Return where the door forwards log chunks of a cluster's agent."""
    return f"berth.logs.{token(cluster)}.{token(reader)}"


def log_chunks_for(reader: str) -> str:
    """Return the filter of log chunks of all clusters for one reader."""
    return f"berth.logs.*.{token(reader)}"


def parse_log_chunks(subject: str) -> tuple[str, str]:
    """Return (cluster, reader) of a log chunk's subject. Raises SubjectError."""
    parts = subject.split(".")
    if len(parts) != 4 or parts[:2] != ["berth", "logs"]:
        raise SubjectError(f"{subject!r} is not the subject of a piece of a log")
    return text(parts[2]), text(parts[3])


# Records


def log_end(tenant: str, workload_id: str, attempt: int, cluster: str, pod: int) -> str:
    """Return the subject of the stored end of a pod's log."""
    names = ".".join(token(name) for name in (tenant, workload_id))
    return f"berth.log_end.{names}.{attempt}.{token(cluster)}.{pod}"


def archive(tenant: str, workload_id: str) -> str:
    """Return the bucket with the archived event history of an ended workload: see
    ARCHIVE_BUCKETS.
    """
    return archived_stories(tenant, zlib.crc32(workload_id.encode()) % ARCHIVE_BUCKETS)


def archived_stories(tenant: str, bucket: int) -> str:
    """Return one bucket of a tenant's archived event histories."""
    return f"berth.archive.workload.{token(tenant)}.{bucket}"


def is_archived_story(subject: str) -> bool:
    """Return whether a message of the stream ARCHIVE is a workload's event history."""
    return subject.startswith("berth.archive.workload.")


def archived_decision(cell: str, number: int) -> str:
    """Return the bucket with an archived decision."""
    return archived_decisions(cell, number % ARCHIVE_BUCKETS)


def archived_decisions(cell: str, bucket: int) -> str:
    """Return one bucket of a cell's archived decisions."""
    return f"berth.archive.decision.{token(cell)}.{bucket}"


def dead(service: str) -> str:
    return f"berth.dead.{token(service)}"


def log_mark(service: str) -> str:
    """Return the subject of a service's high-water marks of the logs. Dots are levels, as in a
    lease's name.
    """
    return lease(f"log.{service}")


def lease(name: str) -> str:
    """Return the subject of a lease, also the guard string. Dots in a lease's name are levels. A
    level that contains dots is passed as a token.
    """
    return "berth.lease." + ".".join(_level(part) for part in name.split("."))


def _level(part: str) -> str:
    try:
        text(part)
    except SubjectError:
        return token(part)
    return part
