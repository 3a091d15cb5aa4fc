"""Permissions on the bus: a table from which users' JWTs are made (see keys.py).

A user has exactly the subjects that the service uses, and all other subjects are denied. Patterns
over the subjects of lib/nats/subjects.py are spelled here, with the reason if not obvious. Names of
users:

    a service, such as "gateway"
    setup             creates the streams
    operator          a human who runs the system
    restorer          an operator who rebuilds the log
    watcher           read-only, all tenants, such as a dashboard or another team's program
    steward           job administrator: cancels, moves, holds and reorders jobs of all tenants,
                      cordons and drains
    sentinel          login-only: has a token and no credentials, see login
    tenant.acme       a human or program of one tenant
    viewer.acme       read-only, in the tenant's account
    agent.berlin      the services of one cluster under one key; or one key for each service:
                      executor.berlin, inventory.berlin, telemetry.berlin

The part after the dot is one token. Users with a dot have no permission on streams.

- Each user receives answers under a unique inbox prefix, so that no user receives another user's.
- JetStream's API is restricted as far as the server can: by stream, by consumer name of a durable,
  by filter if a consumer has exactly one.

No user is in JetStream's account. All use imports (see claims.py), so answers reach only the
requester's account, for any reply subject.

Permissions that the server cannot restrict further, with the users:

- Reading one message by sequence (STREAM.MSG.GET) permits reading the whole stream. Services,
  operators, restorers and dashboards may, each some streams. Services in a worker cluster ask the
  door (agent API) instead.
- A consumer delivers to any subject of STREAMS that the creator names, with or without imports.
  Only "setup" and "restorer" create consumers (lib/nats/durables.py). All others receive
  republished messages, and read whole streams by DIRECT.GET (lib/nats/follower.py). Tenants read
  history through the gateway.
- An answering service may write to `_R_.<random>`. The server replaces reply subjects from other
  accounts by such subjects. A service writes answers to no other subject.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from berthmaster.lib.access import claims
from berthmaster.lib.messages.api import (
    HUB_VERBS,
    JOB_ORDERS,
    PLACE_VERBS,
    RESOLVER_OPERATOR_VERBS,
    RESOLVER_VERBS,
    USAGE_VERBS,
)
from berthmaster.lib.messages.placement import HUB_CELL
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.durables import (
    ARCHIVED_DECISIONS,
    ARCHIVED_STORIES,
    NOTICES,
    TOMBSTONES,
    Durable,
)
from berthmaster.lib.nats.stream_names import (
    ARCHIVE,
    CONTROL,
    DEAD,
    FLEET,
    FLEET_LOG,
    LEASES,
    LOG_ENDS,
    SNAPSHOTS,
    WORKLOADS,
)
from berthmaster.lib.nats.subjects import (
    ALL_CONTROL,
    ALL_DEAD,
    ALL_DECISIONS,
    ALL_FLEET,
    ALL_LEASES,
    ALL_STORIES,
    ALL_WORKLOADS,
    LOGIN,
)

STREAMS: Final = (WORKLOADS, FLEET, FLEET_LOG, CONTROL, ARCHIVE, DEAD, LOG_ENDS, LEASES, SNAPSHOTS)
EXECUTOR_KINDS: Final = (
    "claimed",
    "admitted",
    "running",
    "resized",
    "checkpointed",
    "progressed",
    "evicted",
    "succeeded",
    "failed",
    "cancelled",
)
LOOKING_VERBS: Final = (  # read-only
    *("hello", "get", "list", "events", "why", "dry_run", "whatif", "gpus"),
    *USAGE_VERBS,
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9_=-]+\Z")


class UnknownUser(ValueError):
    """A user name without permissions. The text names the known users."""


class Grants(NamedTuple):
    """The permissions of one user."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool = False  # may answer requests


# Permissions of each component of the bus (see the modules).


def _api(*subjects: str) -> tuple[str, ...]:
    return tuple(f"$JS.API.{subject}" for subject in subjects)


# All requesters are in other accounts, and the server rewrites their reply subjects.
_ANSWERS: Final = ("_R_.>",)
_CLOCK: Final = _api(f"STREAM.INFO.{FLEET}")  # lib/nats/connection.py: the server's time


def _follow(*streams: str) -> tuple[str, ...]:
    """Return the requests of lib/nats/stream_reads.py: read streams by batches, without a
    consumer.
    """
    return _api(
        *(f"STREAM.INFO.{stream}" for stream in streams),
        *(f"DIRECT.GET.{stream}" for stream in streams),
    )


