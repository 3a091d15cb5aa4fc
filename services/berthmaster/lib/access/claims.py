"""The claims of the JWTs by which nats-server knows accounts and users. Pure.

lib/nats/jwts.py signs them.

Rules of this file:

- Only STREAMS has JetStream, and no user is in it. JetStream checks no right for the reply
  subject of a request, but the server rewrites the reply subject of an imported one: the answer
  reaches the asker's own account, and leads to no further import that holds a wildcard.
- Services that answer are in CORE, which imports the streams' subjects and JetStream's API. All
  other services and people have accounts apart, a tenant and a cluster one each. Such an account
  imports what its users may ask and hear, and nothing else.
- Events reach tenants by way of STREAMS, so that no answer within CORE reaches them. Assignments
  are CORE's: the server hands on to a client no message that came to an account as a request. For
  the same reason STREAMS offers what is stored, and not the subjects that are written to.
- Exports are public, which is safe: imports stand in account JWTs, and those only the operator's
  key signs.
- Requests of tenants to the gateway and of clusters to the door come by lanes
  (lib/nats/subjects.py).
- An account's default permissions are a second fence, for JWTs that have none of their own.
- Times are handed in.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from berthmaster.lib.messages.api import (
    GATEWAY_VERBS,
    HUB_VERBS,
    RESOLVER_OPERATOR_VERBS,
    RESOLVER_VERBS,
    USAGE_VERBS,
)
from berthmaster.lib.messages.door import DOOR_VERBS
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.jwts import Body
from berthmaster.lib.nats.subjects import LOGIN as LOGIN_SUBJECT

STREAMS: Final = "STREAMS"
CORE: Final = "CORE"
SYSTEM: Final = "SYS"
LOGIN: Final = "LOGIN"
SIGNER: Final = "SIGNER"
USAGE: Final = "USAGE"
RESOLVER: Final = "RESOLVER"
MULTIKUEUE: Final = "MULTIKUEUE"
TENANT: Final = "T_"
CLUSTER: Final = "C_"
ALWAYS: Final = (STREAMS, RESOLVER, MULTIKUEUE, USAGE, SIGNER, CORE, SYSTEM)

API_ANSWER_S: Final = 15  # how long an unanswered request's reply subject lives
AGENT_ANSWER_S: Final = 60  # polls of agents are long
LOGIN_ANSWER_S: Final = 10
LOGIN_SUBJECTS: Final = "login.*"
_PINGS: Final = "$SRV.>"  # by which services are found
STORE_ANSWER_S: Final = 30
JETSTREAM_ANSWER_S: Final = 90  # of a stream with many subjects the server needs a minute
BATCH_ANSWER_S: Final = 30  # between two messages of one answer; a pull is over after 20 s

# What is stored.
STORED: Final = (
    *(subjects.ALL_WORKLOADS, subjects.ALL_DECISIONS, subjects.ALL_FLEET, subjects.ALL_CONTROL),
    *(subjects.ALL_ARCHIVE, subjects.ALL_DEAD, subjects.ALL_LOG_ENDS, subjects.ALL_LEASES),
    *subjects.SNAPSHOT_PARTS,
)
ACKNOWLEDGEMENTS: Final = "$JS.ACK.>"
_JETSTREAM: Final = (
    *("*", "STREAM.*", "STREAM.INFO.*", "STREAM.MSG.GET.*", "STREAM.MSG.DELETE.*"),
    *("STREAM.PURGE.*", "CONSUMER.INFO.*.*"),
    *("CONSUMER.LIST.*", "CONSUMER.NAMES.*"),
)
_OF_SETUP: Final = (
    *("STREAM.CREATE.*", "STREAM.UPDATE.*", "STREAM.DELETE.*"),
    "CONSUMER.CREATE.>",
)
# Services by the subject that others ask under: how long an answer may take, and whether several
# messages make one. Each subject holds a wildcard: an answer whose reply subject is that of a
# literal import would be led on through that import.
STREAMS_SERVICES: Final[Mapping[str, tuple[int, bool]]] = MappingProxyType(
    {
        **dict.fromkeys((*STORED, ACKNOWLEDGEMENTS), (STORE_ANSWER_S, False)),
        **{
            f"{subjects.JETSTREAM}{each}": (JETSTREAM_ANSWER_S, False)
            for each in (*_JETSTREAM, *_OF_SETUP)
        },
        "$JS.API.DIRECT.GET.>": (BATCH_ANSWER_S, True),
        "$JS.API.CONSUMER.MSG.NEXT.*.*": (BATCH_ANSWER_S, True),
    }
)
CORE_SERVICES: Final[Mapping[str, tuple[int, bool]]] = MappingProxyType(
    {
        "berth.api.*.*": (API_ANSWER_S, False),
        "berth.agent.*.*": (AGENT_ANSWER_S, False),
        "berth.operator.*": (API_ANSWER_S, False),
        subjects.ALL_INQUIRIES: (API_ANSWER_S, False),
        _PINGS: (API_ANSWER_S, True),
    }
)
# What services apart answer. CORE imports it, so tenants and operators ask all verbs of CORE. Where
# two accounts answer one verb, the server (nats-server 2.15.1) asks both. Verbs of operators are
# written with a wildcard, as STREAMS_SERVICES says.
_ANSWERED_APART: Final[Mapping[str, Sequence[str]]] = MappingProxyType(
    {
        RESOLVER: (
            *map(subjects.api_of_all_tenants, RESOLVER_VERBS),
            *(f"berth.*.{verb}" for verb in RESOLVER_OPERATOR_VERBS),
        ),
        MULTIKUEUE: tuple(map(subjects.api_of_all_tenants, HUB_VERBS)),
        USAGE: (
            *map(subjects.api_of_all_tenants, USAGE_VERBS),
            *(f"berth.*.{verb}" for verb in USAGE_VERBS),
        ),
        SIGNER: (),
    }
)
QUALITY: Final = "berth.quality.>"
HEARD_OF_CORE: Final = (
    *(f"berth.{each}.>" for each in ("figures", "telemetry", "held")),
    subjects.ALL_ASSIGNMENTS,
)
_STREAMS_OFFERED: Final = (  # each with its account
    *((each, STREAMS) for each in (subjects.ALL_STORED, subjects.ALL_EVENTS)),
    *((each, CORE) for each in HEARD_OF_CORE),
    (QUALITY, RESOLVER),
)
_NS: Final = 1_000_000_000
Revocations = Mapping[str, int]  # public key of a user, "*" = all: until when JWTs were signed


class Limits(NamedTuple):
    """What all clients of an account may have together."""

    connections: int = -1
    subscriptions: int = -1
    payload_bytes: int = -1
    leaf_nodes: int = -1
    jetstream: bool = False


STREAMS_LIMITS: Final = Limits(jetstream=True)
TENANT_LIMITS: Final = Limits(20, 200, 256 * 1024, 0)
# Each node may have a telemetry agent, which is one connection and its inbox.
CLUSTER_LIMITS: Final = Limits(1000, 4000, 512 * 1024, 2)
LOGIN_LIMITS: Final = Limits(200, 1000, 16 * 1024, 0)
SERVICE_LIMITS: Final = Limits(leaf_nodes=0)
VIEW_LIMITS: Final = Limits(100, 10_000, 256 * 1024, 0)


class Scope(NamedTuple):
    """A key that may sign users of an account, who may do this whatever their JWTs say."""

    key: str  # public
    publish: Sequence[str]
    subscribe: Sequence[str]


def operator(key: str, *, system: str) -> Body:
    """Who signs accounts; ``system``: public key of the account that may push them."""
    return _body(key, "berth", {"type": "operator", "system_account": system})


def streams(key: str, *, revocations: Revocations | None = None) -> Body:
    """Where JetStream is, and what others may have of it."""
    return _account(
        key,
        STREAMS,
        STREAMS_LIMITS,
        revocations=revocations or {},
        exports=[
            *_services(STREAMS_SERVICES),
            _stream(subjects.ALL_STORED),
        ],
    )


def core(keys: Mapping[str, str], *, revocations: Revocations | None = None) -> Body:
    """Where others ask, and all that they may have; ``keys``: of the accounts of ALWAYS."""
    streams = keys[STREAMS]
    in_lanes = (
        *(subjects.api_of_all_tenants(verb) for verb in GATEWAY_VERBS),
        *(subjects.agent_of_all_clusters(verb) for verb in DOOR_VERBS),
    )
    body = _account(
        keys[CORE],
        CORE,
        Limits(),
        revocations=revocations or {},
        exports=[
            *_services(CORE_SERVICES),
            *(_stream(each) for each in HEARD_OF_CORE),
        ],
        imports=[
            *(
                _import("service", each, streams)
                for each in STREAMS_SERVICES
                if not _of_setup(each)
            ),
            _import("stream", subjects.ALL_STORED, streams),
            *(
                _import("service", each, keys[name])
                for name, answered in _ANSWERED_APART.items()
                for each in (*answered, _PINGS)
            ),
        ],
    )
    body["nats"]["mappings"] = {
        requests: [{"subject": subjects.lane_of_subject(requests), "weight": 100}]
        for requests in in_lanes
    }
    return body


def apart(
    key: str,
    name: str,
    *,
    keys: Mapping[str, str],
    publish: Sequence[str],
    subscribe: Sequence[str],
    limits: Limits = SERVICE_LIMITS,
    revocations: Revocations | None = None,
) -> Body:
    """The account of users beside CORE: of the accounts of ALWAYS, by their ``keys``, it imports
    what these users ask, and what they may subscribe to. A literal subject is imported by the
    wildcard that offers it."""
    asked = {
        each if "*" in each or each.endswith(">") else offer: account
        for each in map(_own_name, publish)
        for account, offered in ((STREAMS, STREAMS_SERVICES), (CORE, CORE_SERVICES))
        for offer in offered
        if subjects.covers(offer, each)
    }
    services_in = {
        each: account
        for each, account in asked.items()
        if not any(subjects.covers(other, each) for other in asked if other != each)
    }
    streams_in = {
        offer if subjects.covers(each, offer) else each: account
        for each in subscribe
        for offer, account in _STREAMS_OFFERED
        if account != name
        if subjects.covers(each, offer) or subjects.covers(offer, each)
    }
    return _account(
        key,
        name,
        limits,
        revocations=revocations or {},
        exports=_exports_apart(name),
        imports=[
            *(_import("service", each, keys[account]) for each, account in services_in.items()),
            *(_import("stream", each, keys[account]) for each, account in streams_in.items()),
        ],
        defaults=_permissions(publish, [*subscribe, "_INBOX.>"]),
    )


def _exports_apart(name: str) -> list[Body]:
    answered = dict.fromkeys(_ANSWERED_APART.get(name, ()), (API_ANSWER_S, False))
    if name == SIGNER:
        answered[LOGIN_SUBJECTS] = (LOGIN_ANSWER_S, False)
    if name in _ANSWERED_APART:
        answered[_PINGS] = (API_ANSWER_S, True)
    return [*_services(answered), *([_stream(QUALITY)] if name == RESOLVER else [])]


def system(key: str, *, core: str) -> Body:
    """The server's own: accounts are pushed from there.

    It imports something of CORE only because a server builds this account, and with it what it
    imports from, before it takes clients. Otherwise the first of them build CORE, and nats-server
    (2.15.1) hands one that is half built to whoever connects meanwhile: imports of CORE, or of the
    accounts that import from it, are lost then until the server is started anew.
    """
    return _account(key, SYSTEM, Limits(), imports=[_import("stream", "berth.figures.>", core)])


def tenant(
    key: str,
    name: str,
    *,
    core: str,
    streams: str,
    revocations: Revocations | None = None,
    scope: Scope | None = None,
) -> Body:
    """One tenant; ``name`` as it stands in subjects."""
    requests = f"berth.api.{name}.*"
    streams_in = {f"berth.event.{name}.>": streams, f"berth.figures.{name}.>": core}
    return _guest(
        key,
        f"{TENANT}{name}",
        TENANT_LIMITS,
        requests,
        streams_in,
        core,
        revocations or {},
        scope,
    )


def cluster(
    key: str,
    name: str,
    *,
    core: str,
    revocations: Revocations | None = None,
    scope: Scope | None = None,
) -> Body:
    """One worker cluster; ``name`` as it stands in subjects."""
    requests, streams_in = f"berth.agent.{name}.*", {f"berth.assign.{name}.>": core}
    own = (f"berth.agent.{name}.telemetry",)  # of its nodes, heard where it is sent
    return _guest(
        key,
        f"{CLUSTER}{name}",
        CLUSTER_LIMITS,
        requests,
        streams_in,
        core,
        revocations or {},
        scope,
        own,
    )


def _guest(
    key: str,
    name: str,
    limits: Limits,
    requests: str,
    streams_in: Mapping[str, str],
    core: str,
    revocations: Revocations,
    scope: Scope | None,
    own: Sequence[str] = (),
) -> Body:
    """An account that asks under one subject of the core's and hears some, each of the account that
    it stands with, and nothing else; ``own`` is what its users hear of one another."""
    return _account(
        key,
        name,
        limits,
        revocations=revocations,
        imports=[
            _import("service", requests, core),
            *(_import("stream", subject, account) for subject, account in streams_in.items()),
        ],
        defaults=_permissions([requests], [*streams_in, *own, "_INBOX.>"]),
        scope=scope,
    )


def login(key: str, *, signer: str, revocations: Revocations | None = None) -> Body:
    """Where those are who have no credentials yet: they may ask for some, and nothing else."""
    return _account(
        key,
        LOGIN,
        LOGIN_LIMITS,
        revocations=revocations or {},
        imports=[_import("service", LOGIN_SUBJECTS, signer)],
        defaults=_permissions([LOGIN_SUBJECT], ["_INBOX.>"]),
    )


def scoped_user(key: str, name: str, *, account: str) -> Body:
    """One user of an account, to be signed with a scoped key of it: what it may do is said there,
    and one that says anything itself is refused."""
    return _body(key, name, {"type": "user", "issuer_account": account})


def user(key: str, name: str, *, publish: Sequence[str], subscribe: Sequence[str]) -> Body:
    """One user; whoever signs it with an account's key takes it in there."""
    nats = _permissions(publish, subscribe) | {"subs": -1, "data": -1, "payload": -1}
    return _body(key, name, nats | {"type": "user"})


