"""As which resources a cluster's Kueue counts what pods ask for by other names."""

import click
import msgspec
import pytest

from berthmaster.lib.kube.controller.problems import Problem
from berthmaster.lib.kube.mirror import Added, Deleted, Updated
from berthmaster.lib.kube.objects import Metadata
from berthmaster.lib.kueue.configuration import CONFIG_FILE, CONFIG_MAP, NAMESPACE, ConfigMap
from berthmaster.lib.messages.fleet import ClusterProfile
from berthmaster.lib.nats import subjects
from berthmaster.lib.runtime.settings import load
from berthmaster.worker.inventory.core.inventory import Inventory
from berthmaster.worker.inventory.core.kinds import WatchedKind
from berthmaster.worker.inventory.core.objects import DeviceClass
from berthmaster.worker.inventory.settings import InventorySettings
from tests.support.environment import load_with
from tests.unit.worker.inventory.objects import NOW_S, STAMP, device_class

PROFILE = subjects.profile("east")
CLAIMED = "deviceclass.resource.kubernetes.io/"
GPUS = "example.com/gpus"


def config(text: str) -> ConfigMap:
    return ConfigMap(
        metadata=Metadata(name=CONFIG_MAP, namespace=NAMESPACE), data={CONFIG_FILE: text}
    )


def mapping(*classes: str, name: str = GPUS) -> ConfigMap:
    rows = f"[{{name: {name}, deviceClassNames: {list(classes)}}}]"
    return config(f"resources: {{deviceClassMappings: {rows}}}")


def counted(name: str, resource: str, made: str = "") -> DeviceClass:
    found = device_class(name, "device.driver == 'gpu.nvidia.com'", resource=resource)
    metadata = msgspec.structs.replace(found.metadata, creation_timestamp=made or None)
    return msgspec.structs.replace(found, metadata=metadata)


def told(inventory: Inventory) -> dict[str, str]:
    fact = inventory.fact(PROFILE, STAMP, NOW_S)
    assert fact is not None
    assert isinstance(fact[0], ClusterProfile)
    return fact[0].counted_as


def test_the_profile_tells_them_from_the_first_configuration_to_none() -> None:
    inventory = Inventory("east")
    first = mapping("gpu.nvidia.com")
    inventory.changes()
    inventory.take(WatchedKind.CONFIGURATION, Added(first))
    assert dict(inventory.changes()) == {PROFILE: True}
    assert told(inventory) == {f"{CLAIMED}gpu.nvidia.com": GPUS}

    # Pods may ask for the class's devices by counting as well: Kueue counts them as the same.
    one = counted("gpu.nvidia.com", "nvidia.com/gpu")
    inventory.take(WatchedKind.CLASSES, Added(one))
    assert PROFILE in inventory.changes()
    both = {f"{CLAIMED}gpu.nvidia.com": GPUS, "nvidia.com/gpu": GPUS}
    assert told(inventory) == both

    # What cannot be read leaves what was, and is told.
    broken = config("resources: [")
    inventory.take(WatchedKind.CONFIGURATION, Updated(broken, first))
    assert dict(inventory.changes()) == {}
    assert told(inventory) == both
    [problem] = inventory.problems.take_new()
    assert problem._replace(text="") == Problem("configmaps", f"{NAMESPACE}/{CONFIG_MAP}", "")
    assert problem.text.startswith(f"{CONFIG_FILE} is no YAML")

    inventory.take(WatchedKind.CLASSES, Deleted(one, one))
    assert told(inventory) == {f"{CLAIMED}gpu.nvidia.com": GPUS}
    inventory.take(WatchedKind.CONFIGURATION, Deleted(broken, broken))
    assert told(inventory) == {}
    assert inventory.problems.count() == {}


def test_of_several_classes_with_one_resource_the_youngest_is_meant_then_the_first() -> None:
    inventory = Inventory("east", device_classes={"b": "example.com/b", "c": "example.com/c"})
    for one in (
        counted("a", "nvidia.com/gpu", "2026-01-01T00:00:00Z"),
        counted("c", "nvidia.com/gpu", "2026-01-02T00:00:00Z"),
        counted("b", "nvidia.com/gpu", "2026-01-02T00:00:00Z"),
    ):
        inventory.take(WatchedKind.CLASSES, Added(one))
    assert told(inventory)["nvidia.com/gpu"] == "example.com/b"
    gone = counted("b", "nvidia.com/gpu")
    inventory.take(WatchedKind.CLASSES, Deleted(gone, gone))
    assert told(inventory)["nvidia.com/gpu"] == "example.com/c"
    # The class that is meant is not mapped: its resource is counted by its own name.
    inventory.take(WatchedKind.CLASSES, Added(counted("z", "nvidia.com/gpu", "2026-01-03")))
    assert "nvidia.com/gpu" not in told(inventory)
    # Mapped to the very name: nothing to tell.
    inventory = Inventory("east", device_classes={"a": "nvidia.com/gpu"})
    inventory.take(WatchedKind.CLASSES, Added(counted("a", "nvidia.com/gpu")))
    assert told(inventory) == {f"{CLAIMED}a": "nvidia.com/gpu"}


def test_what_an_operator_says_counts_over_what_is_read() -> None:
    inventory = Inventory("east", device_classes={"a": "example.com/told"})
    inventory.take(WatchedKind.CONFIGURATION, Added(mapping("a", "b")))
    assert told(inventory) == {f"{CLAIMED}a": "example.com/told", f"{CLAIMED}b": GPUS}


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("--device-class-mapping=gpu.nvidia.com", "DEVICECLASS=RESOURCE"),
        ("--device-class-mapping==x", "DEVICECLASS=RESOURCE"),
        ("--kueue-config=kueue-manager-config", "NAMESPACE/NAME"),
        ("--kueue-config=a/b/c", "NAMESPACE/NAME"),
    ],
)
def test_settings_that_are_none_are_refused(argument: str, expected: str) -> None:
    with pytest.raises(click.UsageError) as caught:
        load(InventorySettings, "inventory", ["--cluster", "east", argument])
    assert expected in str(caught.value)


def test_settings_by_environment() -> None:
    env = {
        "BERTH_INVENTORY_CLUSTER": "east",
        "BERTH_INVENTORY_DEVICE_CLASS_MAPPING": "gpu.nvidia.com=x/y",
        "BERTH_INVENTORY_KUEUE_CONFIG": "none",
    }
    settings = load_with(InventorySettings, "inventory", env)
    assert settings.device_classes == {"gpu.nvidia.com": "x/y"}
    assert settings.kueue_config == "none"
