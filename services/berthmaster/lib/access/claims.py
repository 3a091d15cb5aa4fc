"""The claims of the JWTs by which nats-server knows accounts and users. Pure: the caller passes
times.

lib/nats/jwts.py signs the claims. Example: a tenant's ``submit`` goes from the account T_acme by an
import to CORE, where the gateway answers. The answer returns to T_acme only.

- Only STREAMS has JetStream, and no user is in STREAMS. JetStream checks no permission for the
  reply subject of a request, but the server rewrites the reply subject of an imported request. So
  the answer reaches only the requester's own account, and no further import with a wildcard.
- Answering services are in CORE. CORE imports the streams' subjects and JetStream's API. All other
  services and human users have separate accounts, and each tenant and each cluster has one. The
  imports of a separate account are the subjects that the users may publish or subscribe to.
- Tenants receive events by way of STREAMS, so that no answer within CORE reaches them. Assignments
  are in CORE: the server forwards no message to a client that came to an account as a request. For
  the same reason STREAMS exports the stored messages, not the subjects that writers use.
- Exports are public. Public exports are safe: imports are in account JWTs, and only the operator's
  key signs account JWTs.
- Requests of tenants to the gateway and of clusters to the door come by lanes
  (lib/nats/subjects.py).
- An account's default permissions are a second line of defence, for JWTs without permissions.
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

API_ANSWER_S: Final = 15  # lifetime of an unanswered request's reply subject
AGENT_ANSWER_S: Final = 60  # agents use long polling
LOGIN_ANSWER_S: Final = 10
LOGIN_SUBJECTS: Final = "login.*"
_PINGS: Final = "$SRV.>"  # discovery of services
STORE_ANSWER_S: Final = 30
JETSTREAM_ANSWER_S: Final = 90  # a stream with many subjects takes the server a minute
BATCH_ANSWER_S: Final = 30  # between two messages of one answer; a pull ends after 20 s

# Stored subjects.
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
# Exported services by subject, with the time limit of an answer and whether an answer has several
# messages. Each subject has a wildcard: an answer whose reply subject equals a literal import would
# be forwarded through that import.
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
# Verbs answered by services with separate accounts. CORE imports them, so tenants and operators
# send all verbs to CORE. If two accounts answer one verb, the server (nats-server 2.15.1) asks
# both. Operators' verbs have a wildcard, for the reason given at STREAMS_SERVICES.
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
_STREAMS_OFFERED: Final = (  # with the exporting account
    *((each, STREAMS) for each in (subjects.ALL_STORED, subjects.ALL_EVENTS)),
    *((each, CORE) for each in HEARD_OF_CORE),
    (QUALITY, RESOLVER),
)
_NS: Final = 1_000_000_000
# public key of a user, "*" = all -> JWTs signed until this time are revoked
Revocations = Mapping[str, int]


class Limits(NamedTuple):
    """Limits of all clients of an account together."""

    connections: int = -1
    subscriptions: int = -1
    payload_bytes: int = -1
    leaf_nodes: int = -1
    jetstream: bool = False


STREAMS_LIMITS: Final = Limits(jetstream=True)
TENANT_LIMITS: Final = Limits(20, 200, 256 * 1024, 0)
# Each node may have a telemetry agent: a connection and an inbox.
CLUSTER_LIMITS: Final = Limits(1000, 4000, 512 * 1024, 2)
LOGIN_LIMITS: Final = Limits(200, 1000, 16 * 1024, 0)
SERVICE_LIMITS: Final = Limits(leaf_nodes=0)
VIEW_LIMITS: Final = Limits(100, 10_000, 256 * 1024, 0)


class Scope(NamedTuple):
    """A key that may sign users of an account. The users have these permissions, whatever the JWTs
    contain.
    """

    key: str  # public
    publish: Sequence[str]
    subscribe: Sequence[str]


def operator(key: str, *, system: str) -> Body:
    """Return the claims of the operator, the signer of accounts. ``system``: public key of the
    account with permission to push accounts.
    """
    return _body(key, "berth", {"type": "operator", "system_account": system})


def streams(key: str, *, revocations: Revocations | None = None) -> Body:
    """Return the claims of STREAMS: the account with JetStream, and its exports."""
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
    """Return the claims of CORE: the account that answers requests. ``keys``: of the accounts of
    ALWAYS.
    """
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
    """Return the claims of a separate account. From the accounts of ALWAYS, found in ``keys``, the
    account imports the subjects that the users may publish and subscribe to. For a literal subject,
    the import is the covering wildcard export.
    """
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
    """Return the claims of the server's own account, which pushes accounts.

    The account imports from CORE only so that a server builds CORE before accepting clients.
    Otherwise the first clients build CORE, and nats-server (2.15.1) gives a half-built CORE to
    clients that connect meanwhile. Imports of CORE, or of accounts that import from CORE, are then
    lost until the server restarts.
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
    """Return the claims of a tenant's account. ``name``: as a token."""
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
    """Return the claims of a worker cluster's account. ``name``: as a token."""
    requests, streams_in = f"berth.agent.{name}.*", {f"berth.assign.{name}.>": core}
    # of the cluster's nodes, received in the account itself
    own = (f"berth.agent.{name}.telemetry",)
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
    """Return the claims of an account that publishes a subject of CORE and subscribes to some, each
    given with the exporting account. ``own``: subjects for messages between users of the account.
    """
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
    """Return the claims of LOGIN, for users without credentials, who may only request
    credentials.
    """
    return _account(
        key,
        LOGIN,
        LOGIN_LIMITS,
        revocations=revocations or {},
        imports=[_import("service", LOGIN_SUBJECTS, signer)],
        defaults=_permissions([LOGIN_SUBJECT], ["_INBOX.>"]),
    )


def scoped_user(key: str, name: str, *, account: str) -> Body:
    """Return the claims of a user for a scoped key of the account. The key's scope has the
    permissions. The server refuses a user's JWT with permissions.
    """
    return _body(key, name, {"type": "user", "issuer_account": account})


def user(key: str, name: str, *, publish: Sequence[str], subscribe: Sequence[str]) -> Body:
    """Return the claims of a user. The signature of an account's key makes the user part of the
    account.
    """
    nats = _permissions(publish, subscribe) | {"subs": -1, "data": -1, "payload": -1}
    return _body(key, name, nats | {"type": "user"})


def deletion(operator: str, account: str) -> Body:
    """Return the claims of a request to delete an account."""
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
    # The server treats an empty allow list as "everything".
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
    """Return STREAMS' name of a JetStream subject imported under another name."""
    if subject.startswith(subjects.IMPORTED_JETSTREAM):
        return f"{subjects.JETSTREAM}{subject.removeprefix(subjects.IMPORTED_JETSTREAM)}"
    return subject
