"""Settings of the inventory, as in `berth serve inventory --help`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from berthmaster.lib.door_client.worker_settings import WorkerSettings
from berthmaster.lib.kube.service_client import JobSettings
from berthmaster.lib.kueue.configuration import CONFIG_MAP, MAX_CLASSES, MAX_NAME_CHARS, NAMESPACE
from berthmaster.lib.runtime.settings import setting

NO_CONFIG: Final = "none"


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
class InventorySettings(WorkerSettings, JobSettings):
    """Settings of the inventory of one worker cluster."""

    labels: tuple[str, ...] = setting(
        (), check=_labels, help="labels of the cluster for requests to match, KEY=VALUE"
    )
    kueue_config: str = setting(
        f"{NAMESPACE}/{CONFIG_MAP}",
        check=_config,
        help=(
            "ConfigMap with the configuration of the cluster's Kueue, NAMESPACE/NAME, read for "
            "deviceClassMappings; none = not read. Another name needs a rule in the ClusterRole"
            " berthmaster-inventory"
        ),
    )
    device_class_mapping: tuple[str, ...] = setting(
        (),
        check=_mappings,
        help=(
            "Kueue's resource name for claimed devices of a DeviceClass, DEVICECLASS=RESOURCE; "
            "overrides its configuration"
        ),
    )

    @property
    def cluster_labels(self) -> Mapping[str, str]:
        return {key: value for key, _, value in (part.partition("=") for part in self.labels)}

    @property
    def device_classes(self) -> Mapping[str, str]:
        """DeviceClass -> resource."""
        parts = (part.partition("=") for part in self.device_class_mapping)
        return {name: resource for name, _, resource in parts}
