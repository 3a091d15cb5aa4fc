"""The table of commands: names, sections of --help, new names of old commands, --json."""

from collections.abc import Iterator

import click
import pytest
from click.shell_completion import BashComplete
from click.testing import CliRunner

from berthmaster.cli.main import COMMANDS, RENAMED, SECTIONS, berth

MOST_NAMES = 43
# A script for a shell, and a service's own log.
WITHOUT_JSON = {"completion", "serve"}


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    """Yield each command that is no group, with its whole name."""
    if not isinstance(command, click.Group) or name == "serve":  # its parts are services
        yield name, command
        return
    context = click.Context(command)
    for part in command.list_commands(context):
        found = command.get_command(context, part)
        assert found is not None
        yield from leaves(found, f"{name} {part}".strip())


def test_help_lists_every_command_once_below_its_section() -> None:
    shown = CliRunner().invoke(berth, ["--help"]).output.splitlines()
    names = [line.split()[0] for line in shown if line.startswith("  ")]
    assert [name for name in names if name in COMMANDS] == list(COMMANDS)
    assert [line[:-1] for line in shown if line.endswith(":") and line != "Options:"] == [*SECTIONS]
    assert len(COMMANDS) <= MOST_NAMES


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_old_name_is_answered_with_the_new_one(old: str, new: str) -> None:
    done = CliRunner().invoke(berth, [old, "--whatever"])
    assert done.exit_code == 2
    assert f"there is no command '{old}': use `berth {new}`" in done.output
    known = {name for name, _ in leaves(berth, "")}
    words = " ".join(word for word in new.split() if not word.startswith("-"))
    assert any(f"{name} ".startswith(f"{words} ") for name in known)
    assert old not in COMMANDS


def test_every_command_that_prints_data_takes_json() -> None:
    without = {
        name
        for name, command in leaves(berth, "")
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == WITHOUT_JSON


@pytest.mark.parametrize(
    ("argv", "usage"),
    [
        (("problems", "--limit", "0"), "Usage: berth problems list"),
        (("problems", "dead", "--limit", "0"), "Usage: berth problems dead"),
        (("problems", "--json", "dead"), "Usage: berth problems list"),
        (("demo", "--jobs", "0"), "Usage: berth demo run"),
        (("demo", "replay", "--speed", "-1"), "Usage: berth demo replay"),
    ],
)
def test_default_command_runs_where_none_is_named(argv: tuple[str, ...], usage: str) -> None:
    done = CliRunner().invoke(berth, argv)
    assert done.exit_code == 2
    assert usage in done.output


@pytest.mark.parametrize(
    ("args", "incomplete", "expected"),
    [
        ([], "prob", ["problems"]),
        (["problems"], "", ["cordons", "dead", "list"]),
        (["demo"], "r", ["replay", "run"]),
        (["context"], "u", ["use"]),
        (["problems", "dead"], "--li", ["--limit"]),
        (["problems"], "--js", []),
    ],
)
def test_shell_completes_commands_of_groups(
    args: list[str], incomplete: str, expected: list[str]
) -> None:
    found = BashComplete(berth, {}, "berth", "_BERTH_COMPLETE").get_completions(args, incomplete)
    assert [one.value for one in found] == expected
