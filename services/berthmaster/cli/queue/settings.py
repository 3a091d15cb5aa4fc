"""Queues out of a file: what `berth queue apply` reads, and what it has to tell afterwards."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from berthmaster.cli.job.requests import (
    WrongInput,
    exactly,
    parse_duration_s,
    parse_weights,
    read_named,
)
from berthmaster.lib.engine.queueing.ledger import node_amounts
from berthmaster.lib.engine.queueing.queues import Amounts, overcommitted
from berthmaster.lib.engine.queueing.tree import QueueTree
from berthmaster.lib.messages.control import QueuePlace, QueueSetting
from berthmaster.lib.messages.fleet import FleetFact, NodeReport
from berthmaster.lib.requests.queue_tree import placing_fault
from berthmaster.lib.requests.queues import NO_QUEUES
from berthmaster.lib.requests.validation import queue_setting
from berthmaster.lib.runtime.parse import EmptyMember, members


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


_ALLOWED: Final = {
    "allow_tolerations": "tolerations",
    "allow_node_labels": "node_labels",
    "allow_images": "images",
    "allow_models": "gpu_models",
    "allow_resources": "resources",
}


_AMOUNTS: Final = {
    "guarantee": "guarantee_gpu_milli",
    "deserved": "deserved_gpu_milli",
    "limit": "capability_gpu_milli",
    "max_job": "max_job_gpu_milli",
}


_AS_THEY_ARE: Final = ("priority", "weight", "held", "deleted", "via", "preempts", "rebalances")


_YES_NO: Final = {"yes": True, "no": False, "none": None}


_DEFAULTS: Final = {
    "default_max_run": "max_run_s",
    "default_checkpoint_every": "checkpoint_every_s",
    "default_grace": "grace_s",
}


_PLACE: Final = re.compile(
    r"((?P<cluster>[^=]+)=)?(?P<namespace>[^=/@]+)(/(?P<queue>[^=/@]+))?(@(?P<account>[^=/@]+))?"
)


def _defaults(flags: dict[str, Any]) -> dict[str, Any]:
    """Of jobs that do not say it. Raises WrongInput."""
    found: dict[str, Any] = {}
    for flag, field in _DEFAULTS.items():
        if (text := flags.get(flag)) is not None:
            zero = field == "grace_s"
            found[field] = None if text == "none" else parse_duration_s(text, zero=zero)
    if (text := flags.get("default_preemptible")) is not None:
        found["preemptible"] = _YES_NO[text]
    return found


def changed(setting: QueueSetting, everybody: bool, flags: dict[str, Any]) -> QueueSetting:
    """The setting with what the flags say. Raises WrongInput."""
    new: dict[str, Any] = {
        name: flags[name] for name in _AS_THEY_ARE if flags.get(name) is not None
    }
    if (text := flags.get("preempts_equals")) is not None:
        new["preempts_equals"] = _YES_NO[text]
    for flag, field in _AMOUNTS.items():
        if flags.get(flag) is not None:
            new[field] = _gpu_milli(f"--{flag.replace('_', '-')}", flags[flag])
    for flag in ("max_running", "max_waiting"):
        if flags.get(flag) is not None:
            new[f"{flag}_jobs"] = _jobs(f"--{flag.replace('_', '-')}", flags[flag])
    if flags.get("max_evictions") is not None:
        new["max_evictions_per_hour"] = _jobs("--max-evictions", flags["max_evictions"])
    if defaults := _defaults(flags):
        new["defaults"] = msgspec.structs.replace(setting.defaults, **defaults)
    if flags.get("max_priority") is not None:
        new["max_priority"] = _priority(flags["max_priority"])
    if allows := {
        field: _listed(f"--{flag.replace('_', '-')}", flags[flag])
        for flag, field in _ALLOWED.items()
        if flags.get(flag) is not None
    }:
        new["allows"] = msgspec.structs.replace(setting.allows, **allows)
    if everybody or flags.get("allow"):
        new["tenants"] = () if everybody else tuple(flags["allow"])
    if flags.get("parent") is not None:
        new["parent"] = "" if flags["parent"] == "none" else flags["parent"]
    if flags.get("profile") is not None:
        new["profile"] = "" if flags["profile"] == "none" else flags["profile"]
    if flags.get("score_weights"):
        texts = [text for text in flags["score_weights"] if text != "none"]
        new["weights"] = parse_weights(texts)
    if flags.get("places"):
        new["places"] = dict(map(queue_place, flags["places"]))
    return msgspec.structs.replace(setting, set_by="", set_at_s=0.0, **new)


def queue_place(text: str) -> tuple[str, QueuePlace]:
    """berlin=ml/main@runner -> where the jobs of a queue are made in berlin. Raises WrongInput."""
    found = _PLACE.fullmatch(text)
    if found is None:
        raise WrongInput(f"--place {text!r}: right is [CLUSTER=]NAMESPACE[/LOCALQUEUE][@ACCOUNT]")
    place = QueuePlace(
        namespace=found["namespace"],
        service_account=found["account"] or "",
        local_queue=found["queue"] or "",
    )
    return found["cluster"] or "*", place


def _listed(flag: str, text: str) -> tuple[str, ...] | None:
    if text == "any":
        return None
    try:
        return members(text)
    except EmptyMember as error:
        raise WrongInput(f"{flag} {text!r}: {error}; right is A,B, '' or 'any'") from error


def _priority(text: str) -> int | None:
    if text == "none":
        return None
    try:
        return int(text)
    except ValueError:
        raise WrongInput(f"--max-priority {text!r}: right is a number, or 'none'") from None


def _jobs(flag: str, text: str) -> int | None:
    if text == "none":
        return None
    if not text.isdecimal() or not text.isascii():
        raise WrongInput(f"{flag} {text!r}: right is a number of jobs, or 'none'")
    return int(text)


def _gpu_milli(flag: str, text: str) -> int | None:
    if text == "none":
        return None
    milli = exactly(text, 1000)
    if milli is None:
        raise WrongInput(f"{flag} {text!r}: right is a number of GPUs such as 8 or 2.5, or 'none'")
    return milli