def _look(*streams: str) -> tuple[str, ...]:
    """Return the same, and single last values, for other teams' programs
    (docs/operators/dashboard.md).
    """
    return (*_follow(*streams), *_api(*(f"DIRECT.GET.{stream}.>" for stream in streams)))


def _stored(*filters: str) -> tuple[str, ...]:
    """Return the subjects of lib/nats/follower.py: republished messages of these filters."""
    return tuple(map(subjects.stored, filters))


def _work(*durables: Durable) -> tuple[str, ...]:
    """Return the requests of lib/nats/worker.py: pull from durables, by name."""
    requests = [
        f"CONSUMER.{verb}.{each.stream}.{each.name}"
        for each in durables
        for verb in ("INFO", "MSG.NEXT")
    ]
    return (*_api(*requests), *(f"$JS.ACK.{each.stream}.{each.name}.>" for each in durables))


_MADE: Final = (f"CONSUMER.CREATE.{WORKLOADS}.>", f"CONSUMER.INFO.{WORKLOADS}.*")  # the durables


def _read(*streams: str) -> tuple[str, ...]:
    """Return the requests of lib/event_log/workload_log.py: single messages, from the leader."""
    return _api(
        *(f"STREAM.INFO.{stream}" for stream in streams),
        *(f"STREAM.MSG.GET.{stream}" for stream in streams),
    )


def _events(cluster: str, *kinds: str) -> tuple[str, ...]:
    """Return the subjects of workload events of these kinds. "-" is for events without a
    cluster.
    """
    return tuple(f"berth.workload.*.*.{kind}.{cluster}" for kind in kinds)


def _endpoint_subjects(service: str) -> tuple[str, ...]:
    """Return the discovery subjects of a micro service (lib/nats/endpoints.py)."""
    return ("$SRV.*", f"$SRV.*.{service}", f"$SRV.*.{service}.*")


def _snapshots() -> tuple[str, ...]:
    """Return the subjects of lib/event_log/snapshots.py: an object store is a stream, with subjects
    for chunks and names.
    """
    purge = _api(f"STREAM.PURGE.{SNAPSHOTS}")
    return (*subjects.SNAPSHOT_PARTS, *_read(SNAPSHOTS), *purge)


def _looks_at_logs() -> tuple[str, ...]:
    """Return the requests of lib/event_log/marks.py: compare the logs with the services' marks,
    stored beside the leases. The archive shows whether a missing message was removed.
    """
    return _read(WORKLOADS, CONTROL, LEASES, ARCHIVE)


def _guards(service: str) -> tuple[str, ...]:
    """Return the same for lib/event_log/guard.py, with the service's own mark."""
    return (f"berth.lease.log.{service}", *_looks_at_logs())


# Services


def _gateway(_: str) -> Grants:
    return Grants(
        publish=(
            *_CLOCK,
            *_events("-", "submitted", "released", "reprioritized", "held", "hold_released"),
            *_events("-", "succeeded", "failed"),  # of a job that ends by its trials alone
            *_events("*", "cancel_requested", "move_requested", "cancelled"),
            *_events("*", "checkpointed", "progressed", "idle_changed", "limit_exceeded"),
            *_read(WORKLOADS, ARCHIVE, LOG_ENDS),
            *_follow(WORKLOADS),
            "berth.assign.*.logs",  # to request log lines from agents
            ALL_CONTROL,
            *_follow(CONTROL),
            *_guards("gateway"),
            "berth.dead.gateway",
        ),
        subscribe=(
            *_stored(ALL_WORKLOADS, ALL_DECISIONS, ALL_CONTROL),
            "berth.api.*.*",
            "berth.lane.*.api.*.*",
            "berth.operator.*",
            "berth.figures.*.*.*",
            "berth.logs.*.*",
            *_endpoint_subjects("berth-gateway"),
        ),
        answers=True,
    )


