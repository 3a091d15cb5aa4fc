"""The processes of `berth up` and the flags of each. Pure: options in, command lines out.

Three kinds of services: single services of the pipeline, replicated services (resolver=2), and
services of a Kubernetes cluster, for the hub or for each worker.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, NamedTuple

from berthmaster.lib.access.keys import SIGNERS
from berthmaster.lib.access.permissions import inbox_prefix
from berthmaster.lib.nats.subjects import SubjectError, token
from berthmaster.services import SERVICES

DASHBOARD: Final = "dashboard"
EMULATOR: Final = "emulator"
LOGIN: Final = "login"  # runs only with a mapping of trusted token issuers
EMULATOR_FOLDER: Final = "emulator"
USAGE_FOLDER: Final = "usage"
DEFAULT_CLUSTERS: Final = 8
# Enough nodes for every GPU model of the published fleet, and few enough for two cores shared with
# all services: each node sends its telemetry every second.
DEFAULT_NODES: Final = 160
SERVER_COUNTS: Final = (1, 3, 5)  # 4 servers tolerate no more failures than 3
LOOKS_LIKE_A_FILE: Final = ("/", "./", "../", "~")
# the limit of a MultiKueueConfig; more workers need pods in their clusters
MOST_WORKERS: Final = 20

Sync = Literal["always", "default"]
Mode = Literal["observe", "dispatch"]


class PlanError(ValueError):
    """The options are no valid plan. The text says what would be right."""


@dataclass(frozen=True, kw_only=True)
class KubeTarget:
    """A Kubernetes cluster and the access. Neither file nor context = in-cluster access."""

    name: str
    kubeconfig: Path | None = None  # None = KUBECONFIG, else ~/.kube/config
    context: str = ""  # "" = the file's current context

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the flags for a service."""
        file = ("--kubeconfig", str(self.kubeconfig)) if self.kubeconfig else ()
        return (*file, *(("--context", self.context) if self.context else ()))


def defaults(
    hub: KubeTarget | None = None,
    workers: Sequence[KubeTarget] = (),
    karmada: KubeTarget | None = None,
) -> tuple[str, ...]:
    """Return the services that run by default. Emulated clusters run only without real ones."""
    targets = {"hub": hub, "karmada": karmada, "worker": workers}
    real = [kind for kind, target in targets.items() if target]
    return tuple(
        row.name
        for row in SERVICES.values()
        if row.up in ("here", *real) and not row.named and not (real and row.name == EMULATOR)
    )


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """Options of `berth up`."""

    folder: Path
    services: tuple[str, ...] = defaults()
    replicas: Mapping[str, int] = field(default_factory=dict)  # of resolver, scorer, gateway …
    clusters: int = DEFAULT_CLUSTERS
    nodes: int = DEFAULT_NODES  # 0 = as many as the list has
    fleet: str = "builtin"
    speed: float = 1.0
    seed: int = 1
    servers: int = 1  # NATS servers; with 3, each stream has 3 replicas and a server may fail
    nats_port: int = 0  # 0 = a free port
    page_port: int = 0  # of the dashboard; 0 = the default port if free, else any
    websocket_port: int = 0  # of NATS, for subscribing web pages; 0 = no websocket
    websocket_origins: tuple[str, ...] = ()  # permitted origins of web pages; () = any, with a key
    sync: Sync = "always"
    tenants: tuple[str, ...] = ("default",)
    log_level: str = "info"
    hub: KubeTarget | None = None
    karmada: KubeTarget | None = None  # the API server of a Karmada control plane
    workers: tuple[KubeTarget, ...] = ()
    mode: Mode = "observe"
    namespaces: tuple[str, ...] = ()  # namespaces of the workers for jobs
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # worker: KEY=VALUE …
    external: tuple[str, ...] = ()  # names of NATS for agents elsewhere, over TLS
    # mapping of accepted tokens; None = no login service
    login_mapping: Path | None = None


