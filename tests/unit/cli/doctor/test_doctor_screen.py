from io import StringIO

from rich.console import Console

from berthmaster.cli.doctor.commands import screen
from berthmaster.cli.doctor.facts import ManagerConfig
from tests.unit.cli.doctor.surveys import of_hub


def shown(report: object) -> list[str]:
    console = Console(file=StringIO(), width=80)
    console.print(screen(report), soft_wrap=True)  # type: ignore[arg-type]
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().splitlines()


def test_each_cluster_has_its_findings_and_commands_are_never_broken_into_lines() -> None:
    lines = shown(of_hub("dispatch", manager=ManagerConfig()))
    assert lines[1:3] == ["hub", "  ok      API server answers, v1.36.3"]
    assert "berlin" in lines
    at = lines.index(
        "  BLOCKS  the dispatcher is AllAtOnce, the default; dispatch needs one that is not Kueue's"
    )
    assert lines[at + 2 : at + 5] == [
        "          change:",
        (
            "            kubectl --context kind-hub -n kueue-system edit configmap "
            "kueue-manager-config"
        ),
        "            # in controller_manager_config.yaml:",
    ]
    assert lines[-1] == "1 finding in the way of the mode dispatch."


def test_a_clean_bill_says_for_which_mode() -> None:
    assert shown(of_hub("observe"))[-1] == "Nothing blocks the mode observe."
    warned = shown(of_hub("observe", skew_s=60.0))[-1]
    assert warned == "Nothing blocks the mode observe. 1 warning."


def test_what_a_cluster_says_cannot_steer_the_terminal() -> None:
    lines = shown(of_hub(unreachable="\x1b[2J"))
    assert any("\\x1b[2J" in line for line in lines)
    assert not any("\x1b" in line for line in lines)
