"""No command has two meanings for one flag."""

from collections import Counter
from collections.abc import Iterator

import click

from berthmaster.cli.main import berth


def commands(group: click.Command, path: str = "berth") -> Iterator[tuple[str, click.Command]]:
    yield path, group
    if isinstance(group, click.Group):
        context = click.Context(group)
        for name in group.list_commands(context):
            found = group.get_command(context, name)
            assert found is not None
            yield from commands(found, f"{path} {name}")


def test_each_flag_and_each_parameter_of_a_command_is_there_once() -> None:
    seen = 0
    for path, command in commands(berth):
        flags = Counter(flag for param in command.params for flag in param.opts)
        names = Counter(param.name for param in command.params if param.name)
        for counts in (flags, names):
            assert [each for each, count in counts.items() if count > 1] == [], path
        seen += 1
    assert seen > 20
