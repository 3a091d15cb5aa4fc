"""Count the modules that four walks through the pure cores enter, and the floors of each package.

    python -m scripts.walks          two tables, then the modules of each walk in order of entry
    python -m scripts.walks --json   {"walks": {name: [path, …]}, "floors": {package: number}}

A walk enters a module when a function of the module runs, called from a core directly or not. An
import alone does not count. Each walk runs in a process of its own, because a cache that another
walk filled would hide modules. The floors of a package are the modules on its longest chain of
imports, where modules that import each other in a circle count as one.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Final, NamedTuple

import grimp

from berthmaster.control.door.core.bounds import Limits as DoorLimits
from berthmaster.control.door.core.door import Door, reported
from berthmaster.control.resolver.core.deciding.cycle import Cycle
from berthmaster.lib.kube.mirror import Added, Listed
from berthmaster.lib.lifecycle.instructions import Answered, Append, Stored
from berthmaster.lib.messages.door import ReportedFact, ReportRequest
from berthmaster.lib.messages.families import FLEET_FACTS, encode
from berthmaster.lib.messages.fleet import NodeReport
from berthmaster.lib.messages.placement import PodBinding
from berthmaster.lib.messages.workload import JobRequest, Placed, PodSet, RunSpec
from berthmaster.lib.nats import subjects
from berthmaster.worker.executor.core.affinity import Offers
from berthmaster.worker.executor.core.cluster_protocol import CreatePods
from berthmaster.worker.executor.core.events import HintSeen
from berthmaster.worker.executor.core.executor import Executor
from berthmaster.worker.executor.core.manifest import Style, document
from berthmaster.worker.inventory.core.inventory import Inventory
from berthmaster.worker.inventory.core.kinds import WatchedKind
from tests.support import deciding
from tests.support.builders import alive, node
from tests.unit.control.gateway import stories
from tests.unit.control.scorer.builders import Story
from tests.unit.hub.multikueue import world as hub
from tests.unit.worker.inventory import objects

PACKAGE: Final = "berthmaster"
MOST_FLOORS: Final = 10
REQUEST: Final = JobRequest(id="train", pod_sets=(PodSet(gpus=1),), run=RunSpec(image="train:1"))
_MODULE: Final = "<module>"  # the name of the code that an import runs


class Trace:
    """The modules that were entered, in order of first entry."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self._inside = 0  # depth of calls since a core was entered
        self._importing = 0  # depth of calls since an import began

    @contextmanager
    def on(self) -> Iterator[None]:
        """Record while the block runs."""
        sys.setprofile(self._record)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _record(self, frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            module: str = frame.f_globals.get("__name__", "")
            if self._importing or frame.f_code.co_name == _MODULE:
                self._importing += 1
            elif self._inside or ".core." in module:
                self._inside += 1
                if module.startswith(f"{PACKAGE}."):
                    self.modules.setdefault(module)
        elif event == "return":
            if self._importing:
                self._importing -= 1
            elif self._inside:
                self._inside -= 1


def submit_to_decision(trace: Trace) -> None:
    """The gateway takes a request, the resolver decides it."""
    gateway, world = stories.fresh(), deciding.World()
    for name in ("c1", "c2"):
        world.fact(alive(name), node(name, "n1"), node(name, "n2"))
    with trace.on():
        asked = stories.ask("submit", REQUEST, tenant=deciding.TENANT)
        (append,) = gateway.handle(asked, world.now_s)
        assert isinstance(append, Append)
        sequence = world.append(append.event)
        gateway.handle(Answered(ref=append.ref, outcome=Stored(sequence)), world.now_s)
        assert deciding.placements(world.resolver.decide(world.now_s))


def node_to_ranking(trace: Trace) -> None:
    """The inventory reports a node, door and scorer take the fact, the resolver ranks."""
    inventory, door = Inventory("east"), Door(DoorLimits())
    scorer, world = Story(), deciding.World()
    scorer.fact(alive("east"))
    world.fact(alive("east"), alive("west"), node("west", "n1"))
    with trace.on():
        offered = {"nvidia.com/gpu": "4"}
        found = objects.node("n1", offered, labels=objects.discovered())
        for change in (Added(found), Listed("1")):
            inventory.take(WatchedKind.NODES, change)
        told = inventory.fact(subjects.node("east", "n1"), objects.STAMP, world.now_s)
        assert told is not None
        assert isinstance(told[0], NodeReport)
        reports = reported(encode(ReportRequest(facts=(ReportedFact(fact=told[0]),))))
        assert isinstance(reports, Sequence)
        assert isinstance(reports[0], ReportedFact)
        admitted = door.admit("east", reports[0], world.now_s)
        assert isinstance(admitted, tuple)
        stored = FLEET_FACTS.decode(admitted[1])
        assert isinstance(stored, NodeReport)
        (score,) = scorer.fact(stored)
        world.fact(stored, score)
        shortlist = Cycle(world.resolver.know, world.policy, world.now_s).shortlist(REQUEST)
        ranking = shortlist.ranking(next(iter(shortlist.candidates)))
    assert {each.cluster for each in ranking} == {"east", "west"}


def placement_to_job(trace: Trace) -> None:
    """The executor claims a placement and makes its Job's manifest."""
    executor = Executor("c1")
    pods = (PodBinding(pod="main-0", node="n1", gpus=(0,)),)
    offers = Offers()
    offers.take(node())
    placed = Placed(
        tenant="acme",
        id=REQUEST.id,
        after=4,
        at_s=0.0,
        by="resolver",
        cluster="c1",
        attempt=1,
        pods=pods,
        request=REQUEST,
        decision=1,
        submitted_at_s=0.0,
    )
    with trace.on():
        (claim,) = executor.handle(HintSeen(1, placed, 5), 100.0)
        assert isinstance(claim, Append)
        answers = executor.handle(Answered(ref=claim.ref, outcome=Stored(6)), 101.0)
        (order,) = (each for each in answers if isinstance(each, CreatePods))
        manifest = document(order, None, offers, Style())
    assert manifest["kind"] == "Job"


def workload_to_nomination(trace: Trace) -> None:
    """A hub's reconciler decides a Workload and nominates one of three clusters for it."""
    world = hub.World()
    world.all_workers()
    world.begin()
    world.settle()
    with trace.on():
        world.submit()
        world.reserve()
        while not world.nominated():
            world.now_s += 0.001
            world.step()


class Walk(NamedTuple):
    run: Callable[[Trace], None]
    aim: int  # modules at most


WALKS: Final[Mapping[str, Walk]] = {
    "submit to decision": Walk(submit_to_decision, 55),
    "node fact to ranking": Walk(node_to_ranking, 50),
    "placement to Job": Walk(placement_to_job, 20),
    "hub Workload to nomination": Walk(workload_to_nomination, 60),
}


def modules_of(name: str) -> list[str]:
    """Return the paths of the modules that a walk enters, from the package's folder on."""
    trace = Trace()
    WALKS[name].run(trace)
    return [_path(module) for module in trace.modules]


def _path(module: str) -> str:
    names = module.split(".")[1:]
    file = getattr(sys.modules[module], "__file__", None) or ""
    end = "/__init__.py" if Path(file).name == "__init__.py" else ".py"
    return "/".join(names) + end


def walked() -> dict[str, list[str]]:
    """Return the modules of each walk, by its name."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])  # one import for all walks
    found = {}
    for name in WALKS:
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            found[name] = pool.submit(modules_of, name).result()
    return found


def floors() -> dict[str, int]:
    """Return the number of floors of each package of the second level, the highest first."""
    graph = grimp.build_graph(PACKAGE)
    packages = {
        package
        for side in graph.find_children(PACKAGE)
        for package in graph.find_children(side)
        if graph.find_children(package)
    }
    packages.add(f"{PACKAGE}.client")  # has modules on its second level
    found = {}
    for package in packages:
        own = {package} | graph.find_descendants(package)
        imports = {one: graph.find_modules_directly_imported_by(one) & own for one in own}
        found[package.removeprefix(f"{PACKAGE}.").replace(".", "/")] = longest_chain(imports)
    return dict(sorted(found.items(), key=lambda each: (-each[1], each[0])))


def longest_chain(imports: Mapping[str, set[str]]) -> int:
    """Return the number of modules on the longest chain; circles count as one module."""
    reached = {one: _reach(one, imports) for one in imports}
    floor: dict[str, int] = {}
    for one in sorted(imports, key=lambda each: len(reached[each])):  # imported modules first
        below = {each for each in reached[one] if one not in reached[each]}
        floor[one] = 1 + max((floor[each] for each in below), default=0)
    return max(floor.values())


def _reach(start: str, imports: Mapping[str, set[str]]) -> set[str]:
    found, left = {start}, [start]
    while left:
        new = imports[left.pop()] - found
        found |= new
        left += new
    return found


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.walks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="print one JSON object, no tables")
    as_json = parser.parse_args().json
    walks, heights = walked(), floors()
    if as_json:
        print(json.dumps({"walks": walks, "floors": heights}))
        return
    print(f"{'walk':<28}{'modules':>8}{'aim':>6}")
    for name, modules in walks.items():
        print(f"{name:<28}{len(modules):>8}{WALKS[name].aim:>6}")
    print(f"\n{'package':<28}{'floors':>8}{'aim':>6}")
    for package, number in heights.items():
        print(f"{package:<28}{number:>8}{MOST_FLOORS:>6}")
    for name, modules in walks.items():
        print("", name, *(f"  {module}" for module in modules), sep="\n")


if __name__ == "__main__":
    main()
