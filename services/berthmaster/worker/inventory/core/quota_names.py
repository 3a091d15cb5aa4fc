"""Resource names that a cluster's Kueue counts devices under, where pods request other names. Pure.

Rules of Kueue (0.18 on):

- Devices of a class in ``deviceClassMappings`` count as the mapped resource, for claims and for
  containers that use the class's extendedResourceName. Claims of other classes are never admitted.
- Of several classes with one extendedResourceName the youngest counts, at equal age the first by
  name.
- If a mapping counts counters or parts of a capacity, quantities are unknown here: one per device
  is the minimum.
"""

from collections.abc import Mapping
from typing import Final

from berthmaster.lib.accelerators.table import CLASS
from berthmaster.lib.kube.controller.problems import Problems, named
from berthmaster.lib.kube.objects import key_of
from berthmaster.lib.kueue.configuration import (
    ConfigMap,
    Unreadable,
    configuration_in,
    device_classes,
)
from berthmaster.worker.inventory.core.kinds import WatchedKind
from berthmaster.worker.inventory.core.objects import DeviceClass

_AT_NO_TIME: Final = ""


class QuotaNames:
    def __init__(self, told: Mapping[str, str], problems: Problems) -> None:
        """``told``: DeviceClass -> resource as an operator says; counts over what is read."""
        self._told = dict(told)
        self._problems = problems
        self._read: Mapping[str, str] = {}
        self._served_by: dict[str, tuple[str, str]] = {}  # class -> extended resource, made when
        self._now: dict[str, str] = {}
        self.changed = False
        self._work_out()

    def now(self) -> dict[str, str]:
        """Return Kueue's name by requested name, where they differ. Claimed devices are
        ``deviceclass.resource.kubernetes.io/CLASS``.
        """
        return dict(self._now)

    def set_config(self, found: ConfigMap) -> None:
        """Apply the configuration of Kueue's manager. An unreadable one changes nothing."""
        problems: list[str] = []
        try:
            self._read = device_classes(configuration_in(found.data), problems)
        except Unreadable as error:
            problems.append(str(error))
        name = named(key_of(found.metadata))
        self._problems.set(WatchedKind.CONFIGURATION.value, name, tuple(problems))
        self._work_out()

    def drop_config(self, key: tuple[str, str]) -> None:
        self._read = {}
        self._problems.set(WatchedKind.CONFIGURATION.value, named(key), ())
        self._work_out()

    def set_class(self, found: DeviceClass) -> None:
        meta, resource = found.metadata, found.spec.extended_resource_name
        self._served_by.pop(meta.name, None)
        if resource:
            self._served_by[meta.name] = resource, meta.creation_timestamp or _AT_NO_TIME
        self._work_out()

    def drop_class(self, name: str) -> None:
        if self._served_by.pop(name, None) is not None:
            self._work_out()

    def _work_out(self) -> None:
        mapped = {**self._read, **self._told}
        names = {f"{CLASS}{one}": resource for one, resource in mapped.items()}
        # The last one in this order counts.
        by_age = sorted(sorted(self._served_by, reverse=True), key=lambda c: self._served_by[c][1])
        meant = {self._served_by[one][0]: one for one in by_age}
        for resource, one in meant.items():
            if mapped.get(one, resource) != resource:
                names[resource] = mapped[one]
        names = dict(sorted(names.items()))
        if names != self._now:
            self._now, self.changed = names, True
