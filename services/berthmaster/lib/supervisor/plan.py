"""Which processes `berth up` runs and what each is told. Pure: options in, command lines out.

Three kinds of services: those of the pipeline, one of each; those that are multiplied (resolver=2);
and those that belong to a Kubernetes cluster, one for the hub or one for each worker.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from berthmaster.lib.access.keys import SIGNERS
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.nats.subjects import SubjectError, token

PIPELINE: Final = ("gateway", "resolver", "scorer", "archivist", "usage", "door", "accounts")
DASHBOARD: Final = "dashboard"
EMULATED: Final = (*PIPELINE, "emulator", DASHBOARD)
HUB_SERVICES: Final = ("inventory", "multikueue")
WORKER_SERVICES: Final = ("inventory", "executor", "figures")
# Beside those, where they are asked for by name: each needs kinds that not every hub has.
HUB_ALSO: Final = ("ocm", "admission")
WORKER_ALSO: Final = ("ocm",)
KARMADA: Final = "karmada"  # beside a control plane of its own, where one is named
KUBERNETES: Final = tuple(
    dict.fromkeys((*HUB_SERVICES, *WORKER_SERVICES, *HUB_ALSO, *WORKER_ALSO, KARMADA))
)
LOGIN: Final = "login"  # beside all that, where a mapping says whom to believe
KNOWN: Final = (*EMULATED, "telemetry", *KUBERNETES)
EMULATOR_FOLDER: Final = "emulator"
USAGE_FOLDER: Final = "usage"
REMEMBERING: Final = ("gateway", "resolver", "multikueue", KARMADA, "door")
DEFAULT_CLUSTERS: Final = 8
# Enough nodes for every GPU model of the published fleet, and few enough for two cores beside
# everything else: each node sends its telemetry every second.
DEFAULT_NODES: Final = 160
SERVER_COUNTS: Final = (1, 3, 5)  # an even number outvotes no more than the odd one below it
LOOKS_LIKE_A_FILE: Final = ("/", "./", "../", "~")
MOST_WORKERS: Final = 20  # what a MultiKueueConfig holds; more are for pods in their clusters

Sync = Literal["always", "default"]
Mode = Literal["observe", "dispatch"]


class PlanError(ValueError):
    """The options do not make a plan; the text says what would."""


@dataclass(frozen=True, kw_only=True)
class KubeTarget:
    """A Kubernetes cluster and how to reach it; neither file nor context = from inside."""

    name: str
    kubeconfig: Path | None = None  # None = KUBECONFIG, else ~/.kube/config
    context: str = ""  # "" = the file's current one

    @property
    def flags(self) -> tuple[str, ...]:
        """What a service is told."""
        file = ("--kubeconfig", str(self.kubeconfig)) if self.kubeconfig else ()
        return (*file, *(("--context", self.context) if self.context else ()))


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """What `berth up` was asked for."""

    folder: Path
    services: tuple[str, ...] = EMULATED
    replicas: Mapping[str, int] = field(default_factory=dict)  # of resolver, scorer, gateway …
    clusters: int = DEFAULT_CLUSTERS
    nodes: int = DEFAULT_NODES  # 0 = as many as the list has
    fleet: str = "builtin"
    speed: float = 1.0
    seed: int = 1
    servers: int = 1  # of NATS; several hold each stream together and one may be lost
    nats_port: int = 0  # 0 = a free one
    page_port: int = 0  # of the dashboard; 0 = the usual one if it is free, else any
    websocket_port: int = 0  # of NATS, for pages that subscribe by themselves; 0 = there is none
    websocket_origins: tuple[str, ...] = ()  # whose pages may; none named = anybody's, with a key
    sync: Sync = "always"
    tenants: tuple[str, ...] = ("default",)
    log_level: str = "info"
    hub: KubeTarget | None = None
    karmada: KubeTarget | None = None  # the API server of a Karmada control plane
    workers: tuple[KubeTarget, ...] = ()
    mode: Mode = "observe"
    namespaces: tuple[str, ...] = ()  # of the workers, in which jobs may be made
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # worker: KEY=VALUE …
    external: tuple[str, ...] = ()  # names under which agents elsewhere reach NATS; then over TLS
    login_mapping: Path | None = None  # whose tokens the login service takes; None = there is none


class Entry(NamedTuple):
    """One process to be: its name, its service, who it is on the bus, what it alone is told."""

    name: str
    service: str
    user: str
    flags: tuple[str, ...] = ()
    cluster: str = ""  # name of the Kubernetes cluster whose API server it needs; "" = none


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One process of a service."""

    name: str  # gateway, resolver-1, resolver-2
    service: str
    argv: tuple[str, ...]


