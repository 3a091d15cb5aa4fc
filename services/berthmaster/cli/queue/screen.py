"""Queues on the screen: the operators' settings, and the tenant's view."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from berthmaster.cli.job.screen import ranks_by
from berthmaster.cli.output.terminal import WholeOrParts, part_table, plain_table, safe
from berthmaster.lib.engine.queueing.queues import QueueTree, amount_text
from berthmaster.lib.messages.api import QueueStanding
from berthmaster.lib.messages.control import QueueSetting


def standings(accounts: Sequence[QueueStanding]) -> RenderableType:
    """Return the queues that are open to a tenant."""
    if not accounts:
        return safe("No queue has been set for this tenant; requests use the queue 'default'.")
    shares = ("PRIO", "GUARANTEE", "DESERVED", "LIMIT", "USED", "BORROWED")
    jobs = ("RUNNING", "WAITING")
    whole = plain_table("QUEUE", *shares, *jobs, "STATE", right=(*shares, *jobs))
    shared = part_table("QUEUE", *shares, right=shares)
    rest = part_table("QUEUE", *jobs, "STATE", right=jobs)
    for each in accounts:
        name = safe(each.queue)
        has_now = (
            str(each.priority),
            _gpus(each.guarantee_gpu_milli),
            _gpus(each.deserved_gpu_milli),
            _gpus(each.capability_gpu_milli),
            *_has(each),
        )
        stands = (
            _of(each.running, each.max_running_jobs),
            str(each.waiting),
            "held" if each.held else "open",
        )
        whole.add_row(name, *has_now, *stands)
        shared.add_row(name, *has_now)
        rest.add_row(name, *stands)
    return WholeOrParts(whole, (shared, rest))


def _of(number: int, most: int | None) -> str:
    return str(number) if most is None else f"{number}/{most}"


_PREEMPTS = {"never": "nobody", "all": "in all queues"}
_REBALANCES = {"queue": "its own jobs", "all": "all queues' jobs"}


def queues(
    settings: Sequence[QueueSetting], accounts: Sequence[QueueStanding] = ()
) -> RenderableType:
    """Return the queues, each below its parent.

    A narrow screen gets two tables: quota shares, and other settings.
    """
    if not settings:
        return safe("No queue has been set; requests use the queue 'default'.")
    has = {each.queue: each for each in accounts}
    amounts = ("GUARANTEE", "DESERVED", "LIMIT")
    now = ("USED", "BORROWED") if accounts else ()
    limits = ("JOB", "RUNNING", "WAITING")
    words, numbers = ("TENANTS", "STATE"), ("PRIO", "WEIGHT", *amounts, *now, *limits)
    whole = plain_table("QUEUE", *numbers, *words, right=numbers)
    shares = ("PRIO", *amounts, *now)
    shared = part_table("QUEUE", *shares, right=shares, amounts=amounts)
    rest = part_table("QUEUE", "WEIGHT", *limits, *words, right=("WEIGHT", *limits))
    for depth, setting in _as_tree(settings):
        state = "deleted" if setting.deleted else "held" if setting.held else "open"
        if setting.via != "direct":
            state += f", by Kueue ({setting.via})"  # Kueue's quotas apply
        if setting.profile or setting.weights:
            state += f", ranks by {ranks_by(setting.profile, setting.weights)}"
        if setting.preempts != "queue":
            state += f", preempts {_PREEMPTS[setting.preempts]}"
        if setting.preempts_equals:
            state += ", stops equals"
        if setting.rebalances != "never":
            state += f", moves {_REBALANCES[setting.rebalances]} to fit in"
        if setting.max_evictions_per_hour is not None:
            state += f", gives way at most {setting.max_evictions_per_hour} times an hour"
        if setting.max_priority is not None:
            state += f", priority to {setting.max_priority}"
        allowed = [
            f"{name.replace('_', ' ')} {', '.join(listed) or '(none)'}"
            for name in setting.allows.__struct_fields__
            if (listed := getattr(setting.allows, name)) is not None
        ]
        if allowed:
            state += f", allows {'; '.join(allowed)}"
        name = safe("  " * depth + setting.queue)
        priority, weight = str(setting.priority), f"{setting.weight:g}"
        has_now = (
            _amounts(setting, "guarantee"),
            _amounts(setting, "deserved"),
            _amounts(setting, "capability"),
            *(_has(has.get(setting.queue)) if accounts else ()),
        )
        is_set = (
            _gpus(setting.max_job_gpu_milli),
            _jobs(setting.max_running_jobs),
            _jobs(setting.max_waiting_jobs),
            safe(", ".join(setting.tenants) or "everybody"),
            safe(state),
        )
        whole.add_row(name, priority, weight, *has_now, *is_set)
        shared.add_row(name, priority, *has_now)
        rest.add_row(name, weight, *is_set)
    return WholeOrParts(whole, (shared, rest))


def _as_tree(settings: Sequence[QueueSetting]) -> Iterator[tuple[int, QueueSetting]]:
    """Yield each queue with its depth; siblings sorted by priority, then name."""
    by_name = {each.queue: each for each in settings}
    tree = QueueTree(by_name)
    first: dict[str, tuple[tuple[int, str], ...]] = {}
    for name in by_name:
        way = [by_name[each] for each in (*reversed(tree.parents.get(name, ())), name)]
        first[name] = tuple((-each.priority, each.queue) for each in way)
    for name in sorted(by_name, key=first.__getitem__):
        yield len(first[name]) - 1, by_name[name]


def _has(account: QueueStanding | None) -> tuple[str, str]:
    """Return a queue's used GPUs, with its children, and the part beyond its deserved share."""
    if account is None:
        return "?", "?"
    return f"{account.used_gpu_milli / 1000:g}", f"{account.borrowed_gpu_milli / 1000:g}"


def _amounts(setting: QueueSetting, kind: str) -> Text:
    """Return GPUs of any model, then the settings of single resources."""
    gpus: int | None = getattr(setting, f"{kind}_gpu_milli")
    parts = [] if gpus is None else [f"{gpus / 1000:g}"]
    for resource, each in sorted(setting.resources.items()):
        amount: int | None = getattr(each, kind)
        if amount is not None:
            parts.append(amount_text(resource, amount))
    return safe(", ".join(parts) or "-")


def _jobs(number: int | None) -> str:
    return "-" if number is None else str(number)


def _gpus(milli: int | None) -> str:
    return "-" if milli is None else f"{milli / 1000:g}"
