"""DeviceClasses that can claim a driver's devices. Pure.

A class selects devices by CEL expressions. Published classes compare the driver, and usually the
type: ``device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'``.
Only such classes are understood. Any other class may exclude devices that are counted here, so it
is not used.
"""

import re
from collections.abc import Iterable
from typing import Final, NamedTuple

from berthmaster.worker.inventory.core.objects import DeviceClass

MAX_CHARS: Final = 4096
_TEXT: Final = r"(?:'([^'\\]*)'|\"([^\"\\]*)\")"
_DRIVER: Final = re.compile(rf"device\.driver\s*==\s*{_TEXT}\Z")
_TYPE: Final = re.compile(
    rf"device\.attributes\[\s*{_TEXT}\s*\](?:\.type|\[\s*['\"]type['\"]\s*\])\s*==\s*{_TEXT}\Z"
)


class Claimable(NamedTuple):
    name: str
    driver: str
    type: str = ""  # of devices; "" = of any
    resource: str = ""  # extendedResourceName: such a device can be asked for by counting too


def claimable(found: DeviceClass) -> Claimable | None:
    """Return what a class selects; None if not understood."""
    driver = kind = ""
    for selector in found.spec.selectors:
        text = selector.cel.expression if selector.cel is not None else ""
        if len(text) > MAX_CHARS:
            return None
        for part in text.split("&&"):
            said = part.strip().strip("()").strip()
            if (by_driver := _DRIVER.match(said)) is not None:
                named = by_driver[1] or by_driver[2] or ""
                if driver not in ("", named):
                    return None
                driver = named
            elif (by_type := _TYPE.match(said)) is not None:
                kind = by_type[3] or by_type[4] or ""
            else:
                return None
    if not driver:
        return None
    return Claimable(found.metadata.name, driver, kind, found.spec.extended_resource_name)


def class_for(classes: Iterable[Claimable], driver: str, kind: str) -> Claimable | None:
    """Return the class for devices of this driver and type: the one named after the driver, else
    the first by name that selects only these.
    """
    fit = [one for one in classes if one.driver == driver and one.type in ("", kind)]
    return min(fit, key=lambda one: (one.type != kind, one.name != driver, one.name), default=None)


def resource_for(classes: Iterable[Claimable], driver: str, kind: str) -> str:
    """Return the extended resource of such devices; "" = none."""
    named = (c.resource for c in classes if c.driver == driver and c.type in ("", kind))
    return min((name for name in named if name), default="")