def _resolver(_: str) -> Grants:
    return Grants(
        publish=(
            *_CLOCK,
            "berth.decision.*",
            *_events("*", "placed", "withdrawn", "eviction_requested", "resize_requested"),
            *_events("-", "submitted", "divided", "succeeded"),  # divided jobs and their sub-jobs
            *_events("*", "committed", "evicted", "failed", "cancelled"),
            *_read(ARCHIVE),
            *_follow(WORKLOADS),
            *_follow(FLEET),
            *_follow(CONTROL),
            "berth.lease.resolver.*",
            "berth.quality.*",
            *_snapshots(),
            *_guards("resolver.*"),
            "berth.dead.resolver",
        ),
        subscribe=(
            *_stored(ALL_WORKLOADS, ALL_DECISIONS, ALL_FLEET, ALL_CONTROL),
            *(f"berth.api.*.{verb}" for verb in RESOLVER_VERBS),
            *(f"berth.operator.{verb}" for verb in RESOLVER_OPERATOR_VERBS),
            "berth.figures.*.*.*",
            *_endpoint_subjects("berth-resolver"),
        ),
        answers=True,
    )


def _scorer(_: str) -> Grants:
    return Grants(
        publish=(
            *_CLOCK,
            "berth.fleet.*.score",
            *_read(FLEET, LEASES),
            *_follow(FLEET),
            # The job mix for measuring fragmentation.
            *_follow(WORKLOADS),
            "berth.lease.scorer.>",
            "berth.dead.scorer",
        ),
        subscribe=(
            *_stored(ALL_FLEET, "berth.workload.*.*.submitted.*"),
            "berth.telemetry.*.*",
        ),
    )


def _archivist(_: str) -> Grants:
    return Grants(
        publish=(
            *_CLOCK,
            "berth.archive.>",
            *_read(WORKLOADS, ARCHIVE),
            *_api(f"DIRECT.GET.{WORKLOADS}"),  # many event histories at once
            *_work(ARCHIVED_DECISIONS, *ARCHIVED_STORIES, *TOMBSTONES),
            # Of ended aggregates and old decisions. The server supports no narrower pattern.
            *_api(f"STREAM.MSG.DELETE.{WORKLOADS}"),
            *_guards("archivist"),
            "berth.dead.archivist",
        ),
        subscribe=(),
    )


def _usage(_: str) -> Grants:
    """Return the permissions of the usage service, which stores and reports the usage of ended
    jobs.
    """
    return Grants(
        publish=(
            *_CLOCK,
            *_follow(WORKLOADS),
            *_follow(ARCHIVE),
            *_follow(FLEET),  # GPU models of nodes and clusters
            *_read(WORKLOADS, ARCHIVE),  # the event history for a webhook delivery
            *_read(LOG_ENDS),  # the last lines of a failed job
            *_work(*NOTICES),
            *_guards("usage"),
            "berth.dead.usage",
        ),
        subscribe=(
            *_stored(ALL_WORKLOADS, ALL_DECISIONS, ALL_STORIES, ALL_FLEET),
            *(f"berth.api.*.{verb}" for verb in USAGE_VERBS),
            *(f"berth.operator.{verb}" for verb in USAGE_VERBS),
            "berth.quality.*",
            "berth.figures.*.*.*",
            *_endpoint_subjects("berth-usage"),
        ),
        answers=True,
    )


def _door(_: str) -> Grants:
    """Return the permissions of the door (agent API), which stores and reads for agents, each
    limited to the agent's cluster.
    """
    services = ("executor", "inventory", "claims")
    return Grants(
        publish=(
            *_CLOCK,
            *_events("*", *EXECUTOR_KINDS),
            *_read(ARCHIVE),
            *_follow(WORKLOADS),
            *_guards("door"),
            *_follow(FLEET),
            *(f"berth.fleet.*.{kind}" for kind in ("alive", "profile", "node.*", "queue.*")),
            "berth.fleet.*.copy.*.*",
            *(f"berth.lease.{service}.*" for service in services),
            "berth.telemetry.*.*",
            "berth.figures.*.*.*",
            "berth.logs.*.*",
            "berth.held.*",
            "berth.log_end.*.*.*.*.*",
            "berth.assign.>",
            "berth.dead.*",
        ),
        subscribe=(
            *_stored(ALL_WORKLOADS, ALL_DECISIONS, ALL_FLEET),
            "berth.agent.*.*",
            "berth.lane.*.agent.*.*",
            "berth.inquiry.*",
            *_endpoint_subjects("berth-door"),
        ),
        answers=True,
    )


def _in_cluster(cluster: str) -> Grants:
    """Return the permissions of services in a worker cluster: to send requests to the door, and to
    receive the cluster's assignments and the nodes' telemetry on the way to the door.
    """
    return Grants(
        publish=(f"berth.agent.{cluster}.*",),
        subscribe=(f"berth.assign.{cluster}.>", f"berth.agent.{cluster}.telemetry"),
    )


