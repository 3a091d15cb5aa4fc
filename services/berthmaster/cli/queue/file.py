"""Queues out of a file: what `berth queue apply` reads, and what it has to tell afterwards."""

from collections.abc import Iterable, Sequence

from berthmaster.cli.job.requests import WrongInput, read_named
from berthmaster.lib.engine.queueing.ledger import node_amounts
from berthmaster.lib.engine.queueing.queues import Amounts, overcommitted
from berthmaster.lib.engine.queueing.tree import QueueTree
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.fleet import FleetFact, NodeReport
from berthmaster.lib.requests.queue_tree import placing_fault
from berthmaster.lib.requests.queues import NO_QUEUES
from berthmaster.lib.requests.validation import queue_setting


def read_settings(data: bytes, where: str) -> list[QueueSetting]:
    """All settings of a file, each checked as the gateway does. Raises WrongInput."""
    return read_named(data, where, "queue", queue_setting, lambda setting: setting.queue)


def overcommitted_in(settings: Sequence[QueueSetting], facts: Iterable[FleetFact]) -> list[str]:
    """What the guarantees of all queues promise beyond what the fleet has: told, not refused, as a
    fleet may grow."""
    totals: Amounts = {}
    for fact in facts:
        if isinstance(fact, NodeReport):
            for resource, amount in node_amounts(fact).items():
                totals[resource] = totals.get(resource, 0) + amount
    tree = QueueTree({each.queue: each for each in settings if not each.deleted})
    return list(overcommitted(tree.roots(), totals).values())


def in_order(settings: Sequence[QueueSetting], known: Iterable[QueueSetting]) -> list[QueueSetting]:
    """The order in which each can be set beside those before it, whatever the file's is: parents
    first, but one that gets less after its children. Raises WrongInput if there is none."""
    there = dict(NO_QUEUES) | {each.queue: each for each in known}
    left, ordered = list(settings), []
    while left:
        faults = []
        for setting in left:
            fault = placing_fault(there, setting)
            if fault is None:
                there[setting.queue] = setting
                ordered.append(setting)
            else:
                faults.append((setting, fault))
        if len(faults) == len(left):
            setting, fault = faults[0]
            at = f"queue {setting.queue!r}: {fault.field} is {fault.value}"
            raise WrongInput(f"{at}; right is {fault.expected}")
        left = [setting for setting, _ in faults]
    return ordered
