"""Suggestions of other configurations: from ended jobs in the store to the reply."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from berthmaster.control.usage.core.gpus import Catalogue, Slice
from berthmaster.control.usage.core.jobs import EndedJob, of_story
from berthmaster.control.usage.core.prices import Prices
from berthmaster.control.usage.core.suggest import Measured, form_of, suggestions
from berthmaster.control.usage.store import reading
from berthmaster.control.usage.store.database import Database
from berthmaster.control.usage.store.sqlite import Sqlite
from berthmaster.control.usage.store.tables import prepare
from berthmaster.control.usage.store.writing import Batch, Writer
from berthmaster.lib.messages.suggest import Configuration, Suggestions
from berthmaster.lib.messages.workload import PodSet, RunSpec
from berthmaster.lib.profiles.sketch import Sketch
from tests.support.builders import node
from tests.unit.control.usage.stories import HOUR_S, Story

TRAIN = RunSpec(image="train", command=("python", "train.py"))
PRICES = Prices(currency="EUR", gpu_hour={"H100": 3.0, "A100": 1.0})
UNMEASURED = Measured(0, 0.0, {})


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Sqlite(tmp_path)
    prepare(found)
    yield found
    found.close()


def story(
    name: str, gpus: int, *, run: RunSpec = TRAIN, labels: dict[str, str] | None = None
) -> Story:
    found = Story(name, gpus=gpus, models=(), labels=labels)
    found.request = replace(found.request, run=run)
    return found


def ended(found: Story) -> EndedJob:
    catalogue = Catalogue()
    for cluster, model in (("c1", "H100"), ("c2", "A100")):
        catalogue.take(node(cluster, "n1", model=model))
    job = of_story(found.tenant, found.id, found.events, catalogue, "owner")
    assert job is not None
    return job


def ran(name: str, gpus: int, hours: float, cluster: str = "c1", wait_s: float = 0.0) -> EndedJob:
    found = story(name, gpus).submitted(0.0).placed(wait_s, cluster).claimed(wait_s)
    return ended(found.running(wait_s).succeeded(wait_s + hours * HOUR_S))


def asked(
    database: Database,
    name: str,
    *,
    prices: Prices | None = PRICES,
    use: Measured = UNMEASURED,
    slices: tuple[Slice, ...] = (),
) -> Suggestions:
    own, like = reading.own(database, "acme", name), reading.likeness(database, "acme", name)
    assert own is not None
    assert like is not None
    by, rans = reading.rans(database, "acme", like, own.form.tags)
    return suggestions("acme", name, own, by, rans, use, slices, prices)


def test_suggestions_compare_time_wait_and_cost_of_each_configuration(database: Database) -> None:
    jobs = [ran(f"wide-{n}", 8, 2.0, wait_s=600.0) for n in range(5)]
    jobs += [ran(f"narrow-{n}", 4, 3.0, wait_s=60.0) for n in range(3)]
    jobs += [ran(f"old-{n}", 8, 4.0, "c2") for n in range(3)]
    failed = story("broken", 4).submitted(0.0).placed(60.0).claimed(60.0).running(60.0).failed(99.0)
    other = story("other", 1, run=RunSpec(image="other")).ran(0.0, 60.0)
    Writer(database).write(Batch(jobs=[*jobs, ended(failed), ended(other)]))

    reply = asked(database, "wide-0")
    assert (reply.by, reply.currency, reply.notes) == ("program", "EUR", ())
    seen = [
        (one.layout, one.model, one.own, one.changes, one.jobs, one.failed, one.cost, one.best)
        for one in reply.configurations
    ]
    assert seen == [
        ("1x8", "H100", True, (), 5, 0, 48.0, ("time",)),
        ("1x8", "A100", False, ("other_model",), 3, 0, 32.0, ("cost", "start")),
        ("1x4", "H100", False, ("fewer_gpus",), 3, 1, 36.0, ()),
    ]
    narrow = reply.configurations[2]
    assert narrow.ran_s == pytest.approx(3 * HOUR_S, rel=0.01)
    assert narrow.wait_s == pytest.approx(60.0, rel=0.01)
    assert narrow.gpu_h == 12.0


def test_suggestions_fall_back_to_labels_where_the_program_differs(database: Database) -> None:
    jobs = []
    for number in range(4):  # the number of GPUs is an argument of each
        found = story(
            f"a-{number}",
            1 + number % 2,
            run=RunSpec(image="train", args=(str(number),)),
            labels={"model": "bert"},
        )
        jobs.append(ended(found.ran(0.0, 60.0)))
    Writer(database).write(Batch(jobs=jobs))
    reply = asked(database, "a-0", prices=None)
    assert reply.by == "labels"
    assert [(one.layout, one.jobs, one.cost) for one in reply.configurations] == [
        ("1x1", 2, None),
        ("1x2", 2, None),
    ]
    assert reply.notes == ("no prices are set: cost is compared by GPU hours",)


def test_suggestions_of_a_lone_job_have_its_own_configuration_alone(database: Database) -> None:
    Writer(database).write(Batch(jobs=[ran("lone", 2, 1.0)]))
    reply = asked(database, "lone")
    assert [(one.layout, one.own) for one in reply.configurations] == [("1x2", True)]
    assert reply.notes == ("no job like this one has ended in another configuration",)
    assert reading.own(database, "acme", "never") is None


def sketch(value: float) -> Sketch:
    found = Sketch()
    found.add(value, 600)
    return found


def test_suggestions_name_a_slice_that_the_measured_use_fits_into(database: Database) -> None:
    Writer(database).write(Batch(jobs=[ran(f"small-{n}", 1, 2.0) for n in range(3)]))
    slices = (
        Slice("H100", "1g.10gb", 142, 10_240, 81_920),
        Slice("H100", "2g.20gb", 285, 20_480, 81_920),
        Slice("A100", "2g.10gb", 285, 10_240, 40_960),
    )
    use = {"gpu_utilization_percent": sketch(20.0), "gpu_memory_max_percent": sketch(8.0)}
    reply = asked(database, "small-0", use=Measured(3, 1800.0, use), slices=slices)
    (own, small) = reply.configurations
    assert own.layout == "1x1"
    assert small == Configuration(
        layout="1x2g.20gb",
        model="H100",
        gpus=0.285,
        changes=("smaller_slice",),
        by="profile",
        jobs=3,
        ran_low_s=own.ran_low_s,
        ran_s=own.ran_s,
        ran_high_s=own.ran_high_s,
        gpu_h=0.57,
        cost=1.71,
    )
    for unfit in (
        Measured(3, 1800.0, use | {"gpu_utilization_percent": sketch(60.0)}),
        Measured(3, 1800.0, use | {"gpu_memory_max_percent": sketch(40.0)}),
        Measured(1, 30.0, use),  # too short
    ):
        assert asked(database, "small-0", use=unfit, slices=slices).configurations == (own,)


def test_layout_of_pod_sets_names_pods_and_what_each_gets() -> None:
    request = Story("a").request
    sets = (
        PodSet(name="a", count=2, gpus=4),
        PodSet(name="b", gpus=1, gpu_milli=500),
        PodSet(name="c", gpus=1, gpu_milli=142, mig_profile="1g.10gb"),
        PodSet(name="d", tpus=4),
        PodSet(name="e"),
    )
    request = replace(request, pod_sets=sets)
    assert form_of("acme", request).layout == "2x4+1x0.5+1x1g.10gb+1x4 TPU+1x0"
