"""What the inventory can be told; `berth serve inventory --help` shows it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from berthmaster.bus.subjects import SubjectError, token
from berthmaster.kubernetes.joining import ClusterSettings
from berthmaster.kueue.configuration import CONFIG_MAP, MAX_CLASSES, MAX_NAME_CHARS, NAMESPACE
from berthmaster.runtime.settings import setting

NO_CONFIG: Final = "none"


def _cluster(text: str) -> str:
    try:
        token(text or "-")
    except SubjectError as error:
        return f"a name that can stand in a subject ({error})"
    return ""


def _labels(parts: tuple[str, ...]) -> str:
    good = all(0 < part.find("=") <= 316 and len(part) <= 1024 for part in parts)
    return "" if good and len(parts) <= 64 else "KEY=VALUE, at most 64 of them"


def _mappings(parts: tuple[str, ...]) -> str:
    good = all(one and resource for one, _, resource in (part.partition("=") for part in parts))
    small = all(len(part) <= 2 * MAX_NAME_CHARS + 1 for part in parts)
    return (
        ""
        if good and small and len(parts) <= MAX_CLASSES
        else (f"DEVICECLASS=RESOURCE, at most {MAX_CLASSES} of them")
    )


def _config(text: str) -> str:
    namespace, slash, name = text.partition("/")
    good = text == NO_CONFIG or (namespace and slash and name and "/" not in name)
    return "" if good else f"NAMESPACE/NAME of a ConfigMap, or {NO_CONFIG}"


@dataclass(frozen=True, kw_only=True)
class InventorySettings(ClusterSettings):
    """One side of the fleet: a worker cluster, or a hub."""

    side: Literal["worker", "hub"] = setting(
        "worker",
        help="worker: what one cluster has and does; hub: what a hub knows of its clusters",
    )
    cluster: str = setting(
        "", check=_cluster, help="the worker cluster's name in the fleet; needed for side worker"
    )
    labels: tuple[str, ...] = setting(
        (), check=_labels, help="labels of the cluster that requests can be matched by, KEY=VALUE"
    )
    jobs: Literal["kubernetes", "volcano"] = setting(
        "kubernetes",
        help="what the cluster's executor makes of requests, as its --jobs says: volcano = where "
        "Jobs of Volcano's are served, requests of several pod sets go there without JobSet too",
    )
    kueue_config: str = setting(
        f"{NAMESPACE}/{CONFIG_MAP}",
        check=_config,
        help="ConfigMap with the configuration of the cluster's Kueue, NAMESPACE/NAME: its "
        "deviceClassMappings are read; none = it is not looked at. Rights of the name are in "
        "inventory-rbac.yaml",
    )
    device_class_mapping: tuple[str, ...] = setting(
        (),
        check=_mappings,
        help="as which resource the cluster's Kueue counts claimed devices of a DeviceClass, "
        "DEVICECLASS=RESOURCE; counts over what its configuration says",
    )
    profile_namespace: str = setting(
        "",
        help="side hub: namespace whose ClusterProfiles count; empty = all (one of a name counts)",
    )
    report_interval_s: float = setting(
        0.1,
        least=0.0,
        most=60,
        help="seconds between two reports of one thing, at least; the first change is told at once",
    )
    report_rate: float = setting(
        500.0,
        least=1,
        most=1e6,
        help="reports a second of nodes that only our own pods have changed, and of all that is "
        "told anew hourly; foreign pods, nodes and queues are always told",
    )
    silent_limit_s: float = setting(
        130.0,
        least=1,
        most=3600,
        help="seconds without a word of the API server's watches after which the cluster gets no "
        "sign of life; servers send a bookmark a minute, so one may be missed",
    )
    absent_s: float = setting(
        30.0,
        least=0.1,
        most=3600,
        help="seconds between two looks for a kind that the cluster does not serve (Kueue's, DRA)",
    )
    lease_ttl_s: float = setting(
        1.5,
        least=0.3,
        most=60,
        help="seconds until a silent inventory is replaced by another that stands by",
    )

    @property
    def cluster_labels(self) -> Mapping[str, str]:
        return {key: value for key, _, value in (part.partition("=") for part in self.labels)}

    @property
    def device_classes(self) -> Mapping[str, str]:
        """DeviceClass -> resource."""
        parts = (part.partition("=") for part in self.device_class_mapping)
        return {name: resource for name, _, resource in parts}
