"""Quota of queues: limits, usage, and the next queue.

Example: queue a deserves 8 GPUs and uses 6, and b deserves 4 and uses 4. A job of a with 2 GPUs
goes first by its deserved share. A job of a with 4 GPUs borrows, as every job of b does. Then the
lower dominant share goes first.

Quantities are by resource: ``cpu`` in milli, ``memory`` in MiB, ``gpu`` in GPU milli of any model,
``gpu/<model>`` in GPU milli of one model, and extended resources in units by full name, such as
``rdma/hca``. Rules of this file:

- A queue never exceeds its capability in any resource that it names.
- GPUs count as nodes charge (``lib/engine/fleet/shares.py``, ``charged_milli``), not as requested.
  A fraction may cost more on some nodes. A job may run where the cheapest node keeps the limits,
  and ``Right.left`` limits costlier nodes.
- Other queues may borrow unused quota. The rest of a guarantee is not lent while a job of its queue
  fits: jobs within their queue's guarantee go first.
- Next are queues of higher priority, then queues below their deserved share, then the least
  weighted dominant share. The age of the first job and the name decide ties.
- A dominant share is the largest of a queue's shares of the fleet: allocated * multiplier / total,
  over CPU, memory and each GPU model, divided by the queue's weight. Resources without a node and
  extended resources do not count.
- Preemption regains a lent guarantee. No rule here stops a job.
- For queues with parents (``QueueTree``), the rules hold among the children of one parent. A job is
  checked on each queue of its path, with the usage of all queues below.

**Parents.** Example: research is guaranteed 10 GPUs; its children vision and speech are guaranteed
6 and 2. A job of vision is within its guarantee up to 6 GPUs, whatever speech has borrowed. Beyond
6 it is within the guarantee while research uses less than 10 in all.

Settings arrive one at a time and from several operators, so they may not form a tree. Rules that
depend on settings alone:

- A parent is valid if set, not named ``default``, and if no cluster's Kueue governs parent or
  child. A queue among its own ancestors has no parent.
- A parent without a guarantee has the sum of its children's, and likewise for deserved shares.
- A child's guarantee holds against all queues, as long as the children's guarantees stay within the
  parent's. Otherwise each child has its guarantee among its siblings, and the parent only its own
  against others.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import lru_cache
from typing import Final, NamedTuple

from berthmaster.lib.engine.fleet.gpus import is_one_of
from berthmaster.lib.engine.fleet.pieces import pieces_of
from berthmaster.lib.engine.fleet.shares import Charges
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.workload import WHOLE_MILLI, JobRequest

CPU: Final = "cpu"
MEMORY: Final = "memory"
GPU: Final = "gpu"
MODEL: Final = f"{GPU}/"

Amounts = dict[str, int]
Models = tuple[str, ...]  # all reported models


def of_model(model: str) -> str:
    """The resource's name of a GPU model."""
    return f"{MODEL}{model}"


class QueueShare(NamedTuple):
    """Operators' settings of a queue for order and limits."""

    queue: str
    priority: int = 0
    weight: float = 1.0
    guarantee: Mapping[str, int] = {}
    deserved: Mapping[str, int] = {}
    capability: Mapping[str, int] = {}
    max_running: int | None = None
    max_job_gpu_milli: int | None = None
    held: bool = False


def share_of(queue: str, setting: QueueSetting | None) -> QueueShare:
    """Return a queue's share. Where a cluster's Kueue governs the queue, its quota is for display
    only.
    """
    if setting is None:
        return QueueShare(queue)
    if setting.via != "direct":
        return QueueShare(queue, setting.priority, setting.weight, held=setting.held)
    guarantee, deserved, capability = (
        _amounts(setting, name) for name in ("guarantee", "deserved", "capability")
    )
    return QueueShare(
        queue,
        setting.priority,
        setting.weight,
        guarantee,
        deserved,
        capability,
        setting.max_running_jobs,
        setting.max_job_gpu_milli,
        setting.held,
    )


def _amounts(setting: QueueSetting, name: str) -> Amounts:
    found = {
        resource: amount
        for resource, each in setting.resources.items()
        if (amount := getattr(each, name)) is not None
    }
    gpus = getattr(setting, f"{name}_gpu_milli")
    return found if gpus is None else {GPU: gpus} | found


