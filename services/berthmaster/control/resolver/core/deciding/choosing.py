"""Choose one of the configurations that a job lists (``choose``, or ``trial``).

``pick`` orders the configurations of one pending job. The search (decide.py) then treats the job
like one that was submitted in that configuration.

- ``start``: each configuration is tried in the listed order, and the first with free capacity is
  taken. Capacity is freed or reserved for the smallest number of GPUs.
- ``time``, ``cost``: the job takes the configuration with the shortest or cheapest run, and waits
  for it like any other job. The run time is the median of at least three ended jobs with the same
  queue, shape and labels. Configurations without that come after the others, in the listed order.

- ``trial``: the job takes the configuration with the shortest or cheapest step by its trials
  (lib/lifecycle/trials.py), and waits for it. Without any result it takes the first one.

Example: jobs with the label model=bert took 2 h on 8 GPUs, and 3 h on 4. By time the next one takes
8 GPUs, by cost 4: 12 GPU hours in place of 16.

Rules of this file:

- A configuration that no cluster can have, even when empty, is skipped if another one can.
- Learned run times are inputs of a decision. ``Weighed`` records them, and a repeated decision uses
  the record.
- The price of a GPU hour is the lowest of the clusters that can have the configuration. If one
  price is unknown, GPU hours are compared.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.lib.engine.fitting.topology import never
from berthmaster.lib.engine.fleetview.components import price_of
from berthmaster.lib.engine.fleetview.shortlist import BUSY
from berthmaster.lib.lifecycle.choices import (
    choice_of,
    configurations,
    has_choice,
    smallest,
    trial_in,
)
from berthmaster.lib.lifecycle.trials import seconds_a_step
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.placement import Option, Weighed
from berthmaster.lib.messages.workload import JobRequest, Trial, TrialResult

HOUR_S: Final = 3600.0
UNKNOWN_TIME: Final = "fewer than 3 similar jobs ended"
LATER: Final = "behind in the list"
SLOWER: Final = "slower"
COSTLIER: Final = "costs more"
NO_CLUSTER: Final = "no cluster has reported"


class Pick(NamedTuple):
    """The configurations of one job, in order."""

    tries: tuple[int, ...]  # numbers of configurations; the first with a place is taken
    each: tuple[JobRequest, ...]  # configurations in the listed order
    awaited: JobRequest  # what capacity is freed or reserved for
    options: tuple[Option, ...]  # for the record, in the listed order
    weighed: Weighed | None  # learned inputs; None = not used

    def taken(self, number: int, lacks: Mapping[int, str]) -> tuple[Option, ...]:
        """Return the record with this configuration. ``lacks``: why others had no place."""
        found = []
        for at, option in enumerate(self.options):
            why = "" if at == number else lacks.get(at) or option.why or LATER
            found.append(msgspec.structs.replace(option, why=why))
        return tuple(found)


def pick(
    cycle: Cycle, tenant: str, request: JobRequest, trials: Sequence[TrialResult] = ()
) -> Pick | None:
    """Return the configurations of a pending job in order; None without a choice.

    ``trials``: the job's results.
    """
    if not has_choice(request):
        return None
    each = configurations(request)
    if (trial := trial_in(request)) is not None:
        return _by_trials(cycle, request, trial, each, trials)
    choose = choice_of(request)
    assert choose is not None  # the only choice left
    if choose.by == "start":
        options = tuple(_option(request, one) for one in each)
        return Pick(tuple(range(len(each))), each, smallest(request), options, None)
    weighed = _weighed(cycle, tenant, request, each)
    values = costs = weighed.expected_s
    if choose.by == "cost":
        values = costs = _costs(cycle, each, weighed.expected_s)
    behind = SLOWER if choose.by == "time" else COSTLIER
    whys = {at: UNKNOWN_TIME for at, value in enumerate(values) if value is None}
    first, whys = _first(cycle, each, values, whys, behind)
    options = tuple(
        msgspec.structs.replace(
            _option(request, one),
            expected_s=weighed.expected_s[at],
            jobs=weighed.jobs[at],
            cost=costs[at] if choose.by == "cost" else None,
            why="" if at == first else whys[at],
        )
        for at, one in enumerate(each)
    )
    return Pick((first,), each, each[first], options, weighed)


def _by_trials(
    cycle: Cycle,
    request: JobRequest,
    trial: Trial,
    each: Sequence[JobRequest],
    results: Sequence[TrialResult],
) -> Pick:
    steps: Sequence[float | None] = seconds_a_step(results) or (None,) * len(each)
    values = steps if trial.by == "time" else _costs(cycle, each, steps)
    behind = SLOWER if trial.by == "time" else COSTLIER
    whys = {at: _no_result(results, at) for at, value in enumerate(values) if value is None}
    first, whys = _first(cycle, each, values, whys, behind)
    options = tuple(
        msgspec.structs.replace(
            _option(request, one),
            step_s=steps[at],
            cost=values[at] if trial.by == "cost" else None,
            why="" if at == first else whys[at],
        )
        for at, one in enumerate(each)
    )
    return Pick((first,), tuple(each), each[first], options, None)


def _no_result(results: Sequence[TrialResult], at: int) -> str:
    if not results:
        return "no trials were run"
    reason = results[at].reason
    return f"its trial had no result: {reason}" if reason else "its trial had no result"


def _first(
    cycle: Cycle,
    each: Sequence[JobRequest],
    values: Sequence[float | None],
    unknown: Mapping[int, str],
    behind: str,
) -> tuple[int, dict[int, str]]:
    """Return the configuration with the least value that a cluster can have, and why not the
    others. ``unknown``: why some have no value.
    """

    def rank(number: int) -> tuple[bool, float, int]:
        value = values[number]
        return value is None, 0.0 if value is None else value, number

    order = sorted(range(len(each)), key=rank)
    whys = dict.fromkeys(order, behind) | dict(unknown)
    for number in order:
        clusters, lacks = _clusters(cycle, each[number])
        if clusters:
            return number, whys
        whys[number] = lacks
    return order[0], whys


def words_of(request: JobRequest, one: JobRequest) -> str:
    """Return a configuration in words, such as 4 GPUs of H100."""
    option = _option(request, one)
    gpus = "1 GPU" if option.gpus == 1 else f"{option.gpus} GPUs"
    return f"{gpus} of {' or '.join(option.gpu_models)}" if option.gpu_models else gpus


def _option(request: JobRequest, one: JobRequest) -> Option:
    at = next(n for n, pods in enumerate(request.pod_sets) if pods.choose or pods.trial)
    pods = one.pod_sets[at]
    return Option(gpus=pods.gpus, gpu_models=pods.gpu_models)


def _weighed(cycle: Cycle, tenant: str, request: JobRequest, each: Sequence[JobRequest]) -> Weighed:
    """Return the learned run times, or those that the repeated decision recorded."""
    know = cycle.know
    if know.given is not None:
        name = key(tenant, request.id)
        unknown = Weighed(
            tenant=tenant,
            id=request.id,
            expected_s=(None,) * len(each),
            jobs=(0,) * len(each),
        )
        return know.given.weighed.get(name, unknown)
    known = [know.expectations.durations.of_configuration(tenant, one) for one in each]
    return Weighed(
        tenant=tenant,
        id=request.id,
        expected_s=tuple(None if one is None else one[0] for one in known),
        jobs=tuple(0 if one is None else one[1] for one in known),
    )


def _costs(
    cycle: Cycle, each: Sequence[JobRequest], expected_s: Sequence[float | None]
) -> tuple[float | None, ...]:
    """Return the cost of each configuration; None where its run time is unknown."""
    prices = [_price(cycle, one) for one in each]
    if any(math.isnan(price) for price in prices):
        prices = [1.0] * len(each)
    return tuple(
        None if seconds is None else round(_gpus(one) * price * seconds / HOUR_S, 6)
        for one, price, seconds in zip(each, prices, expected_s, strict=True)
    )


def _gpus(request: JobRequest) -> int:
    return sum(pods.count * pods.gpus for pods in request.pod_sets)


def _price(cycle: Cycle, request: JobRequest) -> float:
    """Return the lowest price of a GPU hour of a configuration; NaN = unknown."""
    models = next((pods.gpu_models for pods in request.pod_sets if pods.gpus), ())
    clusters, _ = _clusters(cycle, request)
    prices = [
        price_of(cycle.know.clusters.peek(name).tells, model)
        for name in clusters
        for model in models or ("",)
    ]
    return min((price for price in prices if not math.isnan(price)), default=math.nan)


def _clusters(cycle: Cycle, request: JobRequest) -> tuple[list[str], str]:
    """Return the clusters that could have the configuration when empty, or else why none could."""
    shortlist = cycle.shortlist(request)
    fleet, found, reasons = cycle.know.fleet, [], Counter[str]()
    for number, cluster in enumerate(fleet.clusters):
        why = shortlist.filtered.get(cluster, "")
        if why == BUSY:
            why = never(fleet, number, request.pod_sets, shortlist.suitables)
        if why:
            reasons[why] += 1
        else:
            found.append(cluster)
    lacks = reasons.most_common(1)[0][0] if reasons else NO_CLUSTER
    return found, "" if found else lacks
