"""Which processes `berth up` runs and what each is told. Pure: options in, command lines out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

from berthmaster.bus.permissions import inbox_prefix

EMULATED: Final = ("gateway", "resolver", "scorer", "archivist", "emulator")
KNOWN: Final = (*EMULATED, "telemetry")
DEFAULT_CLUSTERS: Final = 8
# Enough nodes for every GPU model of the published fleet, and few enough for two cores beside
# everything else: each node sends its telemetry every second.
DEFAULT_NODES: Final = 160
SERVER_COUNTS: Final = (1, 3, 5)  # an even number outvotes no more than the odd one below it

Sync = Literal["always", "default"]


class PlanError(ValueError):
    """The options do not make a plan; the text says what would."""


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
    sync: Sync = "always"
    tenants: tuple[str, ...] = ("default",)
    log_level: str = "info"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """One process of a service."""

    name: str  # gateway, resolver-1, resolver-2
    service: str
    argv: tuple[str, ...]


def check(options: UpOptions) -> None:
    """Raises PlanError for what cannot be."""
    for service in (*options.services, *options.replicas):
        if service not in KNOWN:
            raise PlanError(f"no service {service!r}; there are {', '.join(KNOWN)}")
    if options.servers not in SERVER_COUNTS:
        raise PlanError(f"{options.servers} NATS servers: right are 1, 3 or 5")
    if options.servers > 1 and options.nats_port:
        raise PlanError(f"one port cannot be that of {options.servers} NATS servers: leave it out")
    for service, count in options.replicas.items():
        if service == "emulator" and count > options.clusters:
            raise PlanError(f"{count} emulators for {options.clusters} clusters: one each is most")
        if not 1 <= count <= 16:
            raise PlanError(f"{count} of {service}: from 1 to 16 can be run here")
    if options.clusters < 1 or 0 != options.nodes < options.clusters:
        raise PlanError(
            f"{options.nodes} nodes in {options.clusters} clusters: each cluster needs a node"
        )


def names(options: UpOptions) -> list[tuple[str, str]]:
    """(process, service) of every process, in the order in which they are shown."""
    check(options)
    found: list[tuple[str, str]] = []
    for service in dict.fromkeys(options.services):
        count = options.replicas.get(service, 1)
        if count == 1:
            found.append((service, service))
        else:
            found += [(f"{service}-{number}", service) for number in range(1, count + 1)]
    return found


def planned(
    options: UpOptions,
    *,
    python: str,
    url: str,
    seed_files: Mapping[str, Path],
    http_ports: Sequence[int],
    cluster_names: Sequence[str] = (),
) -> list[Planned]:
    """Every process with its command line. ``seed_files`` by user of the bus; ``cluster_names``
    are needed where several emulators share the clusters."""
    processes: list[Planned] = []
    emulators = options.replicas.get("emulator", 1)
    for (name, service), port in zip(names(options), http_ports, strict=True):
        argv = [python, "-m", "berthmaster.cli.main", "serve", service]
        argv += ["--nats-url", url, "--http-port", str(port), "--log-level", options.log_level]
        if service in seed_files:
            argv += ["--nats-seed-file", str(seed_files[service])]
            argv += ["--inbox-prefix", inbox_prefix(service)]
        if service == "emulator":
            argv += emulator_flags(options)
            if emulators > 1:
                mine = cluster_names[
                    len([p for p in processes if p.service == service]) :: emulators
                ]
                argv += ["--only", ",".join(mine)]
        processes.append(Planned(name=name, service=service, argv=tuple(argv)))
    return processes


def emulator_flags(options: UpOptions) -> list[str]:
    """What the emulator is told of the fleet."""
    return [
        *("--fleet", options.fleet),
        *("--clusters", str(options.clusters)),
        *(("--nodes", str(options.nodes)) if options.nodes else ()),
        *("--speed", f"{options.speed:g}"),
        *("--seed", str(options.seed)),
        *("--data-dir", str(options.folder.absolute() / "emulator")),
    ]