class SetAsk(NamedTuple):
    """Common charge of pods that accept the same GPU models."""

    models: Models  # acceptable; () = any
    milli: int  # at the lowest charge
    charges: Charges = ()  # by GPU model and price, of pods that take parts of GPUs; () = no matter

    def least_of(self, resource: str) -> int:
        """Return the lowest charge of the pods on GPUs of a resource; 0 without such GPUs."""
        prices = prices_of(self.charges, resource)
        return min(prices, default=0) if self.charges else self.milli


class Ask(NamedTuple):
    """Minimum charge of a job, whatever its placement. A job may accept several GPU models."""

    cpu_milli: int
    memory_mib: int
    gpu_milli: int
    sets: tuple[SetAsk, ...]
    jobs: int = 1  # running jobs that it adds; 0 for part of a counted job
    pieces: tuple[tuple[str, int], ...] = ()  # extended resource, how many
    held_milli: int = 0  # GPU milli already charged to the same job

    @property
    def varies(self) -> bool:
        """Return whether charges differ between nodes."""
        return any(len(one.charges) > 1 for one in self.sets)

    def of(self, resource: str, models: Models) -> int:
        """Return the maximum usage of a resource at the lowest charge."""
        if resource == CPU:
            return self.cpu_milli
        if resource == MEMORY:
            return self.memory_mib
        if resource == GPU:
            return self.gpu_milli
        if not resource.startswith(MODEL):
            return dict(self.pieces).get(resource, 0)
        return sum(
            one.least_of(resource) for one in self.sets if meet(one.models, resource, models)
        )

    def names(self, resource: str, models: Models) -> bool:
        """Return whether the job itself requests the resource."""
        if resource.startswith(MODEL):
            return any(one.models and meet(one.models, resource, models) for one in self.sets)
        return self.of(resource, models) > 0


def prices_of(charges: Charges, resource: str) -> list[int]:
    """The prices of a part on GPUs of a resource: ``gpu``, or one model's."""
    if resource == GPU:
        return [milli for _, milli in charges]
    named = (resource.removeprefix(MODEL),)
    return [milli for model, milli in charges if is_one_of(named, model)]


def ask_of(request: JobRequest, charges_of: Callable[[int], Charges] | None = None) -> Ask:
    """Return the minimum total charge of a request's pods.

    ``charges_of``: charges of a fraction by number of the pod set; empty where no node takes the
    pods. Without this function, fractions count as requested.
    """
    cpu = memory = gpu = 0
    sets: dict[Models, int] = {}
    parts: list[SetAsk] = []
    pieces: dict[str, int] = {}
    for number, pods in enumerate(request.pod_sets):
        cpu += pods.count * pods.cpu_milli
        memory += pods.count * pods.memory_mib
        if pods.tpus or pods.resources:
            for name, each in pieces_of(pods):
                pieces[name] = pieces.get(name, 0) + pods.count * each
        milli = pods.count * pods.gpus * pods.gpu_milli
        if not milli:
            continue
        charges: Charges = ()
        if charges_of is not None and pods.gpu_milli < WHOLE_MILLI:
            charges = tuple((model, pods.count * each) for model, each in charges_of(number))
        if charges:
            milli = min(each for _, each in charges)
            parts.append(SetAsk(pods.gpu_models, milli, charges))
        else:
            sets[pods.gpu_models] = sets.get(pods.gpu_models, 0) + milli
        gpu += milli
    of_sets = (*(SetAsk(models, milli) for models, milli in sets.items()), *parts)
    every = tuple(sorted(pieces.items()))
    return Ask(cpu, memory, gpu, of_sets, int(request.part is None), every)


@lru_cache(maxsize=4096)
def meet(wanted: tuple[str, ...], resource: str, models: Models) -> bool:
    """Return whether a GPU model of the resource is among the wanted models."""
    named = (resource.removeprefix(MODEL),)
    return any(
        is_one_of(named, model) and (not wanted or is_one_of(wanted, model)) for model in models
    )


