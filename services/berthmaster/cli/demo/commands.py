"""`berth demo [run] | replay | tour`: Berthmaster at work, on emulated and on real clusters."""

import click

from berthmaster.cli.default_group import DefaultGroup
from berthmaster.cli.demo.replay import replay
from berthmaster.cli.demo.run import emulated
from berthmaster.cli.demo.tour import tour


@click.group(cls=DefaultGroup)
def demo() -> None:
    """Show placement at work. Without a command: run, on emulated clusters of its own.

    `berth demo run --help` lists the options of that.
    """


demo.add_command(emulated)
demo.add_command(replay)
demo.add_command(tour)
