"""The shell of a service that maintains objects by the fleet's scores.

The replica with the lease writes, and the others stand by. While the bus is unreachable no replica
can hold the lease, and each replica may write. The core then only makes decisions that are certain.
Every write carries the resource version of the object that the core saw, and equal content is not
written. So several writing replicas write once.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final, Protocol

from berthmaster.lib.kube.client import Client
from berthmaster.lib.kube.controller.fleet_facts import FleetFacts, FleetMirror
from berthmaster.lib.kube.controller.kube_events import instance_of
from berthmaster.lib.kube.controller.loop import Controller, Core
from berthmaster.lib.kube.controller.watch import Watched
from berthmaster.lib.kube.objects import Object
from berthmaster.lib.messages.fleet import ClusterScore
from berthmaster.lib.nats import subjects
from berthmaster.lib.nats.connection import Connection
from berthmaster.lib.nats.fact_stamps import Seen
from berthmaster.lib.ocm.core.kept_objects import KeptObjects, W
from berthmaster.lib.ocm.writer import ObjectWriter
from berthmaster.lib.runtime.lease import Lease
from berthmaster.lib.runtime.service import Context

ABSENT_S: Final = 30.0  # between two lists of a kind that is not served
LEASE_TTL_S: Final = 3.0  # until a standby replica replaces a silent writer
BUS_SILENT_S: Final = 10.0  # without a heartbeat of the fleet, until the bus counts as unreachable


class ScoreCore(Core[W], Protocol[W]):
    """Decides by the scores of the fleet."""

    @property
    def targets(self) -> KeptObjects[Any, W]: ...

    def listen(self, now_s: float, *, blind: bool) -> None:
        """Apply the scores received from now on. ``blind``: the bus is unreachable."""

    def on_score(self, score: ClusterScore, stored_at_s: float) -> None: ...

    def on_gone(self, cluster: str) -> None:
        """Apply that the bus has no score of the cluster any more."""

    def on_object(self, thing: Object, *, gone: bool) -> None: ...

    def on_listed(self, plural: str) -> None: ...

    def on_absent(self, plural: str) -> None:
        """Apply that a kind is not served."""


class ScoreController(Controller[W]):
    """One replica of a service."""

    def __init__(
        self,
        ctx: Context[Any],
        client: Client,
        core: ScoreCore[W],
        writer: ObjectWriter[W],
        *,
        watched: tuple[Watched, ...],
    ) -> None:
        super().__init__(ctx, client, core, writer, name=ctx.name)
        self.watches(watched, absent_s=ABSENT_S)
        self._scores = core
        self._kept = ctx.metrics.gauge("objects_kept", "Maintained objects")
        self._troubled = ctx.metrics.gauge(
            "objects_troubled", "Maintained objects with a failing write"
        )
        self._fleet = FleetFacts(
            ctx,
            silent_s=BUS_SILENT_S,
            on_fact=self._on_fact,
            on_gone=self._on_gone,
            on_change=self.wake,
            on_fault=self.metrics.fault,
        )

    async def run(
        self,
        conn: Connection,
        mirror: Callable[..., FleetMirror],
        lease: Callable[..., Lease],
    ) -> None:
        """Run with the bus until the service stops.

        ``mirror``: of scores, see Fleet. ``lease``: returns the lease for a holder's name.
        """
        self._fleet.join(conn, mirror)
        holder = instance_of(self.ctx.name)
        self.lead_by(lease(holder, on_gained=lambda _: self.wake(), ttl_s=LEASE_TTL_S))
        await self.finish()

    # Inputs

    def on_object(self, one: Watched, thing: Any, gone: bool) -> None:
        self._scores.on_object(thing, gone=gone)

    def on_listed(self, one: Watched) -> None:
        self._scores.on_listed(one.name)

    def _on_gone(self, subject: str) -> None:
        cluster, kind, _ = subjects.parse_fact(subject)
        if kind == "score":
            self._scores.on_gone(cluster)

    def _on_fact(self, seen: Seen) -> None:
        if isinstance(seen.fact, ClusterScore):
            self._scores.on_score(seen.fact, seen.stored_at_s)

    # Acting

    def now(self) -> float:
        conn = self._fleet.conn
        return conn.now() if conn is not None else self.ctx.now()

    @property
    def _leads(self) -> bool:
        return self._fleet.caught_up and self.lease is not None and self.lease.held

    def may_act(self) -> bool:
        """Return whether this replica may act: with the lease, or without the bus.

        The core waits for kinds that are not listed yet or not served.
        """
        return self._leads or self._fleet.silent

    def before_act(self) -> None:
        for kind in self.watch.lacking:
            self._scores.on_absent(kind)
        if self.may_act():
            self._scores.listen(self.now(), blind=self._fleet.silent and not self._leads)

    def about(self, write: W) -> str:
        return "/".join(part for part in write.key[1:] if part)

    def show(self) -> None:
        self._fleet.show()
        objects = self._scores.targets.all.values()
        troubles = Counter(one.trouble for one in objects if one.trouble)
        self._kept.set(len(objects))
        self._troubled.set(troubles.total())
        note = ""
        if troubles:
            why, count = troubles.most_common(1)[0]
            note = f"{troubles.total()} objects are not as they should be; {count}: {why}"
        self.ctx.health.ready("objects", True, note=note)
