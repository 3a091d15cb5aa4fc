import pytest
from prometheus_client import generate_latest

from berthmaster.lib.runtime.metrics import GaugeSeries, Metrics


def shown(metrics: Metrics) -> list[str]:
    return generate_latest(metrics.registry).decode().splitlines()


def test_names_carry_the_service_and_counters_end_in_total() -> None:
    metrics = Metrics("node-agent")
    metrics.counter("reports", "Reports sent", ["cluster"]).labels("lake").inc()
    metrics.gauge("gpus", "GPUs seen").set(8)
    metrics.histogram("read_seconds", "Time of one reading", buckets=(0.1, 1)).observe(0.5)
    lines = shown(metrics)
    assert 'berth_node_agent_reports_total{cluster="lake"} 1.0' in lines
    assert "berth_node_agent_gpus 8.0" in lines
    assert 'berth_node_agent_read_seconds_bucket{le="0.1"} 0.0' in lines
    assert 'berth_node_agent_read_seconds_bucket{le="1.0"} 1.0' in lines


def test_asking_twice_gives_the_same_figure_and_another_kind_is_refused() -> None:
    metrics = Metrics("scorer")
    assert metrics.counter("facts", "Facts") is metrics.counter("facts", "Facts")
    with pytest.raises(ValueError, match="berth_scorer_facts"):
        metrics.gauge("facts", "Facts")
    with pytest.raises(ValueError, match="berth_scorer_facts"):
        metrics.counter("facts", "Facts", ["cluster"])


def test_two_services_in_one_process_keep_their_figures_apart() -> None:
    first, second = Metrics("scorer"), Metrics("scorer")
    first.gauge("lag_seconds", "Lag").set(1)
    second.gauge("lag_seconds", "Lag").set(2)
    assert "berth_scorer_lag_seconds 1.0" in shown(first)
    assert "berth_scorer_lag_seconds 2.0" in shown(second)


def test_gauge_series_show_replaces_all_series_of_the_gauge() -> None:
    metrics = Metrics("scorer")
    series = GaugeSeries(metrics.gauge("closed_gpus", "Closed", ["cluster", "fault"]))
    series.show({("east", "ecc"): 1.0, ("west", "lost"): 2.0})
    series.show({("east", "ecc"): 3.0, ("lake", "lost"): 4.0})
    assert [line for line in shown(metrics) if line.startswith("berth_scorer_closed_gpus")] == [
        'berth_scorer_closed_gpus{cluster="east",fault="ecc"} 3.0',
        'berth_scorer_closed_gpus{cluster="lake",fault="lost"} 4.0',
    ]
    series.show({})
    assert not [line for line in shown(metrics) if line.startswith("berth_scorer_closed_gpus")]
