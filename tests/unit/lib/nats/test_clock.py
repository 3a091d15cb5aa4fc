"""The server's clock as it is kept here; both clocks of this machine are the test's."""

from berthmaster.lib.nats.clock import ServerClock


class Clocks:
    """A wall clock that may be wrong, and a monotonic one."""

    def __init__(self, wall_s: float = 5000.0) -> None:
        self.wall_s = wall_s
        self.monotonic_s = 100.0
        self.server = ServerClock(lambda: self.wall_s, lambda: self.monotonic_s)

    def pass_(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds

    def observe(self, server_s: float, took_s: float = 0.01) -> None:
        sent_s = self.monotonic_s
        self.pass_(took_s)
        self.server.observe(sent_s, self.monotonic_s, server_s)


def test_the_local_clock_serves_until_the_server_was_asked() -> None:
    clocks = Clocks(wall_s=5000.0)
    assert (clocks.server.known, clocks.server.now()) == (False, 5000.0)
    clocks.observe(9000.0)
    assert (clocks.server.known, round(clocks.server.now(), 3)) == (True, 9000.005)


def test_somebody_who_sets_the_local_clock_changes_nothing() -> None:
    clocks = Clocks()
    clocks.observe(9000.0)
    clocks.wall_s -= 3600
    clocks.pass_(10)
    assert round(clocks.server.now(), 3) == 9010.005


def test_a_slow_answer_does_not_spoil_what_a_quick_one_told() -> None:
    clocks = Clocks()
    clocks.observe(9000.0, took_s=0.01)
    clocks.observe(9000.05, took_s=1.0)  # it says nothing better: within its doubt
    assert round(clocks.server.now(), 3) == 9001.005
    clocks.observe(9001.009, took_s=0.002)  # quicker, so it is believed
    assert round(clocks.server.now(), 3) == 9001.010


def test_after_hours_of_drift_a_less_quick_answer_is_good_enough() -> None:
    clocks = Clocks()
    clocks.observe(9000.0, took_s=0.01)
    clocks.pass_(3600)  # the doubt has grown to a third of a second meanwhile
    clocks.observe(12600.1, took_s=0.2)
    assert round(clocks.server.now(), 3) == 12600.2


def test_a_server_that_steps_is_followed_though_its_answer_was_slow() -> None:
    clocks = Clocks()
    clocks.observe(9000.0, took_s=0.01)
    clocks.observe(9600.0, took_s=1.0)  # another leader, ten minutes ahead
    assert round(clocks.server.now(), 3) == 9600.5


def test_small_corrections_never_turn_time_back_and_large_ones_do() -> None:
    clocks = Clocks()
    clocks.observe(9000.0, took_s=0.4)
    shown = clocks.server.now()
    clocks.observe(9000.1, took_s=0.01)  # we were 0.1 s ahead
    assert clocks.server.now() == shown
    clocks.pass_(0.2)
    assert round(clocks.server.now(), 3) == 9000.305
    clocks.observe(8000.0, took_s=0.01)  # a step: following it beats being wrong for an hour
    assert round(clocks.server.now(), 3) == 8000.005
