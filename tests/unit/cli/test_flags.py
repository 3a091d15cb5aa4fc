"""No command has two meanings for one flag, and fields of messages have options."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Any

import click
import msgspec
from click.testing import CliRunner
from msgspec import Meta

from berthmaster.cli.flags import FieldOptions, Flag
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


class Inner(msgspec.Struct, frozen=True):
    grace_s: Annotated[
        Annotated[float, Meta(ge=0)] | None, Meta(description="Grace period; None = forever.")
    ] = None


class Example(msgspec.Struct, frozen=True):
    weight: Annotated[float, Meta(gt=0, le=10, description="Weight.")] = 1.0
    size_mib: Annotated[int, Meta(description="Size.")] = 2048
    quiet: Annotated[bool, Meta(description="Write nothing.")] = False
    models: Annotated[tuple[str, ...] | None, Meta(description="Models; None = all.")] = None
    inner: Inner = Inner()
    secret: str = ""


def run(options: FieldOptions, *args: str) -> tuple[dict[str, Any], str]:
    """Return the fields that the arguments give, or what a wrong one is answered with."""
    found: dict[str, Any] = {}

    @click.command()
    @options
    def command(**flags: Any) -> None:
        found.update(options.values(flags))

    done = CliRunner().invoke(command, args)
    return found, done.output


def test_field_options_of_a_new_message_have_units_switches_and_defaults() -> None:
    options = FieldOptions(Example, {"secret": None, "inner.grace_s": Flag("--wait")})
    fields, _ = run(options, "--size", "1Gi", "--quiet", "--model", "a", "--wait", "0s")
    assert fields == {"size_mib": 1024, "quiet": True, "models": ["a"], "inner": {"grace_s": 0.0}}
    assert run(options) == ({}, "")
    text = " ".join(run(options, "--help")[1].split())
    assert "--size MEM Size. Example: 16Gi. [default: 2Gi]" in text
    assert "--wait TIME Grace period. Example: 5m. [default: forever]" in text
    assert "--quiet Write nothing. --model" in text
    assert "secret" not in text
    assert options.name_of("inner.grace_s") == "--wait"


def test_field_options_of_a_change_clear_values_and_check_ranges() -> None:
    options = FieldOptions(Example, {"secret": None, "inner": Flag("--default")}, edits=True)
    fields, _ = run(options, "--default-grace", "none", "--models", "any", "--quiet", "no")
    assert fields == {"inner": {"grace_s": None}, "models": None, "quiet": False}
    assert "0 is not in the range 0<x<=10" in run(options, "--weight", "0")[1]
    text = " ".join(run(options, "--help")[1].split())
    assert "Grace period; 'none' = forever." in text
    assert "Models; 'any' = all." in text
