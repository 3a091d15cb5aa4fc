"""What `berth replay-decisions` shows, and which settings it takes."""

import click
import pytest
from msgspec.structs import replace

from berthmaster.cli.decisions.commands import change_of, time_of
from berthmaster.cli.decisions.screen import repeated
from berthmaster.control.resolver.core.counterfactual import Alternative, Compared, Figures, Would
from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.replay import Difference, Input, Report
from tests.unit.cli.screens import screen

INPUTS = (Input(name="workloads", seen=12, here=12), Input(name="fleet", seen=1300, here=900))


def test_a_difference_shows_its_field_and_its_inputs() -> None:
    report = Report(
        decisions=12,
        repeated=9,
        archived=5,
        equal=6,
        not_repeatable=1,
        why_not="what it was made on is not kept any more",
        engine="3",
        other_engines={"2": Compared(decisions=2, same=1, would_differ=1)},
        first_difference=Difference(
            number=7, field="placements", was="1", now="0", inputs=INPUTS, lacking="fleet"
        ),
    )
    assert screen(repeated(report)) == (
        "12 decisions exist; 5 are in the archive alone\n"
        "9 repeated: 6 came out equal, 1 otherwise, 1 cannot be repeated\n"
        "Not repeatable: what it was made on is not kept any more\n"
        "2 were made by engine 2; engine 3 would place 1 of them alike and 1 otherwise\n"
        "First difference: decision 7, placements\n"
        "  was 1\n"
        "  now 0\n"
        "INPUT       SEEN  HERE\n"
        "workloads     12    12\n"
        "fleet      1,300   900\n"
        "Not all that its decider saw is here: fleet."
    )


def test_other_settings_show_sums_and_the_first_who_would_move() -> None:
    would = Would(decision=4, tenant="lab", id="j3", was="small", would="large", how="elsewhere")
    late = Would(decision=5, tenant="lab", id="j4", was="small", would="", how="not then")
    report = Report(
        decisions=10,
        repeated=9,
        equal=0,
        not_repeatable=1,
        otherwise=Alternative(
            compared=Compared(decisions=9, same=6, would_differ=3),
            kinds={"elsewhere": 2, "not then": 1},
            first=(would, late),
            was=Figures(placements=4, clusters={"small": 4}, mean_wait_s=0.5, longest_wait_s=200.0),
            would=Figures(
                placements=3,
                clusters={"large": 2, "small": 1},
                mean_wait_s=0.25,
                longest_wait_s=1.5,
            ),
        ),
    )
    assert report.different == 0
    assert screen(repeated(report)) == (
        "10 decisions exist; 0 are in the archive alone\n"
        "9 decisions: 6 would be the same, 3 otherwise\n"
        "1 more cannot be repeated\n"
        "2 jobs elsewhere, 1 jobs not then\n"
        "\n"
        "                 WAS  WOULD BE\n"
        "jobs placed        4         3\n"
        "mean wait     500 ms    250 ms\n"
        "longest wait   3m20s    1.50 s\n"
        "on large           0         2\n"
        "on small           4         1\n"
        "\n"
        "DECISION  WORKLOAD  WAS    WOULD BE  HOW\n"
        "       4  lab/j3    small  large     elsewhere\n"
        "       5  lab/j4    small  -         not then\n"
        "and 1 more"
    )


def test_that_nothing_was_repeated_is_said_with_the_reason() -> None:
    report = Report(decisions=3, repeated=0, equal=0, not_repeatable=3, why_not="it is gone")
    assert screen(repeated(report)) == (
        "3 decisions exist; 0 are in the archive alone\n"
        "None was repeated, which shows nothing: it is gone"
    )


def test_a_time_is_so_long_ago_or_a_moment_with_its_zone() -> None:
    assert time_of("1h30m", 10_000.0) == 4600.0
    assert time_of("1970-01-01T02:00:00+01:00", 0.0) == 3600.0
    assert time_of("1970-01-01T01:00:00Z", 0.0) == 3600.0
    for text in ("yesterday", "1970-01-01T01:00:00", ""):
        with pytest.raises(click.UsageError) as told:
            time_of(text, 0.0)
        assert f"--since {text!r} is no time" in told.value.message


def test_settings_are_read_by_name_and_change_nothing_else() -> None:
    policy = Policy(claim_timeout_s=3.0)
    assert change_of(("fit=0", "commit_limit=7"))(policy) == replace(
        policy, fit=0.0, commit_limit=7
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fit", "'fit' is no setting; right is NAME=VALUE with one of claim_timeout_s, "),
        ("tightness=1", "'tightness=1' is no setting"),
        ("fit=tight", "fit=tight: Expected `float`"),
    ],
)
def test_a_wrong_setting_is_a_usage_error(text: str, says: str) -> None:
    with pytest.raises(click.UsageError) as told:
        change_of((text,))
    assert says in told.value.message