def kube_target(text: str, is_file: Callable[[Path], bool]) -> KubeTarget:
    """[NAME=]CONTEXT or [NAME=]FILE[:CONTEXT]. Contexts may hold colons too, so what stands before
    the first one is a file only if it is there. Raises PlanError."""
    name, equals, rest = text.partition("=")
    if not equals or not _is_name(name):
        name, rest = "", text
    path, colon, context = rest.partition(":")
    if is_file(Path(rest).expanduser()):
        path, context = rest, ""
    elif not (colon and is_file(Path(path).expanduser())):
        if rest.startswith(LOOKS_LIKE_A_FILE):
            raise PlanError(f"{text!r}: there is no file {path}")
        path, context = "", rest
    file = Path(path).expanduser() if path else None
    name = name or context or (file.stem if file else "")
    if not name:
        raise PlanError(f"{text!r}: right is CONTEXT, FILE, FILE:CONTEXT, or NAME= before one")
    try:
        token(name)
    except SubjectError as error:
        raise PlanError(f"{text!r}: {error}; give a shorter one as NAME={rest[:20]}…") from error
    return KubeTarget(name=name, kubeconfig=file, context=context)


def _is_name(text: str) -> bool:
    return bool(text) and not set(text) & set("/:~")


def defaults(
    hub: KubeTarget | None, workers: Sequence[KubeTarget], karmada: KubeTarget | None = None
) -> tuple[str, ...]:
    """What runs when no services are named: emulated clusters only where there are no real ones."""
    found = [*PIPELINE]
    found += HUB_SERVICES if hub else ()
    found += (KARMADA,) if karmada else ()
    found += WORKER_SERVICES if workers else ()
    found.append(DASHBOARD)
    return tuple(dict.fromkeys(found)) if hub or workers or karmada else EMULATED


def check(options: UpOptions) -> None:
    """Raises PlanError for what cannot be."""
    for service in (*options.services, *options.replicas):
        if service not in KNOWN:
            raise PlanError(f"no service {service!r}; there are {', '.join(KNOWN)}")
    if options.servers not in SERVER_COUNTS:
        raise PlanError(f"{options.servers} NATS servers: right are 1, 3 or 5")
    if options.servers > 1 and options.nats_port:
        raise PlanError(f"one port cannot be that of {options.servers} NATS servers: leave it out")
    if options.websocket_port and options.servers > 1:
        raise PlanError("--websocket is for one NATS server: several cannot share the port")
    if options.websocket_port and options.websocket_port == options.nats_port:
        raise PlanError(f"--websocket: port {options.websocket_port} is --port already")
    if options.servers > 1 and options.external:
        raise PlanError("several NATS servers of one machine are for trying: --external takes one")
    for service, count in options.replicas.items():
        if service == "emulator" and count > options.clusters:
            raise PlanError(f"{count} emulators for {options.clusters} clusters: one each is most")
        if service in KUBERNETES and count != 1:
            raise PlanError(f"{count} of {service}: there is one for each cluster")
        if not 1 <= count <= 16:
            raise PlanError(f"{count} of {service}: from 1 to 16 can be run here")
    if options.clusters < 1 or 0 != options.nodes < options.clusters:
        raise PlanError(
            f"{options.nodes} nodes in {options.clusters} clusters: each cluster needs a node"
        )
    _check_kubernetes(options)


def _check_kubernetes(options: UpOptions) -> None:
    workers = [worker.name for worker in options.workers]
    if twice := sorted({name for name in workers if workers.count(name) > 1}):
        raise PlanError(f"two workers are named {twice[0]!r}: give one another name with NAME=")
    if strangers := sorted(set(options.labels) - set(workers)):
        raise PlanError(f"--label {strangers[0]}:…: no worker has this name")
    if len(workers) > MOST_WORKERS:
        raise PlanError(f"{len(workers)} workers: from here {MOST_WORKERS} at most can be served")
    if "executor" in options.services and options.workers and not options.namespaces:
        raise PlanError("--namespaces is missing: in which namespaces of the workers jobs are made")
    for service, targets, flag in (
        ("executor", options.workers, "--worker"),
        ("figures", options.workers, "--worker"),
        ("multikueue", options.hub, "--hub"),
        ("admission", options.hub, "--hub"),
        (KARMADA, options.karmada, "--karmada"),
        ("inventory", options.workers or options.hub, "--hub or --worker"),
        ("ocm", options.workers or options.hub, "--hub or --worker"),
    ):
        if service in options.services and not targets:
            raise PlanError(f"{service} belongs to a cluster: name it with {flag}")


def entries(options: UpOptions) -> list[Entry]:
    """Every process, in the order in which they are shown. Raises PlanError."""
    check(options)
    found: list[Entry] = []
    for service in dict.fromkeys(options.services):
        if service in KUBERNETES:
            continue
        count = options.replicas.get(service, 1)
        each = [service] if count == 1 else [f"{service}-{n}" for n in range(1, count + 1)]
        found += [Entry(name, service, service) for name in each]
    if options.login_mapping is not None:
        told = ("--mapping-file", str(options.login_mapping.absolute()))
        found.append(Entry(LOGIN, LOGIN, LOGIN, told))
    if options.hub is not None:
        found += hub_entries(options.hub, options.mode, options.services)
    if options.karmada is not None and KARMADA in options.services:
        found.append(Entry(KARMADA, KARMADA, KARMADA, options.karmada.flags, options.karmada.name))
    for worker in options.workers:
        labels = options.labels.get(worker.name, ())
        found += worker_entries(worker, options.namespaces, options.services, labels=labels)
    return found