def _of_nodes(cluster: str) -> Grants:
    """Return the permissions of a cluster's telemetry agents, with the same key on every node: to
    send telemetry and request the time, and to receive nothing.
    """
    verbs = ("telemetry", "hello")
    return Grants(publish=tuple(f"berth.agent.{cluster}.{v}" for v in verbs), subscribe=())


def _ocm(_: str) -> Grants:
    """Return the permissions of ocm, which reads scores and profiles of clusters and writes no
    fact.
    """
    publish = (
        *_CLOCK,
        *_read(LEASES),
        *_follow(FLEET),
        "berth.lease.ocm",
        "berth.dead.ocm",
    )
    facts = _stored("berth.fleet.*.score", "berth.fleet.*.profile")
    return Grants(publish=publish, subscribe=facts)


def _members(_: str) -> Grants:
    """Return the permissions of members, which reports a hub's knowledge of the member clusters."""
    return Grants(
        publish=(
            *_CLOCK,
            "berth.fleet.*.membership",
            *_read(FLEET, LEASES),
            *_follow(FLEET),
            "berth.lease.members",
            "berth.dead.members",
        ),
        subscribe=_stored("berth.fleet.*.membership"),
    )


def _multikueue(_: str) -> Grants:
    """Return the permissions of multikueue, which decides and executes jobs by way of the hub's
    Kueue. The service writes decisions only of the own cell.
    """
    return Grants(
        publish=(
            *_CLOCK,
            f"berth.decision.{HUB_CELL}",
            *_events("-", "submitted"),
            *_events("*", "placed", "withdrawn", "eviction_requested", *EXECUTOR_KINDS),
            *_follow(WORKLOADS),
            *_follow(FLEET),
            *_follow(CONTROL),
            "berth.lease.multikueue",
            *_guards("multikueue"),
            "berth.dead.multikueue",
        ),
        subscribe=(
            *_stored(ALL_WORKLOADS, ALL_DECISIONS, ALL_FLEET, ALL_CONTROL),
            *(f"berth.api.*.{verb}" for verb in HUB_VERBS),
            *_endpoint_subjects("berth-multikueue"),
        ),
        answers=True,
    )


def _karmada(_: str) -> Grants:
    """Return the permissions of karmada, which reports a Karmada control plane's bindings and
    executes the resolver's decisions.
    """
    return Grants(
        publish=(
            *_CLOCK,
            *_events("-", "submitted"),
            *_events("*", *EXECUTOR_KINDS, "move_requested"),
            *_follow(WORKLOADS),
            *_follow(FLEET),
            *_follow(CONTROL),
            "berth.lease.karmada",
            *_guards("karmada"),
            "berth.dead.karmada",
        ),
        subscribe=_stored(ALL_WORKLOADS, ALL_DECISIONS, ALL_FLEET, ALL_CONTROL),
    )


def _admission(_: str) -> Grants:
    """Return the permissions of admission, which reads the workers' remaining copies, and reports
    nothing.
    """
    return Grants(
        publish=(
            *_CLOCK,
            *_read(FLEET, LEASES),
            *_follow(FLEET),
            "berth.lease.admission",
            "berth.dead.admission",
        ),
        subscribe=_stored("berth.fleet.*.copy.*.*"),
    )


def _accounts(_: str) -> Grants:
    """Return the permissions of accounts, which updates the servers' accounts. The only user of the
    system account (see keys.py).
    """
    verbs = ("UPDATE", "DELETE", "LIST")
    claims = tuple(f"$SYS.REQ.CLAIMS.{verb}" for verb in verbs)
    return Grants(publish=(*claims, "$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP"), subscribe=())


def _dashboard(_: str) -> Grants:
    """Return the permissions of the dashboard, which shows everything. The dashboard sends
    read-only requests, for every tenant. Actions on the dashboard use other credentials.
    """
    return Grants(
        publish=(
            *_CLOCK,
            *_look(WORKLOADS, FLEET, CONTROL, LEASES, DEAD),
            *_looks_at_logs(),
            *(f"berth.api.*.{verb}" for verb in LOOKING_VERBS),
            *(f"berth.operator.{verb}" for verb in USAGE_VERBS),
            "$SRV.PING",
            "berth.dead.dashboard",
        ),
        subscribe=(
            *_stored(ALL_WORKLOADS, ALL_DECISIONS, ALL_FLEET, ALL_CONTROL, ALL_LEASES, ALL_DEAD),
            "berth.telemetry.*.*",
            "berth.figures.*.*.*",
            "berth.quality.*",
        ),
    )


