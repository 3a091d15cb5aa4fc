from berthmaster.lib.nats.reporting import Coalescer


def test_the_first_change_of_a_node_goes_out_at_once_and_the_next_ones_together() -> None:
    reports = Coalescer(0.2, 1000)
    reports.mark({"a": False})
    assert reports.due(10.0) == ["a"]
    reports.mark({"a": False})
    reports.mark({"a": True, "b": False})
    assert reports.due(10.1) == ["b"]  # a was told 0.1 s ago
    assert reports.due(10.2) == ["a"]
    assert (reports.due(10.5), reports.pending) == ([], 0)


def test_own_pods_share_a_budget_and_everything_else_goes_first() -> None:
    reports = Coalescer(1.0, 2)
    reports.mark(dict.fromkeys("abcde", False) | {"f": True, "g": True})
    assert reports.due(100.0) == ["f", "g", "a", "b"]
    assert reports.due(100.1) == []
    assert reports.due(100.6) == ["c"]
    assert reports.due(101.1) == ["d"]
    assert reports.due(200.0) == ["e"]
