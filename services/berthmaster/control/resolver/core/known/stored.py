"""Snapshots of the knowledge. A resolver that starts from one reads only the rest of the log."""

import msgspec

from berthmaster.control.resolver.core.known.indexes import PartEnd
from berthmaster.control.resolver.core.known.knowledge import Knowledge, Told, ToldLives
from berthmaster.lib.engine.queueing.expectations import Learned
from berthmaster.lib.engine.queueing.preemption import RecentEvictions
from berthmaster.lib.engine.queueing.trial_budget import RecentTrials
from berthmaster.lib.engine.scoring.pod_mix import Mix, MixState, Sampled
from berthmaster.lib.lifecycle.states import State
from berthmaster.lib.lifecycle.workload import Key, Workload, key
from berthmaster.lib.messages.placement import Reservation


class Snapshot(msgspec.Struct, kw_only=True, tag="resolver.snapshot.v11"):
    """The fold of the log up to one sequence."""

    cell: str
    sequence: int
    chain_number: int
    chain_sequence: int
    open: list[Workload]
    mix: MixState
    told_mix: Sampled
    told_pressure: Told = Told()
    told_lives: ToldLives = ToldLives()
    learned: Learned
    frozen: dict[Key, str]
    elsewhere: list[Key]
    unclaimed: dict[str, float]
    reservations: list[Reservation] = []
    moved: list[tuple[float, str]] = []
    tried: list[tuple[float, str, float]] = []
    divisions: dict[Key, int] = {}
    part_ends: dict[Key, list[PartEnd]] = {}


def snapshot_of(know: Knowledge) -> Snapshot:
    """Return the data for ``restore``. Facts stay in their streams."""
    return Snapshot(
        cell=know.cell,
        sequence=know.workloads_sequence,
        chain_number=know.chain.number,
        chain_sequence=know.chain.sequence,
        open=[
            *(know.open[name] for name in know.derived.unclaimed),  # in order of their commits
            *(w for name, w in know.open.items() if name not in know.derived.unclaimed),
        ],
        mix=know.view.mix.state(),
        told_mix=know.told_mix,
        told_pressure=know.told_pressure,
        told_lives=know.told_lives,
        learned=know.expectations.learned(know.open),
        frozen=dict(know.frozen),
        elsewhere=sorted(know.elsewhere),
        reservations=list(know.reservations.values()),
        moved=know.recent_evictions.state(),
        tried=know.recent_trials.state(),
        divisions=dict(know.parts.numbers),
        part_ends=know.parts.state(),
        unclaimed={
            c.name: c.unclaimed_at_s for c in know.clusters.known() if c.unclaimed_at_s is not None
        },
    )


def restore(know: Knowledge, snapshot: Snapshot) -> None:
    """Start from a snapshot instead of from the log's beginning. Only on new knowledge."""
    know.workloads_sequence = snapshot.sequence
    know.chain.number = snapshot.chain_number
    know.chain.sequence = snapshot.chain_sequence
    know.view.mix = Mix(snapshot.mix)
    know.told_mix = snapshot.told_mix
    know.told_pressure = snapshot.told_pressure
    know.told_lives = snapshot.told_lives
    know.expect(snapshot.learned)
    know.frozen.update(snapshot.frozen)
    know.elsewhere = set(snapshot.elsewhere)
    for workload in sorted(snapshot.open, key=lambda w: w.placed_at_s):  # stable
        know.open[workload.key] = workload
        know.follow(workload, State.NEW, "", was_live=False)
    know.reservations = {key(r.tenant, r.id): r for r in snapshot.reservations}
    know.parts.restore(snapshot.part_ends)
    know.parts.numbers = dict(snapshot.divisions)
    know.recent_evictions = RecentEvictions(snapshot.moved)
    know.recent_trials = RecentTrials(snapshot.tried)
    for name, at_s in snapshot.unclaimed.items():
        know.clusters.left_unclaimed(name, at_s)
