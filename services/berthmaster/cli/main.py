"""The entry point of `berth`: its commands by name, each imported only when called.

A new command is one line in SECTIONS: its name, the module and attribute of its click command, and
its line in `berth --help`. So showing help imports no command.
"""

import importlib
from collections.abc import Mapping
from typing import Final

import click

Command = tuple[str, str]  # "module:attribute" and the line in --help
SECTIONS: Final[Mapping[str, Mapping[str, Command]]] = {
    "Jobs": {
        "submit": (
            "berthmaster.cli.job.submit:submit",
            "Submit jobs: files, standard input, or flags.",
        ),
        "jobs": ("berthmaster.cli.job.commands:jobs", "List jobs."),
        "job": ("berthmaster.cli.job.commands:job", "Show one job and its events."),
        "why": ("berthmaster.cli.job.commands:why", "Explain why a job is there, or still waits."),
        "profile": (
            "berthmaster.cli.job.profile:profile",
            "Show what a job uses and is bound by.",
        ),
        "suggest": (
            "berthmaster.cli.job.suggest:suggest",
            "Suggest other GPUs for a job, from ended jobs.",
        ),
        "watch": ("berthmaster.cli.job.commands:watch", "Follow events of jobs live."),
        "wait": ("berthmaster.cli.job.wait:wait", "Wait until jobs run or have ended."),
        "logs": ("berthmaster.cli.job.logs:logs", "Show the output of a job, wherever it runs."),
        "cancel": ("berthmaster.cli.job.commands:cancel", "Cancel jobs."),
        "hold": ("berthmaster.cli.job.moving:hold", "Keep a job waiting until it is released."),
        "release": ("berthmaster.cli.job.moving:release", "End the hold of a job."),
        "evict": ("berthmaster.cli.job.moving:evict", "End a job's attempt and requeue the job."),
        "move": ("berthmaster.cli.job.moving:move", "Move a running job to another cluster."),
        "reprioritize": ("berthmaster.cli.job.commands:reprioritize", "Set the priority of jobs."),
    },
    "Fleet": {
        "gpus": ("berthmaster.cli.fleet.commands:gpus", "List GPU models: free, wait, price."),
        "top": (
            "berthmaster.cli.top.commands:top",
            "Watch clusters, nodes, jobs or queues in a live table.",
        ),
        "problems": (
            "berthmaster.cli.problems.commands:problems",
            "List problems, dead letters and cordons.",
        ),
        "whatif": (
            "berthmaster.cli.whatif.commands:whatif",
            "Show which jobs a change of the fleet would move.",
        ),
        "report": (
            "berthmaster.cli.report.commands:report",
            "Report usage of ended jobs: GPU-hours, waits, cost.",
        ),
    },
    "Operators": {
        "cordon": (
            "berthmaster.cli.fleet.commands:cordon",
            "Allow no new jobs on a cluster or node.",
        ),
        "drain": ("berthmaster.cli.fleet.commands:drain", "Cordon, and move running jobs away."),
        "uncordon": ("berthmaster.cli.fleet.commands:uncordon", "Remove a cordon and end a drain."),
        "lost": ("berthmaster.cli.fleet.commands:lost", "Declare a cluster lost, or undo that."),
        "queue": ("berthmaster.cli.queue.commands:queue", "Set or list queues."),
        "runtime": ("berthmaster.cli.runtime.commands:runtime", "Set or list runtimes."),
        "audit": (
            "berthmaster.cli.audit.commands:audit",
            "Check the invariants from the bus alone.",
        ),
        "replay-decisions": (
            "berthmaster.cli.decisions.commands:replay_decisions",
            "Repeat decisions from the event log.",
        ),
        "recover": (
            "berthmaster.cli.recover.commands:recover",
            "Build a new event log from a damaged one.",
        ),
        "backup": (
            "berthmaster.cli.backup.commands:backup",
            "Back up the event log and settings, live.",
        ),
    },
    "Access": {
        "login": (
            "berthmaster.cli.context.login:login",
            "Exchange an identity token for credentials.",
        ),
        "context": (
            "berthmaster.cli.context.commands:context",
            "Set, list, use and show contexts.",
        ),
        "tenant": ("berthmaster.cli.tenant.commands:tenant", "Manage the keys of tenants."),
        "cluster": (
            "berthmaster.cli.cluster.commands:cluster",
            "Manage the keys of worker clusters.",
        ),
        "keys": ("berthmaster.cli.keys.commands:keys", "Sign or revoke other users' keys."),
        "completion": ("berthmaster.cli.completion:completion", "Print a shell completion script."),
    },
    "Running Berthmaster": {
        "up": ("berthmaster.cli.up.commands:up", "Run all services on this machine."),
        "serve": ("berthmaster.cli.serve:serve", "Run one service as this process."),
        "doctor": (
            "berthmaster.cli.doctor.commands:doctor",
            "Check a hub and its workers for missing setup.",
        ),
        "lab": (
            "berthmaster.cli.lab.commands:lab",
            "Run a hub and three workers with Kueue on this machine.",
        ),
        "tour": (
            "berthmaster.cli.tour.commands:tour",
            "Show on a hub how GPUs or labels choose the cluster.",
        ),
        "demo": (
            "berthmaster.cli.demo.commands:demo",
            "Demonstrate placement; replay traces of jobs.",
        ),
        "simulate": (
            "berthmaster.cli.simulate:simulate",
            "Simulate jobs and fleets in virtual time.",
        ),
    },
}
COMMANDS: Final = {name: each for part in SECTIONS.values() for name, each in part.items()}
RENAMED: Final = {
    "apply": "submit",
    "clusters": "top --once",
    "cordons": "problems cordons",
    "dead": "problems dead",
    "found": "lost --undo",
    "quality": "top --queues",
    "replay": "demo replay",
    "undrain": "uncordon",
    "use": "context use",
    "whoami": "context show",
}


class Absent(click.ClickException):
    """A library of the command is not installed."""

    exit_code = 3


class LazyGroup(click.Group):
    """A group whose commands are imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the called command."""
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        try:
            command = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise Absent(
                f"{error.name} is not installed; pip install 'berthmaster[cli]'"
            ) from error
        if not isinstance(command, click.Command):
            raise TypeError(f"{COMMANDS[cmd_name][0]} is not a click command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Resolve as click does, and suggest the new or nearest name for an unknown one."""
        from berthmaster.cli.output.errors import did_you_mean

        unknown = bool(args) and not args[0].startswith("-") and args[0] not in COMMANDS
        if unknown and not ctx.resilient_parsing:  # True while a shell completes
            if args[0] in RENAMED:
                ctx.fail(f"there is no command {args[0]!r}: use `berth {RENAMED[args[0]]}`")
            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections of --help from SECTIONS alone, in aligned columns."""
        width = max(map(len, COMMANDS))
        for title, part in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, (_, text) in part.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="berthmaster")
def berth() -> None:
    """Finds every GPU job its berth."""


def main() -> None:
    """Run `berth` as the console script does."""
    berth(prog_name="berth")


if __name__ == "__main__":
    main()