def _login(_: str) -> Grants:
    """Return the permissions of login, which answers users with a token and no credentials. The
    service stores and reads nothing.
    """
    return Grants(publish=(), subscribe=(LOGIN, *_endpoint_subjects("berth-login")), answers=True)


def _sentinel(_: str) -> Grants:
    """Return the permissions of users without credentials. The sentinel's credentials are published
    and good for one request. The only user of the account LOGIN (see keys.py).
    """
    return Grants(publish=(LOGIN,), subscribe=())


def _setup(_: str) -> Grants:
    """Return the permissions of setup, the only user that may create and update streams and
    consumers.
    """
    verbs = ("INFO", "CREATE", "UPDATE")
    return Grants(
        publish=_api(
            *(f"STREAM.{verb}.{stream}" for stream in STREAMS for verb in verbs),
            *_MADE,
        ),
        subscribe=(),
    )


def _restorer(_: str) -> Grants:
    """Return the permissions of an operator who rebuilds the log from the remaining messages, a
    backup, and the clusters' answers. Not for any other use.
    """
    # An old log is kept under a new name, and a subject cannot match part of a name.
    verbs = ("INFO", "CREATE", "UPDATE", "DELETE", "MSG.GET")
    return Grants(
        publish=(
            *_api("STREAM.NAMES", *(f"STREAM.{verb}.*" for verb in verbs), *_MADE),
            *_api("DIRECT.GET.*", "DIRECT.GET.*.>"),
            *(ALL_WORKLOADS, ALL_DECISIONS, ALL_CONTROL, ALL_STORIES),
            "berth.inquiry.*",
        ),
        subscribe=("berth.held.*",),
    )


# Human users


def _tenant(tenant: str) -> Grants:
    return Grants(
        publish=(f"berth.api.{tenant}.*",),
        subscribe=(f"berth.event.{tenant}.>", f"berth.figures.{tenant}.>"),
    )


def _viewer(tenant: str) -> Grants:
    """Return the permissions of a read-only user of one tenant."""
    return Grants(
        publish=tuple(f"berth.api.{tenant}.{verb}" for verb in (*LOOKING_VERBS, "logs")),
        subscribe=(f"berth.event.{tenant}.>", f"berth.figures.{tenant}.>"),
    )


def _watcher(_: str) -> Grants:
    """Return the permissions of a read-only user of all tenants: facts, scores, events, decisions,
    samples, quality. The user reads streams, sends no other request, and creates nothing.
    """
    return Grants(
        publish=_look(WORKLOADS, FLEET, CONTROL),
        subscribe=(
            *_stored(ALL_WORKLOADS, ALL_DECISIONS, ALL_FLEET, ALL_CONTROL),
            "berth.telemetry.*.*",
            "berth.figures.*.*.*",
            "berth.quality.*",
        ),
    )


def _steward(_: str) -> Grants:
    """Return the permissions of a job administrator: cancel, move, hold and reorder jobs of all
    tenants, cordon and drain. The dashboard acts with these, without the other permissions of an
    operator.
    """
    return Grants(
        publish=(
            *(f"berth.api.*.{verb}" for verb in ("hello", "cancel", "reprioritize")),
            *(f"berth.operator.{verb}" for verb in (*PLACE_VERBS, *JOB_ORDERS, "cordons")),
        ),
        subscribe=(),
    )


def _operator(_: str) -> Grants:
    """Return the permissions of an operator, who reads everything, acts through the gateway, and
    writes no event or fact directly.
    """
    return Grants(
        publish=(
            *_CLOCK,
            "berth.operator.*",
            "berth.api.*.*",
            *_read(*STREAMS),
            *_follow(*STREAMS),
            *_api("INFO", "STREAM.LIST", "STREAM.NAMES", "CONSUMER.LIST.*", "CONSUMER.NAMES.*"),
            "$SRV.>",
        ),
        subscribe=("berth.>",),
    )


