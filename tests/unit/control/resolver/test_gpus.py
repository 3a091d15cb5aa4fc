"""Which GPUs there are: what a tenant is told of them, and what not."""

from msgspec.structs import replace

from berthmaster.lib.engine.fleetview.components import PRICE
from berthmaster.lib.messages.api import GpusReply, GpusRequest, GpuStock, Refusal
from berthmaster.lib.messages.control import Cordon, QueueAllows, QueueSetting
from berthmaster.lib.messages.families import encode
from tests.support.builders import alive, job, node, profile
from tests.support.deciding import TENANT, World


def world() -> World:
    """Two clusters with T4s, one of them with H100s besides, and one that is cordoned."""
    made = World()
    made.fact(
        profile("a", labels={PRICE: "0.5", f"{PRICE}.H100": "4"}), alive("a"),
        profile("b", labels={PRICE: "0.75"}), alive("b"),
        profile("shut"), alive("shut"),
        node("a", "a1", gpus=4, model="Tesla-T4", memory_mib=16_384),
        node("a", "a2", gpus=8, model="NVIDIA-H100-80GB-HBM3", memory_mib=81_920),
        node("b", "b1", gpus=2, model="Tesla-T4", memory_mib=15_360),
        node("shut", "s1", gpus=2, model="Tesla-T4", memory_mib=16_384),
    )  # fmt: skip
    made.control(Cordon(cluster="shut", node=None, cordoned=True))
    return made


def asked(world: World, **fields: object) -> GpusReply | Refusal:
    steps = world.gpus(TENANT, GpusRequest(**fields), world.now_s)  # type: ignore[arg-type]
    while True:
        try:
            next(steps)
        except StopIteration as done:
            reply: GpusReply | Refusal = done.value
            return reply


def told(world: World, **fields: object) -> dict[str, GpuStock]:
    reply = asked(world, **fields)
    assert isinstance(reply, GpusReply)
    return {one.model: one for one in reply.models}


def test_what_is_free_of_each_model_at_what_price_and_nothing_of_nodes() -> None:
    fleet = world()
    h100 = GpuStock(
        model="NVIDIA-H100-80GB-HBM3",
        memory_mib=81_920,
        clusters=1,
        gpus=8,
        open_gpus=8,
        free_gpu_milli=8000,
        free_gpus=8,
        most_on_a_node=8,
        expected_wait_s=0.0,
        price_least=4.0,
        price_most=4.0,
    )
    t4 = GpuStock(
        model="Tesla-T4",
        memory_mib=15_360,
        clusters=3,
        gpus=8,
        open_gpus=6,
        free_gpu_milli=6000,
        free_gpus=6,
        most_on_a_node=4,
        expected_wait_s=0.0,
        price_least=0.5,
        price_most=0.75,
    )
    reply = asked(fleet)
    assert reply == GpusReply(models=(h100, t4))
    body = encode(reply).decode()
    assert not [name for name in ("a1", "a2", "b1", "s1", "shut") if f'"{name}"' in body]
    assert told(fleet, gpus=8)["Tesla-T4"].expected_wait_s is None  # no node has so many


def test_a_wait_is_until_a_job_that_said_when_it_ends() -> None:
    fleet = world()
    for number in range(2):
        request = job(f"j{number}", gpus=8 - 4 * number, gpu_models=("H100", "T4")[number:][:1])
        name = fleet.submit(replace(request, expected_duration_s=600.0 * (number + 1)))
        fleet.settle()
        fleet.claim(name)
        fleet.run(name)
    fleet.submit(job("more", gpus=8, gpu_models=("H100",)))
    reply = asked(fleet, gpus=4)
    assert isinstance(reply, GpusReply)
    assert reply.waiting == 1
    found = {one.model: one for one in reply.models}
    waits = {name: round((one.expected_wait_s or 0) / 60) for name, one in found.items()}
    assert waits == {"Tesla-T4": 20, "NVIDIA-H100-80GB-HBM3": 10}
    assert found["NVIDIA-H100-80GB-HBM3"].free_gpus == 0
    assert told(fleet)["Tesla-T4"].expected_wait_s == 0.0  # b still has some for who wants one


def test_of_a_queue_only_what_it_may_have() -> None:
    fleet = world()
    fleet.control(QueueSetting(queue="t4s", allows=QueueAllows(gpu_models=("T4",))))
    fleet.control(QueueSetting(queue="theirs", tenants=("others",)))
    found = told(fleet, queue="t4s")
    assert found["Tesla-T4"].expected_wait_s == 0.0
    assert found["NVIDIA-H100-80GB-HBM3"].expected_wait_s is None
    assert found["NVIDIA-H100-80GB-HBM3"].why_not == "the queue 't4s' allows: T4"
    refused = asked(fleet, queue="theirs")
    assert isinstance(refused, Refusal)
    assert refused.field == "queue"
