"""Capacity and quota of Workloads, by cluster and ClusterQueue, kept up to date.

A search for victims reads this index in place of tens of thousands of open Workloads. A Workload
with news from the log or the hub is recomputed at the next query. Its copy and time change too, and
are not part of the index.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from berthmaster.hub.multikueue.core.known.bus_state import BusState
from berthmaster.hub.multikueue.core.known.hub import Hub
from berthmaster.hub.multikueue.core.known.workload_view import view_of
from berthmaster.lib.kueue.asks import devices_asked
from berthmaster.lib.kueue.names import EVICTED, FINISHED, QUOTA_RESERVED
from berthmaster.lib.lifecycle.states import HELD, State
from berthmaster.lib.lifecycle.workload import Key
from berthmaster.lib.messages.workload import JobRequest

Kind = tuple[str, int]  # ClusterQueue, the Workload's priority
Amounts = Mapping[str, int]  # by resource, in thousandths
_BEGUN: Final = (State.ADMITTED, State.RUNNING)
_AWAITS: Final = (State.CLAIMED, State.ADMITTED)


class _Row(NamedTuple):
    cluster: str  # cluster of its present or future capacity; "" = none
    state: State
    kind: Kind | None  # None: unknown to the hub or its rules
    amounts: Amounts
    has_quota: bool  # of the hub
    leaves: bool  # being evicted, by a decision or by Kueue


class Rooms:
    """By cluster and by ClusterQueue."""

    def __init__(self, know: BusState, hub: Hub) -> None:
        """Both are read-only views."""
        self._know = know
        self._hub = hub
        self._stale: set[Key] = set()
        self._rows: dict[Key, _Row] = {}
        self._used: dict[str, dict[str, int]] = {}
        self._on_their_way_out: dict[Key, None] = {}
        self._begun: dict[str, dict[Kind, dict[Key, None]]] = {}
        self._leaving: dict[str, dict[Key, None]] = {}
        self._awaiting: dict[str, dict[Key, None]] = {}

    def heard_of(self, names: Iterable[Key]) -> None:
        """Something of these may be otherwise now."""
        self._stale.update(names)

    # Queries

    def used(self) -> Mapping[str, Amounts]:
        """Return the hub quota held by each ClusterQueue."""
        self._catch_up()
        return self._used

    def on_their_way_out(self) -> list[tuple[str, Amounts]]:
        """Return the part to be released: ClusterQueue and quantities of each."""
        self._catch_up()
        rows = (self._rows[name] for name in self._on_their_way_out)
        return [(row.kind[0], row.amounts) for row in rows if row.kind is not None]

    def begun(self, cluster: str) -> Mapping[Kind, Iterable[Key]]:
        """Return the running or admitted Workloads of a cluster."""
        self._catch_up()
        return self._begun.get(cluster, {})

    def leaving(self, cluster: str) -> Iterable[Key]:
        """Return those of them being evicted."""
        self._catch_up()
        return self._leaving.get(cluster, ())

    def awaiting(self, cluster: str) -> Iterable[Key]:
        """Return Workloads sent there that have not surely started."""
        self._catch_up()
        return self._awaiting.get(cluster, ())

    def amounts(self, name: Key) -> Amounts:
        """Return the usage of an open Workload."""
        self._catch_up()
        return self._rows[name].amounts

    # Maintenance

    def _catch_up(self) -> None:
        while self._stale:
            name = self._stale.pop()
            before, now = self._rows.pop(name, None), self._row(name)
            if before is not None:
                self._count(name, before, -1)
            if now is not None:
                self._rows[name] = now
                self._count(name, now, 1)

    def _row(self, name: Key) -> _Row | None:
        view = view_of(name, self._know, self._hub)
        bus, hub, rules = view.bus, view.hub, view.rules
        if bus is None:
            return None
        request = bus.request
        known = hub is not None and rules is not None and request is not None
        return _Row(
            cluster=bus.cluster if bus.state in HELD else "",
            state=bus.state,
            kind=(rules.cluster_queue, hub.spec.priority or 0) if known and hub and rules else None,
            amounts=amounts_of(request) if request is not None else {},
            has_quota=hub is not None and hub.holds(QUOTA_RESERVED) and not hub.holds(FINISHED),
            leaves=bool(bus.leaving) or (hub is not None and hub.holds(EVICTED)),
        )

    def _count(self, name: Key, row: _Row, sign: int) -> None:
        def keep(among: dict[Key, None]) -> None:
            if sign > 0:
                among[name] = None
            else:
                among.pop(name, None)

        if row.kind is not None and row.has_quota:
            used = self._used.setdefault(row.kind[0], {})
            for resource, amount in row.amounts.items():
                used[resource] = used.get(resource, 0) + sign * amount
            if row.leaves:
                keep(self._on_their_way_out)
        if not row.cluster:
            return
        if row.state in _AWAITS:
            keep(self._awaiting.setdefault(row.cluster, {}))
        if row.state in _BEGUN:
            if row.kind is not None:
                keep(self._begun.setdefault(row.cluster, {}).setdefault(row.kind, {}))
            if row.leaves:
                keep(self._leaving.setdefault(row.cluster, {}))


def amounts_of(request: JobRequest) -> dict[str, int]:
    """Return the devices of a request by resource, in thousandths."""
    return {name: round(1000 * number) for name, number in devices_asked(request).items()}
