"""Suggest other configurations of a job, from ended jobs with the same program or labels. Pure.

A configuration is a layout of GPUs (`Form`) on one model. Its run time, wait and GPU hours are
medians of the jobs that ran in it. A job counts if all of its attempts held the same model.

Example: five jobs with the program of ``train-7`` took 2 h on 1x8 H100, and four took 3 h on 1x4
H100. The suggestion for ``train-7`` (1x8) has 1x4 with 12 GPU hours in place of 16.

A MIG slice of the fleet is suggested without any job in it, if the measured use of a job with one
GPU a pod fits: the memory with `HEADROOM`, and the activity at the 95th percentile. Its run time is
then that of the whole GPU.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from berthmaster.control.usage.core import waits
from berthmaster.control.usage.core.gpus import Slice
from berthmaster.control.usage.core.prices import Prices
from berthmaster.control.usage.core.similar import digest_of
from berthmaster.control.usage.core.spans import HOUR_MS
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.suggest import Best, Change, Configuration, Suggestions
from berthmaster.lib.messages.workload import WHOLE_MILLI, JobRequest, PodSet
from berthmaster.lib.profiles.sketch import Sketch, total

HEADROOM: Final = 1.1  # memory of a slice by the measured peak
MEASURED_S: Final = 300.0  # measurements before a slice is suggested
MOST: Final = 32  # configurations in a reply
HOUR_MILLI_MS: Final = WHOLE_MILLI * HOUR_MS  # of one GPU
_ONE_GPU_A_POD: Final = re.compile(r"(\d+)x1\Z")
_OF_PART: Final = re.compile(r"x(0\.|(\dc\.)?\dg\.)")
_NOTHING: Final = Sketch()


class Form(NamedTuple):
    """Features of a job that do not depend on its size, and its layout."""

    tags: str  # digest of the labels, "" = none
    layout: str


class Ran(NamedTuple):
    """An ended job as evidence."""

    id: str
    layout: str
    model: str  # "" = unknown, or no GPU
    asked_milli: int
    state: str
    wait_ms: int | None
    ran_ms: int | None
    held_milli_ms: int


class Own(NamedTuple):
    """The job itself."""

    form: Form
    asked_milli: int
    model: str  # "" = not placed, or unknown


class Measured(NamedTuple):
    """Measured usage of attempts."""

    attempts: int
    seconds: float
    sketches: Mapping[str, Sketch]


def form_of(tenant: str, request: JobRequest) -> Form:
    labels = [f"{name}={value}" for name, value in sorted(request.labels.items())]
    tags = digest_of((tenant, *labels)) if labels else ""
    return Form(tags, "+".join(map(_layout, request.pod_sets)))


def _layout(pods: PodSet) -> str:
    if pods.tpus:
        return f"{pods.count}x{pods.tpus} TPU"
    if pods.mig_profile:
        return f"{pods.count}x{pods.mig_profile}"
    return f"{pods.count}x{pods.gpus * pods.gpu_milli / WHOLE_MILLI:g}"


def not_known(tenant: str, workload_id: str) -> Refusal:
    return Refusal(
        code="not_found",
        field="id",
        value=workload_id,
        expected=f"a job of {tenant} that is open, or ended since this service keeps layouts",
    )


def measured(records: Iterable[tuple[float, Mapping[str, Sketch]]]) -> Measured:
    """Sum up attempts. ``records``: measured seconds and sketches by metric."""
    known = list(records)
    names = {name for _, sketches in known for name in sketches}
    sketches = {name: total(s[name] for _, s in known if name in s) for name in sorted(names)}
    return Measured(len(known), sum(seconds for seconds, _ in known), sketches)


def suggestions(
    tenant: str,
    workload_id: str,
    own: Own,
    by: str,
    rans: Sequence[Ran],
    use: Measured,
    slices: Iterable[Slice],
    prices: Prices | None,
) -> Suggestions:
    """Return the reply. ``rans``: ended jobs with the same feature ``by``, ``slices``: MIG slices
    of the fleet.
    """
    groups: dict[tuple[str, str], list[Ran]] = {}
    for each in rans:
        groups.setdefault((each.layout, each.model), []).append(each)
    found = [_configuration(group, own, prices) for group in groups.values()]
    found += _slices(found, own, use, slices, prices)
    priced = prices is not None
    found = _with_best(found, priced=priced)
    found.sort(key=lambda one: (not one.own, _cost_of(one, priced=priced), one.gpus, one.layout))
    notes = []
    if not any(not one.own for one in found):
        notes.append("no job like this one has ended in another configuration")
    if not prices:
        notes.append("no prices are set: cost is compared by GPU hours")
    if len(found) > MOST:
        notes.append(f"{len(found) - MOST} configurations of higher cost are left out")
    return Suggestions(
        tenant=tenant,
        id=workload_id,
        by="labels" if by == "labels" else "program",
        configurations=tuple(found[:MOST]),
        currency=prices.currency if prices else "",
        notes=tuple(notes),
    )


def _configuration(group: Sequence[Ran], own: Own, prices: Prices | None) -> Configuration:
    first = group[0]
    done = [each for each in group if each.state == "succeeded" and each.ran_ms is not None]
    ran = waits.of(each.ran_ms for each in done if each.ran_ms is not None)
    held = sorted(each.held_milli_ms for each in done)
    gpu_h = round(held[(len(held) - 1) // 2] / HOUR_MILLI_MS, 4) if held else None
    is_own = first.layout == own.form.layout and own.model in ("", first.model)
    return Configuration(
        layout=first.layout,
        model=first.model,
        gpus=first.asked_milli / WHOLE_MILLI,
        own=is_own,
        changes=() if is_own else _changes(first.layout, first.asked_milli, first.model, own),
        jobs=len(done),
        failed=sum(each.state == "failed" for each in group),
        ran_low_s=waits.percentile(ran, 0.1),
        ran_s=waits.percentile(ran, 0.5),
        ran_high_s=waits.percentile(ran, 0.9),
        wait_s=waits.percentile(waits.of(w for e in group if (w := e.wait_ms) is not None), 0.5),
        gpu_h=gpu_h,
        cost=_priced(gpu_h, first.model, prices),
    )


def _priced(gpu_h: float | None, model: str, prices: Prices | None) -> float | None:
    price = prices.of(model) if prices is not None else None
    return None if price is None or gpu_h is None else round(price * gpu_h, 4)


def _changes(layout: str, asked_milli: int, model: str, own: Own) -> tuple[Change, ...]:
    """Return the differences from the job's own configuration."""
    changes: list[Change] = []
    if asked_milli < own.asked_milli:
        changes.append("smaller_slice" if _OF_PART.search(layout) else "fewer_gpus")
    elif asked_milli > own.asked_milli:
        changes.append("more_gpus")
    elif layout != own.form.layout:
        changes.append("other_pods")
    if own.model and model not in ("", own.model):
        changes.append("other_model")
    return tuple(changes)