def deletion(operator: str, account: str) -> Body:
    """The request to take an account away."""
    return _body(operator, "delete", {"type": "generic", "accounts": [account]})


def _body(key: str, name: str, nats: Body) -> Body:
    return {"sub": key, "name": name, "nats": nats | {"version": 2}}


def _account(
    key: str,
    name: str,
    limits: Limits,
    *,
    exports: Sequence[Body] = (),
    imports: Sequence[Body] = (),
    revocations: Revocations = MappingProxyType({}),
    defaults: Body | None = None,
    scope: Scope | None = None,
) -> Body:
    stored = -1 if limits.jetstream else 0
    nats = {
        "type": "account",
        "exports": list(exports),
        "imports": list(imports),
        "limits": {
            "subs": limits.subscriptions,
            "data": -1,
            "payload": limits.payload_bytes,
            "imports": -1,
            "exports": -1,
            "wildcards": True,
            "conn": limits.connections,
            "leaf": limits.leaf_nodes,
            "mem_storage": stored,
            "disk_storage": stored,
            "streams": stored,
            "consumer": stored,
        },
        "default_permissions": defaults or {"pub": {}, "sub": {}},
    }
    if scope is not None:
        nats["signing_keys"] = [_scope(scope)]
    if revocations:
        nats["revocations"] = dict(revocations)
    return _body(key, name, nats)


