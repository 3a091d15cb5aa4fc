"""The AsyncAPI 3 document: every subject, what travels on it, and who sends and who receives it.

Addresses come out of lib/nats/subjects.py, called with the parameters' names, so that none is
spelled a second time. The actions are those of Berthmaster's own services.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from berthmaster.client.client import ENVELOPE_BYTES
from berthmaster.lib.access.permissions import grants, inbox_prefix
from berthmaster.lib.messages.api import (
    JOB_ORDERS,
    JOB_VERBS,
    OPERATOR_VERBS,
    RESOLVER_OPERATOR_VERBS,
    RESOLVER_VERBS,
    USAGE_VERBS,
    ChangeReply,
    CordonsReply,
    DryRunReply,
    EventsReply,
    GetReply,
    GpusReply,
    HelloReply,
    ListReply,
    LogsReply,
    OperatorReply,
    Refusal,
    SubmitReply,
    WhatifReply,
    WhyReply,
)
from berthmaster.lib.messages.control import ClusterLost, Cordon, GpuCordon, QueueSetting
from berthmaster.lib.messages.door import (
    DeadReply,
    FactsReply,
    GreetReply,
    HeldPage,
    HoldingsReply,
    HubWorkReply,
    LeaseReply,
    LogAsk,
    LogChunk,
    LogEndReply,
    Nudge,
    ReportReply,
    StoryReply,
    TakeReply,
    TellReply,
)
from berthmaster.lib.messages.explain import MAX_REQUEST_BYTES
from berthmaster.lib.messages.families import (
    AGENT_REQUESTS,
    EVENT_KINDS,
    REQUEST_TYPES,
    TENANT_VERBS,
)
from berthmaster.lib.messages.fleet import (
    ClusterAlive,
    ClusterProfile,
    ClusterScore,
    CopyReport,
    Membership,
    NodeGone,
    NodeReport,
    QueueReport,
)
from berthmaster.lib.messages.login import LoginReply, LoginRequest
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.profile import Profile
from berthmaster.lib.messages.quality import QualityReport
from berthmaster.lib.messages.records import ArchivedStory, DeadLetter, Lease, LogEnd, LogMark
from berthmaster.lib.messages.runtimes import RuntimeSetting
from berthmaster.lib.messages.suggest import Suggestions
from berthmaster.lib.messages.telemetry import JobFigures, NodeTelemetry
from berthmaster.lib.messages.usage import Trends, UsageReport
from berthmaster.lib.nats import subjects
from berthmaster.lib.supervisor.embedded import MAX_PAYLOAD_BYTES
from scripts.schema_tools.json_schema import MESSAGES, Schema, components, name_of, plain

VERSION: Final = "3.0.0"
CONTENT_TYPE: Final = "application/json"

PARAMETERS: Final = {
    "kind": "What happened, such as `placed`.",
    "tenant": "Who submits and sees. Permissions on the subject enforce it.",
    "id": "The workload's id, chosen by its submitter.",
    "cluster": "A worker cluster.",
    "cluster_or_none": "The cluster that the event is about, or `-` if it is about none.",
    "tenant_or_none": "Whose job it is, or `-` if it did not come through us.",
    "job": "The workload's id; of a job that did not come through us namespace, kind and name.",
    "node": "A node of the cluster.",
    "gpu": "Index of a GPU, as the report of its node lists it.",
    "node_or_none": "A node of the cluster, or `-` for the cluster as a whole.",
    "queue": "A queue's name.",
    "runtime": "A runtime's name.",
    "cell": "What one decider serves: `all` is the resolver's, `hub` the MultiKueue reconciler's.",
    "cluster_queue": "A Kueue ClusterQueue of the cluster.",
    "namespace": "A namespace of the cluster.",
    "hub_workload": "A Kueue Workload, named alike on the hub and in the cluster.",
    "number": "The decision's number in its cell's chain.",
    "service": "The service that could not handle a message, or that remembers something.",
    "reader": "The gateway that asked for it.",
    "attempt": "The attempt's number.",
    "pod": "The pod's number, in the order of names.",
    "stream": "One of the streams whose damage stops decisions, or the archive.",
    "name": "What is leased; each dot in it begins another level of the subject.",
}
_ENCODED: Final = (
    " Characters other than letters, digits, `-` and `_` are written `=XX`, byte by byte of UTF-8."
)
_MARK: Final = re.compile(r"PARAMETER-(\w+)")
_NUMBER: Final = 987_654_321  # stands for the one parameter that is a number

EXECUTOR_KINDS: Final = frozenset({"claimed", "admitted", "running", "evicted"})
DECIDED_KINDS: Final = frozenset({"placed", "withdrawn"})
ALSO_WRITTEN_BY: Final[dict[str, tuple[str, ...]]] = {
    "evicted": ("resolver",),
    "failed": ("resolver",),
    "cancelled": ("gateway", "resolver"),
}
ENDING_KINDS: Final = frozenset({"succeeded", "failed", "cancelled"})
REPLIES: Final[dict[str, type[msgspec.Struct]]] = {
    **dict.fromkeys(OPERATOR_VERBS, OperatorReply),
    "hello": HelloReply,
    "submit": SubmitReply,
    "cancel": ChangeReply,
    "reprioritize": ChangeReply,
    "get": GetReply,
    "list": ListReply,
    "events": EventsReply,
    "gpus": GpusReply,
    "logs": LogsReply,
    "why": WhyReply,
    "dry_run": DryRunReply,
    "whatif": WhatifReply,
    "report": UsageReport,
    "trends": Trends,
    "profile": Profile,
    "suggest": Suggestions,
    **dict.fromkeys((*JOB_VERBS, *JOB_ORDERS, "checkpointed", "progressed"), ChangeReply),
    "cordons": CordonsReply,
}
_SERVERS: Final = {
    **dict.fromkeys((*RESOLVER_VERBS, *RESOLVER_OPERATOR_VERBS), "resolver"),
    **dict.fromkeys(USAGE_VERBS, "usage"),
}
AGENT_REPLIES: Final[dict[str, type[msgspec.Struct]]] = {
    "hello": GreetReply,
    "take": TakeReply,
    "tell": TellReply,
    "story": StoryReply,
    "facts": FactsReply,
    "report": ReportReply,
    "lease": LeaseReply,
    "dead": DeadReply,
    "log_end": LogEndReply,
    "hub_work": HubWorkReply,
    "holdings": HoldingsReply,
}

LOGIN_REPLIES: Final[dict[str, type[msgspec.Struct]]] = {"token": LoginReply}


# Users of the bus that people and their programs are, and what stands for the part of a name.
PEOPLE: Final = {
    "tenant.{tenant}": "A person or program of one tenant.",
    "agent.{cluster}": "All that runs in one worker cluster, under one key.",
    "operator": "A person who runs the system.",
    "sentinel": "Whoever has no credentials yet, but a token that the login service takes.",
}


@dataclass(frozen=True)
class Channel:
    """One family of subjects."""

    name: str
    address: str | None  # None: a reply's, made up by whoever asks
    messages: tuple[type[msgspec.Struct], ...]
    kept_in: str = ""  # a stream; "" = not kept
    senders: tuple[str, ...] = ()
    receivers: tuple[str, ...] = ()
    reply: str = ""  # the channel of the replies


def _address(build: Callable[..., str], *parameters: str | int | None) -> str:
    """What ``build`` makes of these parameters, as an address."""
    marked: list[Any] = [f"PARAMETER-{p}" if isinstance(p, str) else p for p in parameters]
    spelled = _MARK.sub(r"{\1}", build(*marked))
    return spelled.replace(str(_NUMBER), "{number}")


def channels() -> list[Channel]:
    """Every channel, in the order in which data flows."""
    return [
        *_observations(),
        *_events(),
        *_controls(),
        *_records(),
        *_requests(),
        *_agents_requests(),
        *_logins(),
    ]


def _observations() -> Iterator[Channel]:
    deciders = ("resolver", "multikueue")
    readers = ("scorer", *deciders)
    yield Channel(
        "telemetry",
        _address(subjects.telemetry, "cluster", "node"),
        (NodeTelemetry,),
        senders=("door",),
        receivers=("scorer",),
    )
    yield Channel(
        "agent_telemetry",
        _address(lambda cluster: subjects.agent(cluster, "telemetry"), "cluster"),
        (NodeTelemetry,),
        senders=("telemetry", "emulator"),
        receivers=("door", "figures"),
    )
    yield Channel(
        "job_figures",
        _address(subjects.job_figures, "tenant_or_none", "cluster", "job"),
        (JobFigures,),
        senders=("door",),
        receivers=("gateway", "resolver"),
    )
    yield Channel(
        "agent_figures",
        _address(lambda cluster: subjects.agent(cluster, "figures"), "cluster"),
        (JobFigures,),
        senders=("figures", "emulator"),
        receivers=("door",),
    )
    yield Channel(
        "assign",
        _address(subjects.assign, "cluster"),
        (Nudge,),
        senders=("door",),
        receivers=("executor", "emulator"),
    )
    yield Channel(
        "assign_logs",
        _address(subjects.assign_logs, "cluster"),
        (LogAsk,),
        senders=("gateway",),
        receivers=("executor", "emulator"),
    )
    yield Channel(
        "agent_logs",
        _address(lambda cluster: subjects.agent(cluster, "logs"), "cluster"),
        (LogChunk,),
        senders=("executor", "emulator"),
        receivers=("door",),
    )
    yield Channel(
        "logs",
        _address(subjects.log_chunks, "cluster", "reader"),
        (LogChunk,),
        senders=("door",),
        receivers=("gateway",),
    )
    yield Channel(
        "inquiry",
        _address(subjects.inquiry, "cluster"),
        (Nudge,),
        senders=("berth recover",),
        receivers=("door",),
    )
    yield Channel(
        "held",
        _address(subjects.held, "cluster"),
        (HeldPage,),
        senders=("door",),
        receivers=("berth recover",),
    )
    yield Channel(
        "quality",
        _address(subjects.quality, "cell"),
        (QualityReport,),
        senders=("resolver",),
        receivers=("usage",),
    )
    for name, build, facts, senders, receivers in (
        ("fleet.alive", subjects.alive, (ClusterAlive,), ("door",), readers),
        ("fleet.profile", subjects.profile, (ClusterProfile,), ("door",), readers),
        ("fleet.membership", subjects.membership, (Membership,), ("members",), deciders),
        ("fleet.score", subjects.score, (ClusterScore,), ("scorer",), (*deciders, "ocm", "door")),
    ):
        yield Channel(name, _address(build, "cluster"), facts, "FLEET", senders, receivers)
    queue = _address(subjects.queue_report, "cluster", "cluster_queue")
    yield Channel("fleet.queue", queue, (QueueReport,), "FLEET", ("door",), deciders)
    copy = _address(subjects.copy_report, "cluster", "namespace", "hub_workload")
    hub = ("multikueue", "admission")
    yield Channel("fleet.copy", copy, (CopyReport,), "FLEET", ("door",), hub)
    yield Channel(
        "fleet.node",
        _address(subjects.node, "cluster", "node"),
        (NodeReport, NodeGone),
        "FLEET",
        ("door",),
        readers,
    )


def _events() -> Iterator[Channel]:
    for event, kind in EVENT_KINDS.items():
        cluster = "cluster_or_none" if kind in ENDING_KINDS else "cluster"
        named = cluster if "cluster" in event.__struct_fields__ else None
        yield Channel(
            f"workload.{kind}",
            _event_address(kind, named),
            (event,),
            "WORKLOADS",
            _writers(kind),
            ("gateway", "resolver", "multikueue", "karmada", "door", "archivist"),
        )
    stored = _address(subjects.stored_event, "tenant", "id", "kind", "cluster_or_none")
    yield Channel("event", stored, tuple(EVENT_KINDS), "", ("nats-server",), ("tenant",))
    yield Channel(
        "decision",
        _address(subjects.decision, "cell"),
        (Decision,),
        "WORKLOADS",
        ("resolver", "multikueue"),
        ("resolver", "multikueue", "archivist"),
    )


def _event_address(kind: str, cluster: str | None) -> str:
    def build(tenant: str, workload: str, named: str | None) -> str:
        return subjects.workload_event(tenant, workload, kind, named)

    return _address(build, "tenant", "id", cluster)


def _writers(kind: str) -> tuple[str, ...]:
    """As lib/lifecycle/states.py says who may write what."""
    if kind in DECIDED_KINDS:
        return ("resolver", "multikueue")
    if kind in EXECUTOR_KINDS or kind in ENDING_KINDS:
        return ("door", "multikueue", "karmada", *ALSO_WRITTEN_BY.get(kind, ()))
    return ("gateway", "multikueue", "karmada") if kind == "submitted" else ("gateway",)


def _controls() -> Iterator[Channel]:
    for name, address, fact in (
        ("control.queue", _address(subjects.queue_setting, "queue"), QueueSetting),
        ("control.runtime", _address(subjects.runtime_setting, "runtime"), RuntimeSetting),
        ("control.cordon", _address(subjects.cordon, "cluster", "node_or_none"), Cordon),
        (
            "control.gpu",
            _address(subjects.gpu_cordon, "cluster", "node", "gpu"),
            GpuCordon,
        ),
        ("control.lost", _address(subjects.lost, "cluster"), ClusterLost),
    ):
        yield Channel(name, address, (fact,), "CONTROL", ("gateway",), ("gateway", "resolver"))


def _records() -> Iterator[Channel]:
    yield Channel(
        "archive.workload",
        _address(subjects.archived_stories, "tenant", _NUMBER),
        (ArchivedStory,),
        "ARCHIVE",
        ("archivist",),
        ("gateway",),
    )
    yield Channel(
        "archive.decision",
        _address(subjects.archived_decisions, "cell", _NUMBER),
        (Decision,),
        "ARCHIVE",
        ("archivist",),
        ("resolver",),
    )
    everyone = ("gateway", "resolver", "scorer", "archivist", "door")
    yield Channel("dead", _address(subjects.dead, "service"), (DeadLetter,), "DEAD", everyone)
    holders = ("resolver", "scorer", "archivist", "door")
    lease = _address(subjects.lease, "name")
    yield Channel("lease", lease, (Lease,), "LEASES", holders, holders)
    deciders = ("gateway", "resolver", "multikueue")
    mark = _address(subjects.log_mark, "service")
    end = _address(subjects.log_end, "tenant", "id", "attempt", "cluster", "pod")
    yield Channel("log_end", end, (LogEnd,), "LOG_ENDS", ("door",), ("gateway",))
    yield Channel("log_mark", mark, (LogMark,), "LEASES", deciders, deciders)


def _requests() -> Iterator[Channel]:
    for verb, message in REQUEST_TYPES.items():
        for who, server in _asked(verb):
            name = f"{who}.{verb}"
            address = _request_address(who, verb)
            yield Channel(name, address, (message,), receivers=(server,), reply=f"{name}.reply")
            yield Channel(f"{name}.reply", None, (REPLIES[verb], Refusal))


def _agents_requests() -> Iterator[Channel]:
    for verb, message in AGENT_REQUESTS.items():
        name = f"agent.{verb}"
        address = _address(lambda cluster, verb=verb: subjects.agent(cluster, verb), "cluster")
        yield Channel(name, address, (message,), receivers=("door",), reply=f"{name}.reply")
        yield Channel(f"{name}.reply", None, (AGENT_REPLIES[verb], Refusal))


def _logins() -> Iterator[Channel]:
    name = "login.token"
    asked = (LoginRequest,)
    yield Channel(name, subjects.LOGIN, asked, receivers=("login",), reply=f"{name}.reply")
    yield Channel(f"{name}.reply", None, (LOGIN_REPLIES["token"], Refusal))


def _asked(verb: str) -> Iterator[tuple[str, str]]:
    """Who asks for it, and which service answers."""
    if verb in TENANT_VERBS:
        yield "api", _SERVERS.get(verb, "gateway")
    if verb in OPERATOR_VERBS:
        yield "operator", "gateway"
    if verb in (*RESOLVER_OPERATOR_VERBS, *USAGE_VERBS):
        yield "operator", _SERVERS[verb]


def _request_address(who: str, verb: str) -> str:
    if who == "operator":
        return subjects.operator(verb)
    return _address(lambda tenant: subjects.api(tenant, verb), "tenant")


# The document


def document() -> dict[str, Any]:
    """The whole of it, ready for JSON."""
    found = channels()
    types = tuple(message.type for message in MESSAGES)
    return {
        "asyncapi": VERSION,
        "info": {
            "title": "Berthmaster",
            "version": _project_version(),
            "description": (
                "GPU jobs find their berth: telemetry, facts, requests, events and decisions, all"
                " of them JSON on NATS. Readers ignore fields that they do not know, except in"
                " requests, where an unknown field is refused. A field with a default may be"
                " absent."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": CONTENT_TYPE,
        "servers": {
            "nats": {
                "host": "localhost:4222",
                "protocol": "nats",
                "description": (
                    "The bus, with JetStream. Every user has an nkey of its own; a server that is"
                    " reached from elsewhere speaks TLS. A connection is given its user's inbox"
                    f" prefix, such as `{inbox_prefix('tenant.acme')}`, before it asks anything:"
                    " it may listen to answers nowhere else."
                ),
                "security": [{"$ref": "#/components/securitySchemes/nkey"}],
                "x-limits": {
                    "max_payload_bytes": MAX_PAYLOAD_BYTES,
                    "max_request_bytes": MAX_REQUEST_BYTES,
                    "description": (
                        "A message with its headers and subject is at most max_payload_bytes (as"
                        " `berth up` sets it; the server's INFO has its own), so leave"
                        f" {ENVELOPE_BYTES} bytes for those; a submitted request is at most"
                        " max_request_bytes. What is larger is refused, never cut."
                    ),
                },
            }
        },
        "x-users": {user: _user(user, words) for user, words in PEOPLE.items()},
        "channels": {channel.name: _channel(channel) for channel in found},
        "operations": dict(op for channel in found for op in _operations(channel)),
        "components": {
            "messages": {m.name: _message(m.name, m.type) for m in MESSAGES},
            "schemas": components(types, "#/components/schemas/{name}"),
            "securitySchemes": {
                "nkey": {
                    "type": "asymmetricEncryption",
                    "description": (
                        "NATS nkeys (Ed25519): the server sends a nonce, the client signs it with"
                        " the user's seed, which never leaves it."
                    ),
                }
            },
        },
    }


def _project_version() -> str:
    pyproject = Path(__file__).resolve().parent.parent.parent / "pyproject.toml"
    return str(tomllib.loads(pyproject.read_text())["project"]["version"])


def _user(user: str, words: str) -> dict[str, Any]:
    """Who a user is and what the server lets it do; what is not listed is denied."""
    role, _, part = user.partition(".")
    stand_in = f"PARAMETER-{part.strip('{}')}" if part else ""
    allowed = grants(f"{role}.{stand_in}" if part else role)

    def spelled(patterns: tuple[str, ...]) -> list[str]:
        return [_MARK.sub(r"{\1}", pattern) for pattern in patterns]

    return {
        "description": words,
        "inbox_prefix": inbox_prefix(user),
        "publish": spelled(allowed.publish),
        "subscribe": spelled(allowed.subscribe),
    }


def _message(name: str, message: type[msgspec.Struct]) -> Schema:
    first = re.split(r"(?<=[.!?])\s", " ".join((message.__doc__ or "").split()), maxsplit=1)[0]
    summary = plain(first)
    return {
        "name": name,
        "title": message.__name__,
        "summary": summary,
        "contentType": CONTENT_TYPE,
        "payload": {"$ref": f"#/components/schemas/{message.__name__}"},
    }


def _channel(channel: Channel) -> dict[str, Any]:
    made: dict[str, Any] = {"address": channel.address}
    if channel.address is None:
        made["description"] = "The asker's inbox: its address comes with the request."
    elif channel.kept_in:
        made["description"] = f"Kept in the stream {channel.kept_in}."
    elif channel.reply:
        made["description"] = "A request; it is answered in any case, so ask with a time limit."
    else:
        made["description"] = "Not kept: a lost message is replaced by the next."
    made["servers"] = [{"$ref": "#/servers/nats"}]
    names = re.findall(r"{(\w+)}", channel.address or "")
    if names:
        made["parameters"] = {name: {"description": PARAMETERS[name] + _ENCODED} for name in names}
    made["messages"] = {
        name_of(m): {"$ref": f"#/components/messages/{name_of(m)}"} for m in channel.messages
    }
    return made


def _refs(channel: str, messages: tuple[type[msgspec.Struct], ...]) -> list[Schema]:
    return [{"$ref": f"#/channels/{channel}/messages/{name_of(m)}"} for m in messages]


def _operations(channel: Channel) -> Iterator[tuple[str, dict[str, Any]]]:
    for action, services in (("send", channel.senders), ("receive", channel.receivers)):
        if not services:
            continue
        operation: dict[str, Any] = {
            "action": action,
            "channel": {"$ref": f"#/channels/{channel.name}"},
            "summary": f"{'Sent' if action == 'send' else 'Received'} by {', '.join(services)}.",
            "messages": _refs(channel.name, channel.messages),
        }
        if channel.reply:
            who, _, verb = channel.name.rpartition(".")
            replies = {"agent": AGENT_REPLIES, "login": LOGIN_REPLIES}.get(who, REPLIES)
            operation["reply"] = {
                "address": {
                    "location": "$message.header#/reply",
                    "description": (
                        "The reply subject of the NATS message, below the asker's inbox prefix."
                    ),
                },
                "channel": {"$ref": f"#/channels/{channel.reply}"},
                "messages": _refs(channel.reply, (replies[verb], Refusal)),
            }
        yield f"{channel.name}.{action}", operation
