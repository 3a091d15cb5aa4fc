"""Pressure counts among clusters as it does among nodes."""

from berthmaster.lib.engine.scoring.pod_mix import FIRST_SAMPLE
from berthmaster.lib.messages.workload import JobRequest
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import World


def asks(number: int, *models: str) -> JobRequest:
    return job(f"j{number}", gpus=1, cpu_milli=500, gpu_models=models)


def place(world: World, request: JobRequest) -> str:
    name = world.submit(request)
    world.settle()
    world.claim(name)
    [choice] = world.decisions[-1][1].placements
    return choice.cluster


def test_who_could_go_elsewhere_leaves_a_cluster_whose_model_others_cannot_do_without() -> None:
    world = World()
    world.fact(profile("a-t4"), alive("a-t4"), profile("b-v100"), alive("b-v100"))
    for number in range(40):  # of one GPU: there are no blocks to keep together
        world.fact(node("a-t4", f"n{number:02}", gpus=1, model="T4"))
        world.fact(node("b-v100", f"n{number:02}", gpus=1, model="V100"))
    # While nothing is learned, all that is equal goes to the first by name.
    assert place(world, asks(0)) == "a-t4"
    for number in range(1, FIRST_SAMPLE):
        place(world, asks(number, *(("T4",) if number % 2 else ())))
    # Then those who accept any leave T4 to those who must have it …
    went = [place(world, asks(100 + at)) for at in range(6)]
    assert went == ["b-v100"] * 6
    fit = {c.cluster: c.parts["fit"] for c in world.decisions[-1][1].placements[0].ranking}
    assert fit["a-t4"] < fit["b-v100"]
    assert place(world, asks(200, "T4")) == "a-t4"
    # … until V100 is nearly as scarce.
    fleet = world.resolver.know.fleet
    for at in range(40):
        if place(world, asks(300 + at)) == "a-t4":
            break
    t4, v100 = fleet.arrays.free_milli.tolist()
    assert v100 < t4 + 1000
    assert v100 <= 12_000
