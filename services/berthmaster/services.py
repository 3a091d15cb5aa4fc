"""The list of services, one row each: side, package, and extras of the image.

A new service is a package with a ``service.py`` and a row here. `berth serve`, the images, the
process plan and the bus users of `berth up`, the table in docs and the tests read this list. Bus
permissions of a service are a function in lib/access/permissions.py.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

Side = Literal["control", "hub", "worker", "lab"]


class ServiceRow(NamedTuple):
    """One service."""

    name: str  # in `berth serve NAME`, and of the image, bus user, metrics and settings
    side: Side  # control: beside NATS; hub, worker: beside the API server of a hub or worker
    about: str
    # `berth up` runs one process (here), one a hub, Karmada or worker; "" = no process
    up: Literal["", "here", "hub", "karmada", "worker"] = ""
    port: int = 0  # of the container in a shared pod of the chart; 0 = no such container
    own_extras: tuple[
        str, ...
    ] = ()  # extras of pyproject.toml for the image; () = the extra of the same name
    folder: str = ""  # folder of the package; "" = the name
    remembers: bool = False  # has a folder to remember high-water marks of the event log
    named: bool = False  # `berth up` runs the service only if --services names it

    @property
    def extras(self) -> tuple[str, ...]:
        return self.own_extras or (self.name,)

    @property
    def package(self) -> str:
        return f"berthmaster.{self.side}.{self.folder or self.name}"

    @property
    def module(self) -> str:
        """Module of the service's ``SERVICE``."""
        return f"{self.package}.service"

    @property
    def extra(self) -> str:
        """Extra to name in the hint `pip install` if a library is missing."""
        return self.extras[-1]


_KUBERNETES: Final = ("kubernetes",)
_ROWS: Final = (
    ServiceRow(
        "gateway", "control", "the API of tenants and operators", "here", 8081, remembers=True
    ),
    ServiceRow(
        "resolver",
        "control",
        "decides where jobs run, answers why and what if",
        "here",
        8082,
        remembers=True,
    ),
    ServiceRow(
        "scorer", "control", "scores nodes and clusters from facts and telemetry", "here", 8083
    ),
    ServiceRow("archivist", "control", "moves ended jobs out of the event log", "here", 8084),
    ServiceRow(
        "usage",
        "control",
        "usage and cost of ended jobs, trends, webhooks",
        "here",
        8085,
        own_extras=("usage", "postgres", "otel"),
    ),
    ServiceRow(
        "door",
        "control",
        "the agent API: the only service that agents speak to",
        "here",
        8086,
        remembers=True,
    ),
    # `berth cluster add` and `berth tenant add` run beside the folder of keys.
    ServiceRow(
        "accounts",
        "control",
        "keeps accounts of the NATS servers equal to the folder of keys",
        "here",
        8087,
        own_extras=("cli", "accounts"),
    ),
    ServiceRow(
        "login",
        "control",
        "exchanges an identity token for a NATS credential",
        "",
        8090,
        own_extras=("kubernetes", "login"),
    ),
    ServiceRow("dashboard", "control", "the web page", "here"),
    ServiceRow(
        "members",
        "hub",
        "reports what a hub knows of its clusters as facts",
        "hub",
        8097,
        own_extras=_KUBERNETES,
    ),
    ServiceRow(
        "multikueue",
        "hub",
        "nominates clusters for Workloads of MultiKueue",
        "hub",
        8089,
        own_extras=("resolver", "kubernetes"),
        remembers=True,
    ),
    ServiceRow(
        "karmada",
        "hub",
        "holds ResourceBindings of Karmada until the resolver places them",
        "karmada",
        8091,
        own_extras=_KUBERNETES,
        remembers=True,
    ),
    ServiceRow(
        "credentials",
        "hub",
        "creates, renews and revokes a hub's access to workers",
        own_extras=_KUBERNETES,
    ),
    ServiceRow(
        "ocm",
        "hub",
        "writes scores for Open Cluster Management",
        "hub",
        8092,
        own_extras=_KUBERNETES,
        named=True,
    ),
    ServiceRow(
        "admission",
        "hub",
        "turns OCM Placements into MultiKueueConfigs",
        "hub",
        8093,
        own_extras=_KUBERNETES,
        named=True,
    ),
    ServiceRow(
        "placement",
        "hub",
        "decides Placements that OCM's scheduler ignores",
        own_extras=("kubernetes", "placement"),
    ),
    # Checks the end of its certificate: the extra of accounts has the library.
    ServiceRow(
        "clearing",
        "hub",
        "clears nominations where the API server has no policy for that (before 1.36)",
        own_extras=("accounts",),
    ),
    ServiceRow(
        "telemetry", "worker", "samples the GPUs of a node every second", "here", 8096, named=True
    ),
    ServiceRow(
        "inventory",
        "worker",
        "reports nodes, pods and queues as facts",
        "worker",
        8088,
        own_extras=_KUBERNETES,
    ),
    ServiceRow(
        "executor",
        "worker",
        "claims placements, creates their Jobs, reports how they end",
        "worker",
        8094,
        own_extras=_KUBERNETES,
    ),
    ServiceRow(
        "figures",
        "worker",
        "measures what the GPUs of each job do",
        "worker",
        8095,
        own_extras=_KUBERNETES,
        folder="job_metrics",
    ),
    ServiceRow(
        "claims",
        "worker",
        "writes ClusterClaims of an OCM cluster from its score",
        "worker",
        8098,
        own_extras=_KUBERNETES,
        named=True,
    ),
    ServiceRow("shares", "worker", "device plugin for shares of GPUs"),
    ServiceRow("emulator", "lab", "worker clusters without hardware", "here"),
)
SERVICES: Final[Mapping[str, ServiceRow]] = MappingProxyType({row.name: row for row in _ROWS})
