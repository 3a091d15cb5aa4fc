"""What is looked at when: at once, in its time, when the fleet moves, or in turn."""

from berthmaster.lib.kube.controller.work_queue import IN_TURN, WorkQueue
from berthmaster.lib.lifecycle.workload import Key, key

NAMES = [key("acme", f"job-{number}") for number in range(2 * IN_TURN)]


def test_sweep_takes_waiting_workloads_in_turn() -> None:
    work = WorkQueue()
    for name in NAMES:
        work.add_in_turn(name, 100.0)
    work.add_on_fleet(key("acme", "urgent"), 100.0)
    looked: list[list[Key]] = []
    for second in range(2):
        work.fleet_moved = True
        assert work.sweep(float(second))
        taken = work.take(float(second))
        looked.append(taken)
        for name in taken:
            work.settled(name)
            work.add_in_turn(name, 100.0)
    assert looked[0] == ["acme/urgent", *NAMES[:IN_TURN]]
    assert looked[1] == NAMES[IN_TURN:]


def test_workload_in_turn_is_due_at_its_time() -> None:
    work = WorkQueue()
    work.add_in_turn(NAMES[0], 5.0)
    assert work.wake_at_s() == 5.0
    assert work.take(4.9) == []
    assert work.take(5.0) == [NAMES[0]]


def test_forgotten_workload_is_not_swept() -> None:
    work = WorkQueue()
    work.add_in_turn(NAMES[0], 5.0)
    work.forget(NAMES[0])
    work.fleet_moved = True
    work.sweep(0.0)
    assert work.take(10.0) == []
