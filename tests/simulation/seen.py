"""What happened on the way in one world, counted from its log: clean worlds in which nothing of it
ever happens would say little."""

from collections import Counter
from collections.abc import Iterable

from berthmaster.lib.engine.fleet.needs import gpu_milli
from berthmaster.lib.lifecycle.workload import Key, key
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.placement import Decision
from berthmaster.lib.messages.workload import (
    Cancelled,
    Evicted,
    Failed,
    Placed,
    Succeeded,
    Withdrawn,
)
from tests.simulation.bus import Message

_OVER = (Cancelled, Evicted, Failed, Succeeded, Withdrawn)


def decided(log: Iterable[Message], controls: Iterable[Message]) -> Counter[str]:
    """Gangs, gangs of several shapes, room kept, jobs let into it, what queues borrowed, and
    durations that were guessed anew."""
    seen: Counter[str] = Counter()
    kept: dict[Key, set[tuple[str, str]]] = {}  # whom room is kept for -> nodes
    used: dict[Key, tuple[str, int]] = {}  # queue, GPU milli
    guessed: set[Key] = set()
    guarantees = [
        (m.stored_at_s, m.body.queue, m.body.guarantee_gpu_milli or 0)
        for m in controls
        if isinstance(m.body, QueueSetting)
    ]
    for message in log:
        body = message.body
        if isinstance(body, Decision):
            if body.reservations is not None:
                kept = {
                    key(r.tenant, r.id): {(r.cluster, held.node) for held in r.held}
                    for r in body.reservations
                }
                seen["room kept"] += len(kept)
                seen["reserved by an estimate"] += sum(r.estimated for r in body.reservations)
            seen["rebalanced"] += len(body.rebalances)
            guesses = {key(each.tenant, each.id) for each in body.expected}
            seen["guessed anew"] += len(guesses & guessed)
            guessed |= guesses
            for choice in body.placements:
                nodes = {(choice.cluster, pod.node) for pod in choice.pods}
                mine = key(choice.tenant, choice.id)
                seen["backfilled"] += any(nodes & n for k, n in kept.items() if k != mine)
        elif isinstance(body, Placed):
            seen["gangs"] += len(body.pods) > 1
            seen["gangs of several shapes"] += len(body.request.pod_sets) > 1
            queue = body.request.queue
            used[key(body.tenant, body.id)] = (queue, gpu_milli(body.request))
            has = sum(milli for name, milli in used.values() if name == queue)
            limit = [
                g for at_s, name, g in guarantees if name == queue and at_s < message.stored_at_s
            ]
            seen["borrowed"] += bool(limit and 0 < limit[-1] < has)
        elif isinstance(body, _OVER):
            used.pop(key(body.tenant, body.id), None)
    return seen
