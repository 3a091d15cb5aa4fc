"""Who may do what on the bus: a table, from which the users' JWTs are made (see keys.py).

Rules of this file:

- A user has exactly the subjects that its service uses; what is not listed is denied. Patterns over
  the subjects of lib/nats/subjects.py are spelled here, with the reason where it is not plain.
- Names of users: a service ("gateway"), "setup" (makes the streams), "operator" (a person who runs
  the system), "restorer" (the same, to build the log anew), "watcher" (who looks at all and asks
  for nothing, such as a page or a program of another team), "steward" (who ends, moves, holds and
  reorders anybody's jobs, cordons and drains, and can do nothing else), "sentinel" (who has but a
  token, see login), or with a part behind a dot: "tenant.acme" (a person or program of one tenant),
  "viewer.acme" (the same, who only looks: in the tenant's account), "executor.berlin",
  "inventory.berlin", "telemetry.berlin" (what runs in one cluster), "agent.berlin" (all of that
  under one key): none of those has any right on a stream. The part is one token.
- Each user listens to answers under an inbox prefix of its own, so that no one hears another's.
- JetStream's API is narrowed as far as the server can: by stream, by consumer name where it is a
  durable's, by the filter where a consumer has exactly one.

Every user is in another account than JetStream and asks it through imports (see claims.py), so
answers go to the asker's account alone, whatever reply subject it names.

What the server cannot narrow, and which users therefore get it:

- Reading one message by sequence (STREAM.MSG.GET) reads all of the stream. Services, operators,
  restorers and dashboards may, each of some streams. What runs in a worker cluster asks the door.
- A consumer delivers to any subject of STREAMS that its maker names, and no import changes that.
  Only "setup" and "restorer" make any (lib/nats/durables.py). All others hear what streams publish
  again, and read all of a stream by DIRECT.GET (lib/nats/follower.py). Tenants read the past
  through the gateway.
- A service that answers may write to `_R_.<random>`, which the server puts in the place of reply
  subjects from other accounts. Nothing else is written as an answer.
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
LOOKING_VERBS: Final = (  # change nothing
    *("hello", "get", "list", "events", "why", "dry_run", "whatif", "gpus"),
    *USAGE_VERBS,
)
_TOKEN: Final = re.compile(r"[A-Za-z0-9_=-]+\Z")


class UnknownUser(ValueError):
    """Nothing is known of what such a user may do; the text says which users there are."""


class Grants(NamedTuple):
    """What one user may do."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool = False  # may answer the requests that it receives


# ---- what the parts of the bus need (see the module of each)


def _api(*subjects: str) -> tuple[str, ...]:
    return tuple(f"$JS.API.{subject}" for subject in subjects)


# All who ask do so from other accounts, and the server rewrites where their answers go.
_ANSWERS: Final = ("_R_.>",)
_CLOCK: Final = _api(f"STREAM.INFO.{FLEET}")  # lib/nats/connection.py: the server's time


def _follow(*streams: str) -> tuple[str, ...]:
    """lib/nats/stream_reads.py: what streams hold, by batches, without a consumer."""
    return _api(
        *(f"STREAM.INFO.{stream}" for stream in streams),
        *(f"DIRECT.GET.{stream}" for stream in streams),
    )


def _look(*streams: str) -> tuple[str, ...]:
    """The same, and last values one by one, for others' programs (docs/operators/dashboard.md)."""
    return (*_follow(*streams), *_api(*(f"DIRECT.GET.{stream}.>" for stream in streams)))


def _stored(*filters: str) -> tuple[str, ...]:
    """lib/nats/follower.py: where streams publish again what they have stored under these."""
    return tuple(map(subjects.stored, filters))


def _work(*durables: Durable) -> tuple[str, ...]:
    """lib/nats/worker.py: pull from durables, by name."""
    requests = [
        f"CONSUMER.{verb}.{each.stream}.{each.name}"
        for each in durables
        for verb in ("INFO", "MSG.NEXT")
    ]
    return (*_api(*requests), *(f"$JS.ACK.{each.stream}.{each.name}.>" for each in durables))


_MADE: Final = (f"CONSUMER.CREATE.{WORKLOADS}.>", f"CONSUMER.INFO.{WORKLOADS}.*")  # the durables


def _read(*streams: str) -> tuple[str, ...]:
    """lib/event_log/workload_log.py: single messages, from the leader."""
    return _api(
        *(f"STREAM.INFO.{stream}" for stream in streams),
        *(f"STREAM.MSG.GET.{stream}" for stream in streams),
    )


def _events(cluster: str, *kinds: str) -> tuple[str, ...]:
    """Where workload events of these kinds are written. "-" is the place of those without one."""
    return tuple(f"berth.workload.*.*.{kind}.{cluster}" for kind in kinds)


