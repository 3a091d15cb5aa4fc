"""Every service, one row each: where it runs, its package, and what its image holds.

A new service is a package with a ``service.py`` and a row here. `berth serve`, the images, the
process plan of `berth up`, the docs' table and the tests read this list and have none of their own.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

Side = Literal["control", "hub", "worker", "lab"]


class ServiceRow(NamedTuple):
    """One service. ``extras`` are those of pyproject.toml that its image installs."""

    name: str  # in `berth serve NAME`, its image, its user on the bus, its metrics and settings
    side: Side  # control: beside NATS; hub, worker: beside such a cluster's API server
    extras: tuple[str, ...]
    about: str
    folder: str = ""  # where the package is not called as the service is
    remembers: bool = False  # keeps a memory folder: what it knows of the event log

    @property
    def package(self) -> str:
        return f"berthmaster.{self.side}.{self.folder or self.name}"

    @property
    def module(self) -> str:
        """Where the service's ``SERVICE`` is."""
        return f"{self.package}.service"

    @property
    def extra(self) -> str:
        """What `pip install` is told where a library is missing."""
        return self.extras[-1]


_ROWS: Final = (
    ServiceRow(
        "gateway", "control", ("gateway",), "the API of tenants and operators", remembers=True
    ),
    ServiceRow("resolver", "control", ("resolver",), "decides where jobs go", remembers=True),
    ServiceRow("scorer", "control", ("scorer",), "scores clusters by what their GPUs do now"),
    ServiceRow("archivist", "control", ("archivist",), "moves ended jobs out of the event log"),
    ServiceRow("usage", "control", ("usage", "postgres"), "usage, cost, waits; webhooks"),
    ServiceRow(
        "door", "control", ("door",), "what agents of worker clusters speak to", remembers=True
    ),
    # `berth cluster add` and `berth tenant add` are run beside the folder of keys.
    ServiceRow(
        "accounts", "control", ("cli", "accounts"), "tells NATS of new and removed accounts"
    ),
    ServiceRow("login", "control", ("kubernetes", "login"), "credentials for an identity token"),
    ServiceRow("dashboard", "control", ("dashboard",), "the page"),
    ServiceRow(
        "multikueue",
        "hub",
        ("resolver", "kubernetes"),
        "nominates clusters for Workloads",
        remembers=True,
    ),
    ServiceRow(
        "karmada", "hub", ("kubernetes",), "places Karmada's ResourceBindings", remembers=True
    ),
    ServiceRow("credentials", "hub", ("kubernetes",), "service accounts and tokens of workers"),
    ServiceRow(
        "ocm",
        "hub",
        ("kubernetes",),
        "AddOnPlacementScores, ClusterProfile properties, ClusterClaims",
    ),
    ServiceRow(
        "admission",
        "hub",
        ("kubernetes",),
        "AdmissionCheck to MultiKueueConfig and MultiKueueCluster",
    ),
    ServiceRow(
        "placement",
        "hub",
        ("kubernetes", "placement"),
        "OCM's Placement: decisions by labels, CEL and scores",
    ),
    ServiceRow("telemetry", "worker", ("telemetry",), "readings of a node's GPUs"),
    ServiceRow("inventory", "worker", ("kubernetes",), "nodes, pods, queues as facts of the fleet"),
    ServiceRow("executor", "worker", ("kubernetes",), "claims placements, makes their Jobs"),
    ServiceRow(
        "figures", "worker", ("kubernetes",), "what each job's GPUs do", folder="job_metrics"
    ),
    ServiceRow("shares", "worker", ("shares",), "device plugin for parts of GPUs"),
    ServiceRow("emulator", "lab", ("emulator",), "worker clusters without hardware"),
)
SERVICES: Final[Mapping[str, ServiceRow]] = MappingProxyType({row.name: row for row in _ROWS})