class Entry(NamedTuple):
    """A planned process: its name, service, user of the bus, and own flags."""

    name: str
    service: str
    user: str
    flags: tuple[str, ...] = ()
    cluster: str = ""  # Kubernetes cluster of the needed API server; "" = no cluster


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One process of a service."""

    name: str  # gateway, resolver-1, resolver-2
    service: str
    argv: tuple[str, ...]


def kube_target(text: str, is_file: Callable[[Path], bool]) -> KubeTarget:
    """Parse [NAME=]CONTEXT or [NAME=]FILE[:CONTEXT]. Raises PlanError.

    Contexts may contain colons too, so the text before the first colon is a file only if the file
    exists.
    """
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


def check(options: UpOptions) -> None:
    """Raise PlanError for options that are no valid plan."""
    known = [row.name for row in SERVICES.values() if row.up]
    for service in (*options.services, *options.replicas):
        if service not in known:
            raise PlanError(f"no service {service!r}; there are {', '.join(known)}")
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
        if service == EMULATOR and count > options.clusters:
            raise PlanError(f"{count} emulators for {options.clusters} clusters: one each is most")
        if SERVICES[service].up != "here" and count != 1:
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
    targets = {"hub": options.hub, "karmada": options.karmada, "worker": options.workers}
    for service in options.services:
        kind = SERVICES[service].up
        if kind in targets and not targets[kind]:
            raise PlanError(f"{service} belongs to a cluster: name it with --{kind}")


def entries(options: UpOptions) -> list[Entry]:
    """Return every process, in the order of display. Raises PlanError."""
    check(options)
    found: list[Entry] = []
    for service in dict.fromkeys(options.services):
        if SERVICES[service].up == "here":
            count = options.replicas.get(service, 1)
            each = [service] if count == 1 else [f"{service}-{n}" for n in range(1, count + 1)]
            found += [Entry(name, service, service) for name in each]
    if options.login_mapping is not None:
        told = ("--mapping-file", str(options.login_mapping.absolute()))
        found.append(Entry(LOGIN, LOGIN, LOGIN, told))
    for kind, target in (("hub", options.hub), ("karmada", options.karmada)):
        if target is not None:
            for service in _among(kind, options.services):
                mode = ("--mode", options.mode) if service == "multikueue" else ()
                flags = (*mode, *target.flags)
                found.append(Entry(service, service, service, flags, target.name))
    for worker in options.workers:
        labels = options.labels.get(worker.name, ())
        found += worker_entries(worker, options.namespaces, options.services, labels=labels)
    return found


def _among(kind: str, services: Iterable[str]) -> list[str]:
    """Return the services for this kind of cluster, in the order of services.py."""
    return [row.name for row in SERVICES.values() if row.up == kind and row.name in services]


def worker_entries(
    worker: KubeTarget,
    namespaces: Sequence[str],
    services: Iterable[str],
    *,
    labels: Sequence[str] = (),
) -> list[Entry]:
    """Return the processes of one worker cluster."""
    name = token(worker.name)
    allowed = ("--namespaces", ",".join(namespaces))
    own = {
        "inventory": ("--labels", ",".join(labels)) if labels else (),
        "executor": allowed,
        "figures": allowed if namespaces else (),
    }
    return [
        Entry(
            f"{service}-{name}",
            service,
            f"{service}.{name}",
            ("--cluster", worker.name, *own.get(service, ()), *worker.flags),
            worker.name,
        )
        for service in _among("worker", services)
    ]


def figures_from(options: UpOptions) -> list[str]:
    """Return a sentence for each worker on the source of its GPUs' usage metrics. Telemetry is read
    on nodes, and processes here run on none of the worker's nodes.
    """
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
    """Return every process with its command line.

    ``creds_files``: by user of the bus; ``memory``: folder of high-water marks; ``keys``: folder of
    accounts; ``usage``: folder of the usage of ended jobs; ``page_port``: of the dashboard.
    """
    processes: list[Planned] = []
    for entry, port in zip(entries, http_ports, strict=True):
        argv = [python, "-m", "berthmaster.cli.main", "serve", entry.service]
        argv += ["--nats-url", url, "--http-port", str(port), "--log-level", log_level]
        if entry.user in creds_files:
            argv += ["--nats-creds-file", str(creds_files[entry.user])]
            argv += ["--inbox-prefix", inbox_prefix(entry.user)]
        if ca_file is not None:
            argv += ["--nats-ca-file", str(ca_file)]
        if memory is not None and SERVICES[entry.service].remembers:
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
    """Return the entries with each emulator's flags. Several emulators divide the clusters."""
    count = options.replicas.get(EMULATOR, 1)
    number = 0
    told: list[Entry] = []
    for entry in entries:
        if entry.service == EMULATOR:
            flags = tuple(emulator_flags(options))
            number += 1
            if count > 1:
                flags += ("--part", f"{number}/{count}")
            entry = entry._replace(flags=flags)
        told.append(entry)
    return told


def emulator_flags(options: UpOptions) -> list[str]:
    """Return the emulator's flags for the fleet."""
    return [
        *("--fleet", options.fleet),
        *("--clusters", str(options.clusters)),
        *(("--nodes", str(options.nodes)) if options.nodes else ()),
        *("--speed", f"{options.speed:g}"),
        *("--seed", str(options.seed)),
        *("--data-dir", str(options.folder.absolute() / EMULATOR_FOLDER)),
    ]