def _slices(
    found: Sequence[Configuration],
    own: Own,
    use: Measured,
    slices: Iterable[Slice],
    prices: Prices | None,
) -> list[Configuration]:
    """Return slices of the same model that the measured use fits into, if no job ran in them."""
    pods = _ONE_GPU_A_POD.match(own.form.layout)
    models = {own.model} | {one.model for one in found if one.layout == own.form.layout}
    models.discard("")
    activity = use.sketches.get("gpu_sm_active_percent", _NOTHING)
    if not activity.weight:
        activity = use.sketches.get("gpu_utilization_percent", _NOTHING)
    busy = activity.quantile(0.95)
    memory = use.sketches.get("gpu_memory_max_percent", _NOTHING)
    if pods is None or len(models) != 1 or use.seconds < MEASURED_S:
        return []
    if busy is None or not memory.weight:
        return []
    (model,) = models
    whole = next((one for one in found if one.own), Configuration(layout=own.form.layout))
    seen = {(one.layout, one.model) for one in found}
    added = []
    for each in sorted(set(slices)):
        layout = f"{pods[1]}x{each.profile}"
        needed_mib = memory.peak / 100 * each.gpu_memory_mib * HEADROOM
        fits = 0 < needed_mib <= each.memory_mib and busy * 10 <= each.milli
        if each.model != model or not fits or (layout, model) in seen:
            continue
        share = each.milli / WHOLE_MILLI
        gpu_h = None if whole.gpu_h is None else round(whole.gpu_h * share, 4)
        added.append(
            replace(
                whole,
                layout=layout,
                model=model,
                gpus=round(int(pods[1]) * share, 3),
                own=False,
                changes=("smaller_slice",),
                by="profile",
                jobs=use.attempts,
                failed=0,
                wait_s=None,
                gpu_h=gpu_h,
                cost=_priced(gpu_h, model, prices),
            )
        )
    return added


def _cost_of(one: Configuration, *, priced: bool) -> float:
    cost = one.cost if priced else one.gpu_h
    return math.inf if cost is None else cost


def _with_best(found: Sequence[Configuration], *, priced: bool) -> list[Configuration]:
    """Return the configurations, of which the best are marked. Measured use alone is no
    evidence of a run time.
    """
    ran = [one for one in found if one.by == "jobs"]
    values: dict[Best, Callable[[Configuration], float]] = {
        "time": lambda one: math.inf if one.ran_s is None else one.ran_s,
        "cost": lambda one: _cost_of(one, priced=priced),
        "start": lambda one: math.inf if one.wait_s is None else one.wait_s,
    }
    least = {name: min(map(value, ran), default=math.inf) for name, value in values.items()}
    return [
        replace(
            one,
            best=tuple(
                name
                for name, value in values.items()
                if one.by == "jobs" and value(one) == least[name] < math.inf
            ),
        )
        for one in found
    ]