Role = Callable[[str], Grants]
SERVICES: Final[Mapping[str, Role]] = MappingProxyType(
    {
        "setup": _setup,
        "gateway": _gateway,
        "resolver": _resolver,
        "scorer": _scorer,
        "archivist": _archivist,
        "usage": _usage,
        "door": _door,
        "telemetry": _in_cluster,
        "emulator": _in_cluster,
        "figures": _in_cluster,
        "members": _members,
        "multikueue": _multikueue,
        "karmada": _karmada,
        "ocm": _ocm,
        "admission": _admission,
        "accounts": _accounts,
        "login": _login,
        "dashboard": _dashboard,
    }
)
WHOLE_ROLES: Final[Mapping[str, Role]] = MappingProxyType(
    {
        **SERVICES,
        "operator": _operator,
        "restorer": _restorer,
        "watcher": _watcher,
        "steward": _steward,
        "sentinel": _sentinel,
    }
)
PART_ROLES: Final[Mapping[str, Role]] = MappingProxyType(
    {
        "tenant": _tenant,
        "viewer": _viewer,
        "agent": _in_cluster,
        "executor": _in_cluster,
        "figures": _in_cluster,
        "inventory": _in_cluster,
        "claims": _in_cluster,
        "telemetry": _of_nodes,
    }
)


PUSHER: Final = "accounts"  # the only user of SYS
# the only user of LOGIN; if present, accounts get keys that sign users
SENTINEL: Final = "sentinel"
OF_TENANTS: Final = ("tenant", "viewer")  # roles with users in a tenant's account
# Accounts beside CORE, with the users. CORE keeps the two services that answer by lanes and send
# assignments to clusters (docs/reference/threats/services.md). Users that stand for all clusters on
# one machine share an account, like the agents of a cluster: each receives the telemetry of all.
APART: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        **{
            user.upper(): (user,)
            for user in (
                *("resolver", "scorer", "archivist", "usage"),
                *("multikueue", "members", "karmada", "ocm", "admission"),
                *("dashboard", "setup", "operator", "watcher", "steward", "restorer"),
            )
        },
        "CLUSTERS": ("emulator", "telemetry", "figures"),
        claims.SIGNER: ("login",),
    }
)
VIEWS: Final = ("dashboard", "watcher", "steward")  # their accounts get limits for few connections
_ACCOUNTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{user: account for account, users in APART.items() for user in users},
        PUSHER: claims.SYSTEM,
        SENTINEL: claims.LOGIN,
    }
)


def grants(user: str) -> Grants:
    """Return the permissions of a user, with the inbox. Raises UnknownUser."""
    found = _without_inbox(user)
    return found._replace(subscribe=(*found.subscribe, f"{inbox_prefix(user)}.>"))


def _without_inbox(user: str) -> Grants:
    role, dot, part = user.partition(".")
    if dot and role in PART_ROLES and _TOKEN.match(part):
        base = PART_ROLES[role](part)
    elif not dot and role in WHOLE_ROLES:
        base = WHOLE_ROLES[role]("*")
    else:
        known = [*WHOLE_ROLES, *(f"{name}.<one token>" for name in PART_ROLES)]
        raise UnknownUser(f"no user {user!r}; there are {', '.join(known)}")
    wanted = _widest((*base.publish, *(_ANSWERS if base.answers else ())))
    return base._replace(publish=tuple(map(_imported, wanted)))


def grants_of(users: Iterable[str]) -> Grants:
    """Return the permissions of these users together, without the inboxes: the imports of an
    account. Raises UnknownUser.
    """
    each = [*map(_without_inbox, users)]
    return Grants(
        publish=_widest(subject for one in each for subject in one.publish),
        subscribe=_widest(subject for one in each for subject in one.subscribe),
    )


def account_of(user: str) -> str:
    """Return the name of a user's account."""
    role, dot, part = user.partition(".")
    if dot:
        return f"{claims.TENANT if role in OF_TENANTS else claims.CLUSTER}{part}"
    return _ACCOUNTS.get(user, claims.CORE)


def _imported(subject: str) -> str:
    request = subject.removeprefix(subjects.JETSTREAM)
    return subject if request == subject else subjects.jetstream(request, imported=True)


def _widest(wanted: Iterable[str]) -> tuple[str, ...]:
    """Return the subjects that no other subject covers. A user's claims must fit into one line of 4
    KiB, the server's limit at a connect.
    """
    each = tuple(dict.fromkeys(wanted))
    return tuple(
        one
        for one in each
        if not any(subjects.covers(other, one) for other in each if other != one)
    )


def inbox_prefix(user: str) -> str:
    """Return the inbox prefix of the user's client. No other is permitted."""
    return f"_INBOX.{user}"
