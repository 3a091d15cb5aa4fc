"""A group that runs one of its commands where the command line names none.

Example: with the default "run", `berth demo --jobs 5` is the same as `berth demo run --jobs 5`.
"""

import click

HELP = ("-h", "--help")


class DefaultGroup(click.Group):
    """A group of commands; the first one that is added is the default."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the default's name before arguments that begin with no command's name."""
        first = args[0] if args else ""
        completing = ctx.resilient_parsing and not args  # a shell lists the commands
        if not completing and first not in self.commands and first not in HELP:
            args = [next(iter(self.commands)), *args]
        return super().parse_args(ctx, args)
