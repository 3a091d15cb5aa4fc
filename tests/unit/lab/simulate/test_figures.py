"""Figures of a run, and its picture."""

import xml.etree.ElementTree as ET

import pytest

from berthmaster.control.resolver.core.quality import jain
from berthmaster.lab.simulate.figures import Times, averaged, curve, percentile, summarize
from berthmaster.lab.simulate.model import JobOutcome, Run, Span, told
from berthmaster.lab.simulate.plot import draw, span_text
from tests.unit.lab.simulate.lists import job, run


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile(values, 100)) == (
        50,
        99,
        100,
    )
    assert percentile([7.0], 1) == 7


def test_a_runs_figures_by_hand() -> None:
    summary = summarize(run("fifo", [job("a", 0, 10, gpus=2), job("b", 0, 30), job("c", 5, 10)]))
    assert summary.completion == Times(mean_s=65 / 3, p50_s=15, p99_s=40, longest_s=40)
    assert summary.wait == Times(mean_s=5, p50_s=5, p99_s=10, longest_s=10)
    assert summary.makespan_s == 40
    # 2 GPUs until 10, 2 until 20, 1 until 40.
    assert summary.allocation == pytest.approx(60 / 80)
    assert summary.allocation_busy == 1
    assert summary.fairness == pytest.approx(jain([1, 40 / 30, 1.5]))
    assert (summary.policy, summary.jobs, len(summary.curve)) == ("fifo", 3, 200)
    assert [summary.curve[at][0] for at in (0, -1)] == pytest.approx([0.1, 39.9])
    assert [summary.curve[at][1] for at in (0, -1)] == pytest.approx([2, 1])


def test_a_job_that_has_not_ended_has_no_figures() -> None:
    with pytest.raises(ValueError, match="job a has not ended"):
        summarize(Run("x", [job("a", 0, 1)], [JobOutcome(0.0, None)], [], 1))


def test_averages_and_curves_of_nothing_are_nothing() -> None:
    assert averaged([]) == 0
    assert averaged([(1.0, 0.0)]) == 0
    assert curve([]) == ()
    assert curve([Span(5, 0, 1, 0, 0)]) == ()
    assert curve([Span(0, 1, 4, 0, 0), Span(1, 3, 8, 0, 0)], 2) == ((1, 6), (3, 8))


def test_times_are_told_in_the_unit_that_people_would_use() -> None:
    told_as = [span_text(value) for value in (0, 0.25, 59, 90, 5400, 86_400 * 2.5)]
    assert told_as == ["0 s", "0.25 s", "59 s", "1.5 min", "1.5 h", "2.5 d"]


def test_the_picture_is_well_formed_and_shows_each_policy_with_its_figures() -> None:
    jobs = [job("a", 0, 10, gpus=2), job("b", 0, 30)]
    summaries = [summarize(run(policy, jobs)) for policy in ("fifo", "sjf")]
    svg = ET.fromstring(draw(summaries, 2, "two <jobs> & more"))
    texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert "two <jobs> & more" in texts
    assert texts.count("fifo") == texts.count("sjf") == 2
    assert span_text(summaries[0].completion.mean_s) in texts
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}polyline"))) == 2
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}rect"))) == 1 + 4


def test_what_policies_are_told_of_durations() -> None:
    jobs = [job(f"j{n}", n, 100) for n in range(200)]
    assert told(jobs, "exact", 1) == jobs
    assert {one.expected_s for one in told(jobs, "unknown", 1)} == {None}
    about = [one.expected_s or 0 for one in told(jobs, "factor-two", 1)]
    assert about == [one.expected_s for one in told(jobs, "factor-two", 1)]
    assert about != [one.expected_s for one in told(jobs, "factor-two", 2)]
    assert 50 <= min(about) < 60
    assert 170 < max(about) <= 200
