"""Settings of queues from flags and files, and warnings about guarantees that exceed the fleet."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from berthmaster.cli.completion import QUEUE
from berthmaster.cli.flags import FieldOptions, Flag
from berthmaster.cli.job.files import read_named
from berthmaster.cli.values import WrongInput, parse_weights
from berthmaster.lib.engine.queueing.ledger import node_amounts
from berthmaster.lib.engine.queueing.queues import Amounts, QueueTree, overcommitted
from berthmaster.lib.engine.scoring.profiles import PROFILES
from berthmaster.lib.messages.control import QueuePlace, QueueSetting
from berthmaster.lib.messages.fleet import FleetFact, NodeReport
from berthmaster.lib.requests.queues import NO_QUEUES, placing_fault
from berthmaster.lib.requests.validation import queue_setting


def read_settings(data: bytes, where: str) -> list[QueueSetting]:
    """Return all settings of a file, each validated as in the gateway. Raises WrongInput."""
    return read_named(data, where, "queue", queue_setting, lambda setting: setting.queue)


def overcommitted_in(settings: Sequence[QueueSetting], facts: Iterable[FleetFact]) -> list[str]:
    """Return warnings about guarantees beyond the fleet.

    A fleet may grow, so excess guarantees are not refused.
    """
    totals: Amounts = {}
    for fact in facts:
        if isinstance(fact, NodeReport):
            for resource, amount in node_amounts(fact).items():
                totals[resource] = totals.get(resource, 0) + amount
    tree = QueueTree({each.queue: each for each in settings if not each.deleted})
    return list(overcommitted(tree.roots(), totals).values())


def in_order(settings: Sequence[QueueSetting], known: Iterable[QueueSetting]) -> list[QueueSetting]:
    """Return the settings in an order in which each can be set.

    Parents come first, but a parent that shrinks comes after its children. Raises WrongInput if no
    order exists.
    """
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


_PLACE: Final = re.compile(
    r"((?P<cluster>[^=]+)=)?(?P<namespace>[^=/@]+)(/(?P<queue>[^=/@]+))?(@(?P<account>[^=/@]+))?"
)


def queue_place(text: str) -> tuple[str, QueuePlace]:
    """Return the placement of a queue's jobs: berlin=ml/main@runner. Raises WrongInput."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise WrongInput(f"--place {text!r}: right is [CLUSTER=]NAMESPACE[/LOCALQUEUE][@ACCOUNT]")
    place = QueuePlace(
        namespace=found["namespace"],
        service_account=found["account"] or "",
        local_queue=found["queue"] or "",
    )
    return found["cluster"] or "*", place


def parse_places(texts: Sequence[str]) -> dict[str, QueuePlace]:
    """Return the target namespaces of a queue's jobs by cluster. Raises WrongInput."""
    return dict(map(queue_place, texts))


def _parse_weights(texts: Sequence[str]) -> dict[str, float]:
    return parse_weights([text for text in texts if text != "none"])


OPTIONS: Final = FieldOptions(
    QueueSetting,
    {
        "queue": None,
        "tenants": Flag(
            "--allow", metavar="TENANT", help="Tenants that may use the queue, instead of all."
        ),
        "parent": Flag(type=QUEUE, metavar="QUEUE"),
        "capability_gpu_milli": Flag("--limit"),
        "resources": None,  # `berth queue apply` sets resources
        "allows": Flag("--allow"),
        "allows.gpu_models": Flag("--allow-models"),
        "profile": Flag(metavar="NAME", note=f"Profiles: {', '.join(PROFILES)}."),
        "weights": Flag("--score-weight", metavar="PART=N", read=_parse_weights),
        "places": Flag(
            "--place", metavar="[CLUSTER=]NAMESPACE[/LOCALQUEUE][@ACCOUNT]", read=parse_places
        ),
        "idle_below_percent": Flag("--idle-below", metavar="PERCENT"),
        "trial_gpu_h_a_day": Flag("--trials"),
        "defaults": Flag("--default"),
        "held": Flag("--hold/--release"),
        "deleted": Flag("--delete/--restore"),
        "set_by": None,
        "set_at_s": None,
    },
    edits=True,
)


def changed(setting: QueueSetting, everybody: bool, flags: Mapping[str, Any]) -> QueueSetting:
    """Return the setting with the fields of the flags. Raises WrongInput."""
    fields = OPTIONS.values(flags) | ({"tenants": ()} if everybody else {})
    for name in ("allows", "defaults"):
        if name in fields:
            fields[name] = msgspec.structs.replace(getattr(setting, name), **fields[name])
    return msgspec.structs.replace(setting, set_by="", set_at_s=0.0, **fields)
