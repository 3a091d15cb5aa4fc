"""How a cluster leaves: one held breath, and what ends it."""

from berthmaster.hub.admission.core.leaving import Leaving


def test_an_empty_cluster_may_go_when_the_breath_is_over() -> None:
    leaving = Leaving(3.0)
    assert leaving.look("gpus", ["a"], 10.0) == frozenset()
    assert leaving.holds("gpus")
    assert leaving.next_due_s(10.0) == 13.0
    assert leaving.look("gpus", ["a"], 12.9) == frozenset()
    assert leaving.look("gpus", ["a"], 13.0) == {"a"}
    leaving.end("gpus", 13.1, in_vain=False)
    assert not leaving.holds("gpus")
    assert leaving.look("gpus", ["b"], 13.2) == frozenset()
    assert leaving.holds("gpus"), "the next one begins at once"


def test_what_shows_up_ends_the_breath_and_a_pause_follows() -> None:
    leaving = Leaving(3.0)
    leaving.look("gpus", ["a"], 10.0)
    assert leaving.look("gpus", [], 11.0) == frozenset()
    assert not leaving.holds("gpus")
    assert leaving.look("gpus", ["a"], 12.0) == frozenset()
    assert not leaving.holds("gpus"), "not again and again"
    assert leaving.next_due_s(12.0) == 23.0
    leaving.look("gpus", ["a"], 23.0)
    assert leaving.holds("gpus")


def test_one_of_two_that_is_used_again_stays_and_the_other_goes() -> None:
    leaving = Leaving(3.0)
    leaving.look("gpus", ["a", "b"], 10.0)
    leaving.look("gpus", ["b"], 11.0)
    assert leaving.look("gpus", ["a", "b", "c"], 13.0) == {"b"}, "a and c were not empty throughout"


def test_configurations_breathe_apart() -> None:
    leaving = Leaving(3.0)
    leaving.look("one", ["a"], 10.0)
    assert not leaving.holds("two")
    assert leaving.look("two", ["a"], 20.0) == frozenset()
    assert leaving.look("one", ["a"], 20.0) == {"a"}


def test_whoever_does_not_know_all_lets_nobody_go() -> None:
    leaving = Leaving(3.0)
    leaving.look("gpus", ["a"], 10.0)
    leaving.forget()
    assert not leaving.holds("gpus")
    assert leaving.look("gpus", ["a"], 20.0) == frozenset(), "it begins anew"
    assert leaving.next_due_s(20.0) == 23.0