def hub_entries(hub: KubeTarget, mode: Mode, services: Iterable[str]) -> list[Entry]:
    at = hub.name
    side = Entry("inventory-hub", "inventory", "inventory", ("--side", "hub", *hub.flags), at)
    dispatcher = Entry("multikueue", "multikueue", "multikueue", ("--mode", mode, *hub.flags), at)
    also = [Entry(service, service, service, hub.flags, at) for service in HUB_ALSO]
    return [entry for entry in (side, dispatcher, *also) if entry.service in services]


def worker_entries(
    worker: KubeTarget,
    namespaces: Sequence[str],
    services: Iterable[str],
    *,
    labels: Sequence[str] = (),
) -> list[Entry]:
    """What belongs to one worker cluster."""
    where = ("--cluster", worker.name)
    allowed = ("--namespaces", ",".join(namespaces))
    name = token(worker.name)
    known = ("--labels", ",".join(labels)) if labels else ()
    told = {
        "inventory": (*where, *known, *worker.flags),
        "executor": (*where, *allowed, *worker.flags),
        "figures": (*where, *(allowed if namespaces else ()), *worker.flags),
        "ocm": ("--side", "worker", *where, *worker.flags),
    }
    return [
        Entry(f"{service}-{name}", service, f"{service}.{name}", flags, worker.name)
        for service, flags in told.items()
        if service in services
    ]


def figures_from(options: UpOptions) -> list[str]:
    """Where what the workers' GPUs do comes from, a sentence each, and what it takes if from
    nowhere: telemetry is read on nodes, and none of what runs here is on one."""
    told = [
        f"What the GPUs of {worker.name} do is told by agents on its nodes "
        f"(`berth cluster add {shlex.quote(worker.name)} --nodes`, "
        "deploy/chart, worker.telemetry nodes) or by one scraper of its dcgm-exporters; "
        f"`berth top {shlex.quote(worker.name)}` shows it, `berth doctor` what is missing."
        for worker in options.workers
    ]
    if told and "telemetry" in options.services:
        told.append("The telemetry agent here reads this machine's own GPUs.")
    if told and not options.external:
        told.append(
            "Without --external nobody elsewhere reaches this bus: nothing is told of their GPUs."
        )
    return told


def planned(
    entries: Sequence[Entry],
    *,
    python: str,
    url: str,
    creds_files: Mapping[str, Path],
    http_ports: Sequence[int],
    log_level: str = "info",
    ca_file: Path | None = None,
    memory: Path | None = None,
    keys: Path | None = None,
    usage: Path | None = None,
    page_port: int = 0,
) -> list[Planned]:
    """Every process with its command line. ``creds_files`` by user of the bus; ``memory``: where
    services remember how far the logs were; ``keys``: where accounts are; ``usage``: where the
    store of ended jobs is; ``page_port``: where the dashboard's page is."""
    processes: list[Planned] = []
    for entry, port in zip(entries, http_ports, strict=True):
        argv = [python, "-m", "berthmaster.cli.main", "serve", entry.service]
        argv += ["--nats-url", url, "--http-port", str(port), "--log-level", log_level]
        if entry.user in creds_files:
            argv += ["--nats-creds-file", str(creds_files[entry.user])]
            argv += ["--inbox-prefix", inbox_prefix(entry.user)]
        if ca_file is not None:
            argv += ["--nats-ca-file", str(ca_file)]
        if memory is not None and entry.service in REMEMBERING:
            argv += ["--memory-dir", str(memory)]
        if usage is not None and entry.service == "usage":
            argv += ["--store-dir", str(usage)]
        if keys is not None and entry.service == "accounts":
            argv += ["--keys-dir", str(keys)]
        if entry.service == DASHBOARD and page_port:
            argv += ["--page-port", str(page_port)]
        if keys is not None and entry.service == LOGIN:
            argv += ["--signers-dir", str(keys / SIGNERS)]
        processes.append(
            Planned(name=entry.name, service=entry.service, argv=(*argv, *entry.flags))
        )
    return processes


def with_fleet(entries: Sequence[Entry], options: UpOptions) -> list[Entry]:
    """The same, and each emulator knows its fleet; several share the clusters."""
    count = options.replicas.get("emulator", 1)
    number = 0
    told: list[Entry] = []
    for entry in entries:
        if entry.service == "emulator":
            flags = tuple(emulator_flags(options))
            number += 1
            if count > 1:
                flags += ("--part", f"{number}/{count}")
            entry = entry._replace(flags=flags)
        told.append(entry)
    return told


def emulator_flags(options: UpOptions) -> list[str]:
    """What the emulator is told of the fleet."""
    return [
        *("--fleet", options.fleet),
        *("--clusters", str(options.clusters)),
        *(("--nodes", str(options.nodes)) if options.nodes else ()),
        *("--speed", f"{options.speed:g}"),
        *("--seed", str(options.seed)),
        *("--data-dir", str(options.folder.absolute() / EMULATOR_FOLDER)),
    ]