def used_of(used: Mapping[str, int], resource: str) -> int:
    """Return the usage of a resource, under any spelling of a GPU model."""
    if not resource.startswith(MODEL):
        return used.get(resource, 0)
    named = (resource.removeprefix(MODEL),)
    return sum(
        amount
        for name, amount in used.items()
        if name.startswith(MODEL) and is_one_of(named, name.removeprefix(MODEL))
    )


class Tier(IntEnum):
    """How good a queue's right to one more job is; less goes first."""

    GUARANTEED = 0
    DESERVED = 1
    BORROWED = 2


def tier(share: QueueShare, used: Mapping[str, int], ask: Ask, models: Models) -> Tier:
    """Return the precedence of a job of the queue, beside present usage."""
    if _within(share.guarantee, used, ask, models):
        return Tier.GUARANTEED
    if _within(share.deserved, used, ask, models):
        return Tier.DESERVED
    return Tier.BORROWED


def _within(limits: Mapping[str, int], used: Mapping[str, int], ask: Ask, models: Models) -> bool:
    """Return whether the job uses a limited resource, and stays within all limits."""
    counts = False
    for resource, limit in limits.items():
        if not ask.names(resource, models):
            continue
        if used_of(used, resource) + ask.of(resource, models) > limit:
            return False
        counts = True
    return counts


def dominant_share(
    used: Mapping[str, int],
    totals: Mapping[str, int],
    weight: float,
    multipliers: Mapping[str, float] = {},
) -> float:
    """A queue's largest share of any resource of the fleet, by its weight."""
    most = 0.0
    for resource, amount in used.items():
        total = totals.get(resource, 0)
        if total <= 0 or amount <= 0:
            continue
        if resource not in (CPU, MEMORY) and not resource.startswith(MODEL):
            continue  # models are separate resources, not their sum
        share = amount * multipliers.get(resource, 1.0) / total
        if share > most:
            most = share
    return most / weight


class Right(NamedTuple):
    """Whether a queue may run the job, and the GPU models that it must not use."""

    refusal: str  # why not, or ""
    barred: tuple[str, ...] = ()  # models that would exceed the queue's capability
    left: tuple[tuple[str, int], ...] = ()
    # GPU resource, maximum charge in milli, for jobs with charges that differ between nodes.


_UNLIMITED: Final = Right("")


def right(
    share: QueueShare,
    used: Mapping[str, int],
    running: int,
    ask: Ask,
    models: Models,
    who: str = "its queue",
    barred_before: Sequence[str] = (),
) -> Right:
    """Return whether one more job keeps the queue within its limits.

    ``who``: name of the queue in reasons. ``barred_before``: models excluded in any case.
    """
    if share.held:
        return Right(f"{who} is held")
    most = share.max_job_gpu_milli
    if most is not None and ask.gpu_milli + ask.held_milli > most:
        return Right(f"{who} takes no job of more than {most / 1000:g} GPUs")
    if share.max_running is not None and ask.jobs and running + ask.jobs > share.max_running:
        return Right(f"{who} runs the {share.max_running} jobs that it may")
    left: dict[str, int] = {}
    if most is not None and ask.varies:
        left[GPU] = most - ask.held_milli
    if not share.capability:
        return Right("", (), tuple(left.items())) if left else _UNLIMITED
    barred = []
    for resource, limit in share.capability.items():
        asked = ask.of(resource, models)
        if not asked:
            continue
        free = limit - used_of(used, resource)
        if ask.varies and (resource == GPU or resource.startswith(MODEL)):
            left[resource] = min(free, left.get(resource, free))
        if asked <= free:
            continue
        if not resource.startswith(MODEL):
            return Right(f"{who} is at its capability of {amount_text(resource, limit)}")
        barred.append(resource.removeprefix(MODEL))
    names = tuple(barred)
    for wanted, *_ in ask.sets if names else ():
        there = models_left(wanted, (), models)
        if there and not models_left(wanted, (*barred_before, *names), models):
            told = next((n for n in names if meet(wanted, of_model(n), models)), names[0])
            limit_text = amount_text(of_model(told), share.capability[of_model(told)])
            return Right(f"{who} is at its capability of {limit_text}")
    return Right("", names, tuple(left.items()))