def _endpoint_subjects(service: str) -> tuple[str, ...]:
    """lib/nats/endpoints.py: what a micro service listens to so that it can be found."""
    return ("$SRV.*", f"$SRV.*.{service}", f"$SRV.*.{service}.*")


def _snapshots() -> tuple[str, ...]:
    """lib/event_log/snapshots.py: an object store is a stream; chunks and names are subjects."""
    purge = _api(f"STREAM.PURGE.{SNAPSHOTS}")
    return (*subjects.SNAPSHOT_PARTS, *_read(SNAPSHOTS), *purge)


def _looks_at_logs() -> tuple[str, ...]:
    """lib/event_log/marks.py: whether the logs are those that services remember, beside the leases.
    The archive tells whether a message that is gone was removed."""
    return _read(WORKLOADS, CONTROL, LEASES, ARCHIVE)


def _guards(service: str) -> tuple[str, ...]:
    """lib/event_log/guard.py: the same, and the service's own mark."""
    return (f"berth.lease.log.{service}", *_looks_at_logs())


# ---- services


def _gateway(_: str) -> Grants:
    return Grants(
        publish=(
            *_CLOCK,
            *_events("-", "submitted", "released", "reprioritized", "held", "hold_released"),
            *_events("*", "cancel_requested", "move_requested", "cancelled"),
            *_events("*", "checkpointed", "progressed", "idle_changed", "limit_exceeded"),
            *_read(WORKLOADS, ARCHIVE, LOG_ENDS),
            *_follow(WORKLOADS),
            "berth.assign.*.logs",  # agents are asked there for what jobs wrote
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
            *_events("-", "submitted", "divided", "succeeded"),  # divided jobs and their parts
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
            # The job mix that fragmentation is measured for.
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
            *_api(f"DIRECT.GET.{WORKLOADS}"),  # many stories at once
            *_work(ARCHIVED_DECISIONS, *ARCHIVED_STORIES, *TOMBSTONES),
            # Of aggregates that ended, and of old decisions; the server knows nothing narrower.
            *_api(f"STREAM.MSG.DELETE.{WORKLOADS}"),
            *_guards("archivist"),
            "berth.dead.archivist",
        ),
        subscribe=(),
    )


def _usage(_: str) -> Grants:
    """Keeps what ended jobs used, in a store of its own, and answers who asks for it."""
    return Grants(
        publish=(
            *_CLOCK,
            *_follow(WORKLOADS),
            *_follow(ARCHIVE),
            *_follow(FLEET),  # which GPU models nodes and clusters have
            *_read(WORKLOADS, ARCHIVE),  # the story of an end that a webhook is told of
            *_read(LOG_ENDS),  # what a job that failed wrote last
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
    """What agents speak to: it stores and reads for them, each cluster its own."""
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
    """What runs in a worker cluster: it asks the door, is told of its own, and hears its nodes'
    telemetry on its way to the door. Nothing else."""
    return Grants(
        publish=(f"berth.agent.{cluster}.*",),
        subscribe=(f"berth.assign.{cluster}.>", f"berth.agent.{cluster}.telemetry"),
    )


def _of_nodes(cluster: str) -> Grants:
    """The telemetry agents of a cluster's nodes, all under one key, which lies on every node: they
    tell what GPUs do, ask for the time, and hear nothing."""
    verbs = ("telemetry", "hello")
    return Grants(publish=tuple(f"berth.agent.{cluster}.{v}" for v in verbs), subscribe=())


def _ocm(_: str) -> Grants:
    """Reads scores and profiles of clusters, and writes no fact."""
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
    """Reports what a hub knows of its clusters."""
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
    """Decides and carries out what goes by way of the hub's Kueue; only its own cell's chain."""
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
    """Tells of a Karmada control plane's bindings and carries out what the resolver decides."""
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
    """Hears which workers still have copies, and says nothing."""
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
    """Tells the servers of accounts. Alone in the system's account (see keys.py)."""
    verbs = ("UPDATE", "DELETE", "LIST")
    claims = tuple(f"$SYS.REQ.CLAIMS.{verb}" for verb in verbs)
    return Grants(publish=(*claims, "$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP"), subscribe=())


def _dashboard(_: str) -> Grants:
    """Shows what there is. It asks what changes nothing, of every tenant, and orders nothing: who
    acts by way of the page does so with other credentials."""
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
    """Answers those who have a token and no credentials. It stores nothing and reads nothing."""
    return Grants(publish=(), subscribe=(LOGIN, *_endpoint_subjects("berth-login")), answers=True)


def _sentinel(_: str) -> Grants:
    """Whoever has no credentials yet; this user's are published, and good for one question. Alone
    in an account of its own (see keys.py)."""
    return Grants(publish=(LOGIN,), subscribe=())


def _setup(_: str) -> Grants:
    """Makes the streams and consumers and brings them up to date. Nobody else may."""
    verbs = ("INFO", "CREATE", "UPDATE")
    return Grants(
        publish=_api(
            *(f"STREAM.{verb}.{stream}" for stream in STREAMS for verb in verbs),
            *_MADE,
        ),
        subscribe=(),
    )


def _restorer(_: str) -> Grants:
    """Builds the log anew, from what is left, a backup, and what it asks clusters for. Nobody runs
    as this but for that."""
    # An old log is kept under a name of its own, which a subject cannot name in part.
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


# ---- people


def _tenant(tenant: str) -> Grants:
    return Grants(
        publish=(f"berth.api.{tenant}.*",),
        subscribe=(f"berth.event.{tenant}.>", f"berth.figures.{tenant}.>"),
    )


def _viewer(tenant: str) -> Grants:
    """Looks at what is the tenant's, and changes nothing."""
    return Grants(
        publish=tuple(f"berth.api.{tenant}.{verb}" for verb in (*LOOKING_VERBS, "logs")),
        subscribe=(f"berth.event.{tenant}.>", f"berth.figures.{tenant}.>"),
    )


def _watcher(_: str) -> Grants:
    """Looks at all: facts, scores, events, decisions, readings, quality. It asks nobody for
    anything but what streams hold, and makes nothing."""
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
    """Ends, moves, holds and reorders anybody's jobs, cordons and drains: what a page does for an
    operator, without the rest of an operator's rights."""
    return Grants(
        publish=(
            *(f"berth.api.*.{verb}" for verb in ("hello", "cancel", "reprioritize")),
            *(f"berth.operator.{verb}" for verb in (*PLACE_VERBS, *JOB_ORDERS, "cordons")),
        ),
        subscribe=(),
    )


def _operator(_: str) -> Grants:
    """Sees everything, orders by way of the gateway, writes no event and no fact itself."""
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


PUSHER: Final = "accounts"  # the one user of SYS
SENTINEL: Final = "sentinel"  # the one user of LOGIN; with it, accounts get keys that sign users
OF_TENANTS: Final = ("tenant", "viewer")  # roles whose users are in a tenant's account
# Accounts beside CORE, with their users. CORE keeps the two services that answer by lanes and tell
# clusters what there is (docs/reference/threats/services.md). What stands for all clusters on one
# machine has one account, as the agents of one cluster do: they hear one another's telemetry.
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
VIEWS: Final = ("dashboard", "watcher", "steward")  # whose accounts may have few connections
_ACCOUNTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        **{user: account for account, users in APART.items() for user in users},
        PUSHER: claims.SYSTEM,
        SENTINEL: claims.LOGIN,
    }
)


