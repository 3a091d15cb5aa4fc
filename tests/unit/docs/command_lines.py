"""Whether a command line of `berth` names commands and options that exist."""

import shlex

import click

from berthmaster.cli.main import berth


def fault(typed: str) -> str:
    """Return what of a command line does not exist; "" = all of it does."""
    command: click.Command = berth
    context = click.Context(berth)
    words = iter(shlex.split(typed)[1:])
    for word in words:
        if word == "--":
            break
        if word.startswith("-") and len(word) > 1:
            name, has_value, _ = word.partition("=")
            options = [each for each in command.get_params(context) if name in _flags(each)]
            if not options:
                return f"{typed}: {command.name} has no {word}"
            if isinstance(options[0], click.Option) and not options[0].is_flag and not has_value:
                next(words, None)  # its value
        elif isinstance(command, click.Group) and word.islower():
            found = command.get_command(context, word)
            if found is None:
                return f"{typed}: there is no {word}"
            command, context = found, click.Context(found)
    return ""


def _flags(param: click.Parameter) -> list[str]:
    return [*param.opts, *param.secondary_opts]
