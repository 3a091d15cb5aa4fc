"""Objects with errors are skipped instead of ending the service. Pure.

An object is skipped when its decoding fails, or when the core raises while the core reads the
object or acts on it. Each skipped object is counted, logged, and reported once in an Event. All
other objects continue. A skipped object is tried again when it changes, and whenever the core
handles the object anyway.

The core owns one ``SetAside`` and wraps its work on one object::

    for check in checks:
        with self.aside.trying(Phase.ACTING, ADMISSION_CHECKS, check.metadata):
            out += self._check(check)
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.objects import Metadata
from berthmaster.lib.kube.resources import Resource

Key = tuple[str, str]  # namespace, name


class Phase(Enum):
    """The step at which an object failed."""

    READING = "Unreadable"  # the object does not match the form of its kind
    HEARING = "NotUnderstood"  # the core raised on a change of the object
    ACTING = "CannotBeHandled"  # the core raised while acting on the object
    SHOWING = "CannotBeShown"  # the core raised while reporting the object's status


class Oddity(NamedTuple):
    phase: Phase
    resource: Resource
    metadata: Metadata
    why: str
    error: Exception | None = None

    @property
    def event(self) -> KubeEvent:
        """Return the Event for users who look at the object."""
        note = f"set aside until it changes; what was done for it before stays: {self.why}"
        return KubeEvent(self.resource, self.metadata, True, self.phase.value, note)


class SetAside:
    def __init__(self) -> None:
        self._odd: dict[tuple[Phase, str, Key], Oddity] = {}
        self._unreported: dict[tuple[Phase, str, Key], None] = {}

    def __len__(self) -> int:
        return len(self._odd)

    @contextmanager
    def trying(self, phase: Phase, resource: Resource, metadata: Metadata) -> Iterator[None]:
        """Skip the object if the block raises."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - one odd object must not end the rest
            self.put(phase, resource, metadata, _place(error), error)
        else:
            self.clear(phase, resource, (metadata.namespace, metadata.name))

    def put(
        self,
        phase: Phase,
        resource: Resource,
        metadata: Metadata,
        why: str,
        error: Exception | None = None,
    ) -> None:
        """Skip an object. The error is reported once, and again when ``why`` changes."""
        key = (phase, resource.plural, (metadata.namespace, metadata.name))
        known = self._odd.get(key)
        self._odd[key] = Oddity(phase, resource, metadata, why, error)
        if known is None or known.why != why:
            self._unreported[key] = None

    def clear(self, phase: Phase, resource: Resource, key: Key) -> None:
        """Remove an object that is in order again, or deleted."""
        self._odd.pop((phase, resource.plural, key), None)
        self._unreported.pop((phase, resource.plural, key), None)

    def gone(self, resource: Resource, key: Key) -> None:
        for phase in Phase:
            self.clear(phase, resource, key)

    def holds(self, phase: Phase, resource: Resource, key: Key) -> bool:
        """Return whether an object is skipped because of an error in this phase."""
        return (phase, resource.plural, key) in self._odd

    def why(self, phase: Phase, resource: Resource, key: Key) -> str:
        """Return the error of a skipped object in this phase, "" if not skipped."""
        odd = self._odd.get((phase, resource.plural, key))
        return odd.why if odd is not None else ""

    def take_unreported(self) -> list[Oddity]:
        """Return the errors not reported since the last call."""
        unreported, self._unreported = self._unreported, {}
        return [self._odd[key] for key in unreported]

    def keys(self, phase: Phase, resource: Resource) -> list[Key]:
        """Return the objects of a kind that failed in this phase."""
        return [
            key for where, plural, key in self._odd if (where, plural) == (phase, resource.plural)
        ]

    def count(self) -> Counter[str]:
        """Return the number of skipped objects by kind."""
        return Counter(plural for _, plural, _ in self._odd)


def _place(error: Exception) -> str:
    """Return where an error came from. Its message is left out, as it may hold part of a Secret."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
    return f"{type(error).__name__} in {file}, line {trace.tb_lineno}"
