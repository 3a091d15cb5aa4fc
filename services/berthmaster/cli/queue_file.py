"""Queues out of a file: what `berth queue apply` reads, and what it has to tell afterwards."""

from collections.abc import Iterable, Sequence

from berthmaster.cli.requests import WrongInput, read_requests
from berthmaster.engine.queueing.ledger import node_amounts
from berthmaster.engine.queueing.queues import Amounts, overcommitted, share_of
from berthmaster.messages.api import Refusal
from berthmaster.messages.control import QueueSetting
from berthmaster.messages.fleet import FleetFact, NodeReport
from berthmaster.requests.validation import queue_setting


def read_settings(data: bytes, where: str) -> list[QueueSetting]:
    """All settings of a file, each checked as the gateway does. Raises WrongInput."""
    settings: list[QueueSetting] = []
    for number, body in enumerate(read_requests(data, where), 1):
        setting = queue_setting(body)
        if isinstance(setting, Refusal):
            at = f"{where}, queue {number}: {setting.field or 'the whole'}"
            raise WrongInput(f"{at} is {setting.value}; right is {setting.expected}")
        if any(setting.queue == other.queue for other in settings):
            raise WrongInput(f"{where}, queue {number}: {setting.queue!r} is there twice")
        settings.append(setting)
    return settings


def overcommitted_in(settings: Sequence[QueueSetting], facts: Iterable[FleetFact]) -> list[str]:
    """What the guarantees of all queues promise beyond what the fleet has: told, not refused, as a
    fleet may grow."""
    totals: Amounts = {}
    for fact in facts:
        if isinstance(fact, NodeReport):
            for resource, amount in node_amounts(fact).items():
                totals[resource] = totals.get(resource, 0) + amount
    shares = {each.queue: share_of(each.queue, each) for each in settings if not each.deleted}
    return list(overcommitted(shares, totals).values())