def models_left(wanted: tuple[str, ...], barred: tuple[str, ...], models: Models) -> Models:
    """Return the reported models that are accepted and not barred."""
    return tuple(
        model
        for model in models
        if (not wanted or is_one_of(wanted, model)) and not is_one_of(barred, model)
    )


def amount_text(resource: str, amount: int) -> str:
    """For people: 1.5 GPUs, 8 H100, 4 CPUs, 512 MiB of memory, 2 rdma/hca."""
    if resource == MEMORY:
        return f"{amount} MiB of memory"
    if resource not in (CPU, GPU) and not resource.startswith(MODEL):
        return f"{amount} {resource}"
    unit = {CPU: "CPUs", GPU: "GPUs"}.get(resource, resource.removeprefix(MODEL))
    return f"{amount / 1000:g} {unit}"


def fair_shares(
    capacity: float, demands: Mapping[str, float], weights: Mapping[str, float]
) -> dict[str, float]:
    """Return the shares if capacity were divided by weight, no share above its demand, and the rest
    shared again.
    """
    shares = dict.fromkeys(demands, 0.0)
    wanting = {name for name, demand in demands.items() if demand > 0}
    left = capacity
    while wanting and left > 0:
        total = sum((weights.get(name, 1.0) for name in sorted(wanting)), 0.0)
        level = left / total
        sated = sorted(
            name
            for name in wanting
            if demands[name] - shares[name] <= level * weights.get(name, 1.0)
        )
        for name in sated or sorted(wanting):
            most = level * weights.get(name, 1.0)
            part = min(demands[name] - shares[name], most) if sated else most
            shares[name] += part
            left -= part
        if not sated:
            break
        wanting.difference_update(sated)
    return shares


def overcommitted(shares: Mapping[str, QueueShare], totals: Mapping[str, int]) -> dict[str, str]:
    """Resource -> why the guarantees of all queues together cannot be kept, where they cannot."""
    promised: Amounts = {}
    for share in shares.values():
        for resource, amount in share.guarantee.items():
            promised[resource] = promised.get(resource, 0) + amount
    gpus = sum(amount for name, amount in totals.items() if name.startswith(MODEL))
    there = {name: gpus if name == GPU else used_of(totals, name) for name in promised}
    return {
        resource: f"guarantees of {amount_text(resource, amount)} are promised, "
        f"the fleet has {amount_text(resource, there[resource])}"
        for resource, amount in sorted(promised.items())
        if amount > there[resource]
    }


DEFAULT_QUEUE: Final = "default"  # queue of requests without one, always accepted

Path = tuple[QueueShare, ...]  # a queue, its parent, and so on


class Level(NamedTuple):
    """Precedence of a queue or parent queue for a job."""

    queue: str
    tier: Tier
    priority: int


class QueueTree:
    def __init__(self, settings: Mapping[str, QueueSetting]) -> None:
        parent_of = {
            name: setting.parent
            for name, setting in settings.items()
            if setting.parent and _may_be(settings, name, setting.parent)
        }
        for name in _in_circles(parent_of):
            del parent_of[name]
        self.parents = {name: _ancestors(parent_of, name) for name in parent_of}
        self.children: dict[str, list[str]] = {}
        for name in sorted(parent_of):
            self.children.setdefault(parent_of[name], []).append(name)
        self._shares = {name: share_of(name, setting) for name, setting in settings.items()}
        self._overdrawn: set[str] = set()  # queues whose children's guarantees exceed their own
        for name in sorted(self.children, key=lambda n: -len(self.parents.get(n, ()))):
            self._complete(name)
        self._paths: dict[str, Path] = {}

    def _complete(self, name: str) -> None:
        """Fill in the shares of a parent from complete children."""
        share = self._shares[name]
        below = [self._shares[child] for child in self.children[name]]
        if not share.guarantee:
            share = share._replace(guarantee=_sum([each.guarantee for each in below]))
        elif beyond(share.guarantee, [each.guarantee for each in below]):
            self._overdrawn.add(name)
        if not share.deserved:
            share = share._replace(deserved=_sum([each.deserved for each in below]))
        self._shares[name] = share

    def path(self, queue: str) -> Path:
        """Return the shares of a queue and its parents, nearest first."""
        found = self._paths.get(queue)
        if found is None:
            names = (queue, *self.parents.get(queue, ()))
            found = tuple(self._shares.get(name) or QueueShare(name) for name in names)
            self._paths[queue] = found
        return found

    def share(self, queue: str) -> QueueShare:
        return self.path(queue)[0]

    def roots(self) -> dict[str, QueueShare]:
        """Return the top-level queues."""
        return {name: share for name, share in self._shares.items() if name not in self.parents}

    def keeps(self, queue: str) -> bool:
        """Return whether the children's guarantees hold against other queues too."""
        return queue not in self._overdrawn

    def levels(
        self, queue: str, used: Callable[[str], Mapping[str, int]], ask: Ask, models: Models
    ) -> tuple[Level, ...]:
        """Return the precedence of each queue on the path, the queue itself first."""
        found: list[Level] = []
        for share in self.path(queue):
            by = tier(share, used(share.queue), ask, models)
            if found and found[-1].tier is Tier.GUARANTEED and self.keeps(share.queue):
                by = Tier.GUARANTEED
            found.append(Level(share.queue, by, share.priority))
        return tuple(found)