def grants(user: str) -> Grants:
    """What a user of this name may do, its inbox included. Raises UnknownUser."""
    role, dot, part = user.partition(".")
    if dot and role in PART_ROLES and _TOKEN.match(part):
        base = PART_ROLES[role](part)
    elif not dot and role in WHOLE_ROLES:
        base = WHOLE_ROLES[role]("*")
    else:
        known = [*WHOLE_ROLES, *(f"{name}.<one token>" for name in PART_ROLES)]
        raise UnknownUser(f"no user {user!r}; there are {', '.join(known)}")
    wanted = _widest((*base.publish, *(_ANSWERS if base.answers else ())))
    publish = tuple(map(_imported, wanted))
    return base._replace(publish=publish, subscribe=(*base.subscribe, f"{inbox_prefix(user)}.>"))


def grants_of(users: Iterable[str]) -> Grants:
    """What any of these users may do, but for listening to its own inbox: what an account must
    have of others. Raises UnknownUser."""
    each = [(user, grants(user)) for user in users]
    return Grants(
        publish=_widest(subject for _, one in each for subject in one.publish),
        subscribe=_widest(
            subject
            for user, one in each
            for subject in one.subscribe
            if subject != f"{inbox_prefix(user)}.>"
        ),
    )


def account_of(user: str) -> str:
    """The name of the account that a user is in."""
    role, dot, part = user.partition(".")
    if dot:
        return f"{claims.TENANT if role in OF_TENANTS else claims.CLUSTER}{part}"
    return _ACCOUNTS.get(user, claims.CORE)


def _imported(subject: str) -> str:
    request = subject.removeprefix(subjects.JETSTREAM)
    return subject if request == subject else subjects.jetstream(request, imported=True)


def _widest(wanted: Iterable[str]) -> tuple[str, ...]:
    """Without what another of them covers: a user's claims must fit into one line of 4 KiB, which
    is what a server takes of whoever connects."""
    each = tuple(dict.fromkeys(wanted))
    return tuple(
        one
        for one in each
        if not any(subjects.covers(other, one) for other in each if other != one)
    )


def inbox_prefix(user: str) -> str:
    """The prefix that this user's client must be given, as it may listen to no other."""
    return f"_INBOX.{user}"
