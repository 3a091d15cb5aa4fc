"""The queues' accounts are the same in whatever order the facts and placements were told."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.lib.engine.queueing.ledger import Ledger
from berthmaster.lib.lifecycle.workload import key
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, Part
from tests.support.builders import job, node, pod_set

REQUEST = job(
    "gang",
    queue="q",
    pod_sets=(
        pod_set(name="w", count=2, gpus=2, cpu_milli=4000, memory_mib=100),
        pod_set(name="boss", gpus=0, cpu_milli=1000, memory_mib=50),
    ),
)
PODS = (
    PodBinding(pod="w-0", node="n1", gpus=(0, 1)),
    PodBinding(pod="w-1", node="n2", gpus=(2, 3)),
    PodBinding(pod="boss-0", node="n2"),
)
NAME = key("team", "gang")


class Told:
    """A ledger and the reports that it is told."""

    def __init__(self) -> None:
        self.reports: dict[tuple[str, str], NodeReport] = {}
        self.ledger = Ledger(lambda cluster, name: self.reports.get((cluster, name)))

    def tell(self, report: NodeReport) -> bool:
        before = self.reports.get((report.cluster, report.node))
        self.reports[report.cluster, report.node] = report
        return self.ledger.node_changed(before, report)

    def lose(self, name: str) -> bool:
        before = self.reports.pop(("c1", name))
        return self.ledger.node_changed(before, None)


def test_a_placement_is_charged_by_what_its_nodes_turn_out_to_have() -> None:
    told = Told()
    told.ledger.hold(NAME, REQUEST, "c1", PODS)
    asked = {"cpu": 9000, "memory": 250, "gpu": 4000}
    assert told.ledger.used("q") == asked | {"gpu/": 4000}
    assert told.tell(node(name="n1", model="T4"))
    assert told.tell(node(name="n2", model="H100"))
    now = {k: v for k, v in told.ledger.used("q").items() if v}
    assert now == asked | {"gpu/T4": 2000, "gpu/H100": 2000}
    assert not told.tell(node(name="n2", model="H100", cpu_milli=1000))  # as before, for queues
    assert told.ledger.totals(frozenset({"c1"})) == {
        "cpu": 97_000,
        "memory": 2 * 786_432,
        "gpu/T4": 8000,
        "gpu/H100": 8000,
    }

    assert told.lose("n1")
    assert told.ledger.used("q")["gpu/"] == 2000
    assert told.ledger.gpu_milli_of("c1") == 8000
    told.ledger.release(NAME)
    assert told.ledger.used("q") == {}
    assert told.ledger.running == {}
    assert told.ledger.totals(frozenset()) == {}


def test_the_parts_of_a_divided_job_are_charged_each_and_are_one_job_with_it() -> None:
    ledger = Ledger(lambda cluster, name: None)
    ledger.regroup({"q": ("top",)})
    asked = job("train", queue="q", count=3)
    train, parts = key("t", "train"), [key("t", f"train--1-{at}") for at in range(2)]

    def part(number: int, attempt: int = 1) -> JobRequest:
        of = Part(job="train", attempt=attempt, number=number, clusters=("c1", "c2"), pods=(1, 2))
        return job(f"train--{attempt}-{number}", queue="q", count=of.pods[number], part=of)

    def stands() -> tuple[int, int, int]:
        running = ledger.running["q"], ledger.running_together("top")
        return *running, ledger.used_together("top").get("gpu", 0)

    ledger.divide(train, asked)
    assert stands() == (1, 1, 0)
    for number, name in enumerate(parts):
        ledger.hold(name, part(number), "c1", ())
        ledger.hold(name, part(number), "c1", ())  # its pods are elsewhere
    assert stands() == (1, 1, 3000)
    ledger.regroup({"q": ("top", "above")})
    assert (stands(), ledger.running_together("above")) == ((1, 1, 3000), 1)
    ledger.hold(key("u", "train"), asked, "c1", ())  # another tenant's job of that name
    assert stands() == (2, 2, 6000)
    ledger.release(key("u", "train"))
    ledger.release(parts[0])
    assert stands() == (1, 1, 2000)
    ledger.release(train)  # of a part that was left behind it is still one
    assert stands() == (1, 1, 2000)
    ledger.hold(train, asked, "c1", ())
    assert stands() == (1, 1, 5000)
    ledger.release(parts[1])
    ledger.release(train)
    assert (stands(), list(ledger.queues())) == ((0, 0, 0), [])


def test_a_part_by_memory_is_charged_as_what_it_is_of_the_gpu_that_it_got() -> None:
    reports = {("c1", "n1"): node(gpus=1), ("c1", "n2"): node(name="n2", gpus=1, memory_mib=81_920)}
    ledger = Ledger(lambda cluster, name: reports.get((cluster, name)))
    for count in (1, 2):
        pods = tuple(
            PodBinding(pod=f"main-{at}", node=f"n{at + 1}", gpus=(0,)) for at in range(count)
        )
        request = job("a", gpu_milli=1, gpu_memory_mib=8192, count=count)
        ledger.hold(key("t", "a"), request, "c1", pods)
        used = ledger.used("default")
        assert used["gpu"] == used["gpu/T4"] == 500 + 100 * (count - 1)
    # Until its node is heard of, it is the most that it could be.
    unheard = Ledger(lambda cluster, name: None)
    one = job("a", gpu_milli=1, gpu_memory_mib=8192)
    unheard.hold(key("t", "a"), one, "c1", (PodBinding(pod="main-0", node="n1", gpus=(0,)),))
    assert unheard.used("default")["gpu"] == 1000


def test_only_healthy_gpus_are_there_to_be_shared() -> None:
    told = Told()
    told.tell(node(gpus=4, unhealthy=(1, 2)))
    assert told.ledger.gpu_milli_of("c1") == 2000
    told.tell(node(gpus=4))
    assert told.ledger.gpu_milli_of("c1") == 4000
    assert told.ledger.gpu_milli_of("never heard of") == 0


def test_models_and_cpu_a_gpu_are_those_of_the_nodes_there_are() -> None:
    told = Told()
    assert (told.ledger.models(), told.ledger.cpu_a_gpu()) == ((), math.inf)
    told.tell(node(name="n1", model="T4", gpus=4, cpu_milli=32_000))
    assert (told.ledger.models(), told.ledger.cpu_a_gpu()) == (("T4",), 8000.0)
    told.tell(node("c2", name="n2", model="H100", gpus=2, unhealthy=(0,), cpu_milli=8000))
    assert (told.ledger.models(), told.ledger.cpu_a_gpu()) == (("H100", "T4"), 8000.0)
    assert (told.ledger.models(), told.ledger.cpu_a_gpu()) == (("H100", "T4"), 8000.0)
    told.lose("n1")
    assert (told.ledger.models(), told.ledger.cpu_a_gpu()) == (("H100",), 8000.0)


def test_pods_that_the_request_does_not_know_are_charged_to_no_model() -> None:
    ledger = Ledger(node)
    odd = (*PODS, PodBinding(pod="stranger-0", node="n1", gpus=(4,)))
    ledger.hold(NAME, REQUEST, "c1", odd)
    assert ledger.used("q") == {"cpu": 9000, "memory": 250, "gpu": 4000, "gpu/T4": 4000}
    boss = (PodBinding(pod="boss-0", node="n3"),)  # has no GPU of the node's
    ledger.hold(NAME, REQUEST, "c1", boss)
    assert ledger.used("q") == {"cpu": 9000, "memory": 250, "gpu": 4000}


STEPS = [("hold", "a"), ("hold", "b"), ("n1", "T4"), ("n2", "H100")]


@settings(max_examples=100, deadline=None)
@given(
    order=st.permutations(STEPS),
    twice=st.lists(st.sampled_from(STEPS), max_size=3),
    detour=st.sampled_from(["T4", "V100"]),
)
def test_whatever_was_told_first_the_accounts_are_the_same(
    order: list[tuple[str, str]], twice: list[tuple[str, str]], detour: str
) -> None:
    told = Told()
    told.tell(node(name="n1", model=detour))
    for what, which in [*order, *twice, *[step for step in STEPS if step[0] != "hold"]]:
        if what == "hold":
            told.ledger.hold(key("team", which), REQUEST, "c1", PODS)
        else:
            told.tell(node(name=what, model=which))
    plain = Told()
    for name, model in (("n1", "T4"), ("n2", "H100")):
        plain.tell(node(name=name, model=model))
    for name in "ab":
        plain.ledger.hold(key("team", name), REQUEST, "c1", PODS)
    found = {name: amount for name, amount in told.ledger.used("q").items() if amount}
    assert found == plain.ledger.used("q")
    assert told.ledger.running == plain.ledger.running
    clusters = frozenset({"c1"})
    totals = {n: amount for n, amount in told.ledger.totals(clusters).items() if amount}
    assert totals == plain.ledger.totals(clusters)