def right_along(
    path: Path,
    used: Callable[[str], Mapping[str, int]],
    running: Callable[[str], int],
    ask: Ask,
    models: Models,
) -> Right:
    """Return whether one more job keeps a queue and all parents within their limits."""
    if len(path) == 1:
        own = path[0]
        return right(own, used(own.queue), running(own.queue), ask, models)
    barred: list[str] = []
    left: dict[str, int] = {}
    for at, share in enumerate(path):
        who = f"the queue {share.queue}, above its own," if at else "its queue"
        found = right(share, used(share.queue), running(share.queue), ask, models, who, barred)
        if found.refusal:
            return found
        barred += found.barred
        for resource, milli in found.left:
            left[resource] = min(milli, left.get(resource, milli))
    return Right("", tuple(dict.fromkeys(barred)), tuple(left.items()))


def gpus_in(amounts: Mapping[str, int]) -> int:
    """Return GPU milli of any model: the total, or the sum over models."""
    models = sum(amount for name, amount in amounts.items() if name.startswith(MODEL))
    return max(amounts.get(GPU, 0), models)


def beyond(whole: Mapping[str, int], parts: list[Mapping[str, int]]) -> dict[str, tuple[int, int]]:
    """Return resources with a sum of parts above the whole, with both values. A model that the
    whole does not name counts among its GPUs.
    """
    total = _sum(parts)
    gpus = sum(map(gpus_in, parts))
    found = {}
    if gpus > gpus_in(whole):
        found[GPU] = (gpus, gpus_in(whole))
    for resource, amount in sorted(total.items()):
        if resource == GPU or (resource.startswith(MODEL) and resource not in whole):
            continue
        if amount > whole.get(resource, 0):
            found[resource] = (amount, whole.get(resource, 0))
    return found


def _sum(many: list[Mapping[str, int]]) -> Amounts:
    total: Amounts = {}
    for amounts in many:
        for resource, amount in amounts.items():
            total[resource] = total.get(resource, 0) + amount
    return total


def _may_be(settings: Mapping[str, QueueSetting], name: str, parent: str) -> bool:
    above = settings.get(parent)
    return (
        above is not None
        and parent != DEFAULT_QUEUE
        and above.via == "direct"
        and settings[name].via == "direct"
    )


def _in_circles(parent_of: Mapping[str, str]) -> set[str]:
    found: set[str] = set()
    done: set[str] = set()
    for name in parent_of:
        way: dict[str, None] = {}
        at: str | None = name
        while at is not None and at not in way and at not in done:
            way[at] = None
            at = parent_of.get(at)
        if at in way:
            names = list(way)
            found.update(names[names.index(at) :])
        done.update(way)
    return found


def _ancestors(parent_of: Mapping[str, str], name: str) -> tuple[str, ...]:
    found = []
    at = parent_of.get(name)
    while at is not None:
        found.append(at)
        at = parent_of.get(at)
    return tuple(found)
