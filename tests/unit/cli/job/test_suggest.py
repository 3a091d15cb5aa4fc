"""Screens of configurations: `berth suggest`, and the choice of a decision."""

from berthmaster.cli.job.screen import compared
from berthmaster.cli.job.suggest import screen as suggested
from berthmaster.lib.messages.placement import Option
from berthmaster.lib.messages.suggest import Configuration, Suggestions
from tests.unit.cli.screens import screen


def test_suggestions_are_a_table_with_remarks() -> None:
    own = Configuration(
        layout="1x8",
        model="H100",
        gpus=8.0,
        own=True,
        jobs=5,
        ran_low_s=6900.0,
        ran_s=7200.0,
        ran_high_s=7500.0,
        wait_s=30.0,
        gpu_h=16.0,
        cost=48.0,
        best=("time",),
    )
    part = Configuration(
        layout="1x1g.10gb", model="H100", changes=("smaller_slice",), by="profile", failed=2
    )
    reply = Suggestions(tenant="acme", id="a", configurations=(own, part), currency="EUR")
    lines = screen(suggested(reply), width=120).splitlines()
    assert lines[0] == "acme/a: ended jobs of the same program"
    assert " ".join(lines[1].split()) == "GPUS MODEL JOBS TIME 8 OF 10 WAIT COST EUR REMARK"
    assert [lines[2].split()[at] for at in (0, 1, 2, -4)] == ["1x8", "H100", "5", "48.00"]
    assert lines[2].endswith("as now, fastest")
    assert lines[3].endswith("smaller slice, 2 failed, by measured use")
    nothing = Suggestions(tenant="acme", id="a", notes=("no job like this one has ended",))
    assert screen(suggested(nothing)) == "no job like this one has ended"


def test_compared_options_say_why_they_were_not_taken() -> None:
    options = (
        Option(gpus=8, gpu_models=("H100",), expected_s=60.0, jobs=3, cost=0.13, why="costs more"),
        Option(gpus=4),
    )
    lines = [line.split() for line in screen(compared(options)).splitlines()]
    assert lines[0] == ["MODEL", "GPUS", "TIME", "JOBS", "COST", "WHY", "NOT"]
    assert lines[1][:2] + lines[1][-4:] == ["H100", "8", "3", "0.13", "costs", "more"]
    assert lines[2] == ["any", "4", "-", "-", "-", "taken"]
