"""Odd objects are set aside instead of ending the service. Pure.

An object is odd when it cannot be decoded, when the core raises on hearing of it, or when the core
raises while it acts on it. What is set aside is counted, logged and told on the object once; all
others go on. It is tried again whenever it changes, and whenever the core comes by it anyway.

The core owns one ``SetAside`` and wraps what it does for one object::

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
    """Where it failed."""

    READING = "Unreadable"  # it does not have the form that its kind promises
    HEARING = "NotUnderstood"  # the core raised on hearing of it
    ACTING = "CannotBeHandled"  # the core raised while it acted on it
    SHOWING = "CannotBeShown"  # the core raised when asked how it stands


class Oddity(NamedTuple):
    phase: Phase
    resource: Resource
    metadata: Metadata
    why: str
    error: Exception | None = None

    @property
    def event(self) -> KubeEvent:
        """For people who look at the object."""
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
        """What is done for one object: if it raises, that one is set aside."""
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
        """Set an object aside; it is told of once, until something else is wrong with it."""
        key = (phase, resource.plural, (metadata.namespace, metadata.name))
        known = self._odd.get(key)
        self._odd[key] = Oddity(phase, resource, metadata, why, error)
        if known is None or known.why != why:
            self._unreported[key] = None

    def clear(self, phase: Phase, resource: Resource, key: Key) -> None:
        """It is not odd, or not there any more."""
        self._odd.pop((phase, resource.plural, key), None)
        self._unreported.pop((phase, resource.plural, key), None)

    def gone(self, resource: Resource, key: Key) -> None:
        for phase in Phase:
            self.clear(phase, resource, key)

    def holds(self, phase: Phase, resource: Resource, key: Key) -> bool:
        """Whether an object is set aside because it failed there."""
        return (phase, resource.plural, key) in self._odd

    def why(self, phase: Phase, resource: Resource, key: Key) -> str:
        """Why an object is set aside because it failed there; "" if it is not."""
        odd = self._odd.get((phase, resource.plural, key))
        return odd.why if odd is not None else ""

    def take_unreported(self) -> list[Oddity]:
        """What nobody was told of since the last call."""
        unreported, self._unreported = self._unreported, {}
        return [self._odd[key] for key in unreported]

    def keys(self, phase: Phase, resource: Resource) -> list[Key]:
        """Of one kind, those that failed there."""
        return [
            key for where, plural, key in self._odd if (where, plural) == (phase, resource.plural)
        ]

    def count(self) -> Counter[str]:
        """How many of each kind."""
        return Counter(plural for _, plural, _ in self._odd)


def _place(error: Exception) -> str:
    """Where an error came from. Its text may hold what came out of a Secret, so it is not told."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return type(error).__name__
    file = trace.tb_frame.f_code.co_filename.rpartition("/")[2]
    return f"{type(error).__name__} in {file}, line {trace.tb_lineno}"
