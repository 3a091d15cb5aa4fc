from berthmaster.lib.runtime.health import Health


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_service_is_ready_when_each_part_it_named_is_in_order() -> None:
    health = Health(clock=Clock())
    assert health.readiness() == (
        False,
        {"ready": False, "why": "no part has reported yet", "parts": {}},
    )

    health.ready("mirror", False, "snapshot at 40 %")
    health.ready("bus", True)
    parts = {"bus": {"ok": True, "why": ""}, "mirror": {"ok": False, "why": "snapshot at 40 %"}}
    unready = {"ready": False, "why": "not ready: mirror", "parts": parts}
    assert health.readiness() == (False, unready)

    health.ready("mirror", True, "snapshot at 40 %")  # a reason is for what is amiss
    parts["mirror"] = {"ok": True, "why": ""}
    assert health.readiness() == (True, {"ready": True, "why": "", "parts": parts})

    health.ready("mirror", True, "snapshot at 40 %", note="two of three sources")
    parts["mirror"] = {"ok": True, "why": "two of three sources"}
    assert health.readiness() == (True, {"ready": True, "why": "", "parts": parts})

    health.stop()
    ok, shown = health.readiness()
    assert (ok, shown["why"]) == (False, "stopping")


def test_a_loop_that_is_silent_for_the_limit_is_not_alive_until_it_turns_again() -> None:
    clock = Clock()
    health = Health(clock=clock)
    health.ready("bus", True)
    clock.now_s += 9.9
    assert health.alive() == (True, {"alive": True, "loop_silent_s": 9.9})

    clock.now_s += 0.2
    assert health.alive() == (False, {"alive": False, "loop_silent_s": 10.1})
    assert health.readiness()[1]["why"] == "event loop is stuck"

    health.beat()
    assert health.alive()[0]
    assert health.readiness()[0]