def _scope(scope: Scope) -> Body:
    allowed = _permissions(scope.publish, scope.subscribe)
    template = allowed | {"subs": -1, "data": -1, "payload": -1}
    return {"kind": "user_scope", "key": scope.key, "role": "login", "template": template}


def _permissions(publish: Sequence[str], subscribe: Sequence[str]) -> Body:
    return {"pub": _allowed(publish), "sub": _allowed(subscribe)}


def _allowed(subjects: Sequence[str]) -> Body:
    # An empty list of what is allowed would mean "everything" to the server.
    return {"allow": list(subjects)} if subjects else {"deny": [">"]}


def _services(offered: Mapping[str, tuple[int, bool]]) -> list[Body]:
    return [
        {
            "name": subject,
            "subject": subject,
            "type": "service",
            "response_type": "Stream" if several else "Singleton",
            "response_threshold": answer_s * _NS,
        }
        for subject, (answer_s, several) in offered.items()
    ]


def _of_setup(subject: str) -> bool:
    return subject.removeprefix("$JS.API.") in _OF_SETUP


def _stream(subject: str) -> Body:
    return {"name": subject, "subject": subject, "type": "stream"}


def _import(kind: str, subject: str, account: str) -> Body:
    if subjects.covers(subjects.ALL_EVENTS, subject):
        entry = {"name": subject, "account": account, "type": kind}
        return entry | {"subject": subjects.offered(subject), "local_subject": subject}
    entry = {"name": subject, "subject": subject, "account": account, "type": kind}
    request = subject.removeprefix(subjects.JETSTREAM)
    if request == subject or (local := subjects.jetstream(request, imported=True)) == subject:
        return entry
    return entry | {"local_subject": local}


def _own_name(subject: str) -> str:
    """How STREAMS names what others ask of JetStream under another name."""
    if subject.startswith(subjects.IMPORTED_JETSTREAM):
        return f"{subjects.JETSTREAM}{subject.removeprefix(subjects.IMPORTED_JETSTREAM)}"
    return subject


# ---- files
