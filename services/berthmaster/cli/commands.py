"""The commands of `berth`, by name, each imported only when it is called.

A new command is one line in COMMANDS: its name, the module and attribute of its click command, and
the line that `berth --help` shows for it, so that showing help imports none of them either.
"""

import importlib

import click

_HERE = "berthmaster.cli"
COMMANDS: dict[str, tuple[str, str]] = {
    "up": (f"{_HERE}.up:up", "Run all of it on this machine."),
    "doctor": (f"{_HERE}.doctor:doctor", "Look at a hub and its workers: what is missing?"),
    "tour": (f"{_HERE}.tour:tour", "See on real clusters where jobs go."),
    "cluster": (f"{_HERE}.cluster_commands:cluster", "Keys of the agents in worker clusters."),
    "tenant": (f"{_HERE}.tenant_commands:tenant", "Keys of tenants."),
    "keys": (f"{_HERE}.keys_commands:keys", "Cut a user off; carry keys of an older version over."),
    "login": (f"{_HERE}.login:login", "Get credentials for a token of a trusted issuer."),
    "whoami": (f"{_HERE}.whoami:whoami", "Which bus, as whom, for how long."),
    "context": (f"{_HERE}.context_commands:context", "Names for several buses."),
    "use": (f"{_HERE}.context_commands:use", "Use one of them from now on."),
    "completion": (f"{_HERE}.completion:completion", "Complete commands and ids in a shell."),
    "demo": (f"{_HERE}.demo:demo", "Show it at work on emulated clusters, with a summary."),
    "submit": (f"{_HERE}.submit:submit", "Submit jobs: files, stdin, or flags."),
    "apply": (f"{_HERE}.submit:apply", "Submit the jobs of files, each after its others."),
    "jobs": (f"{_HERE}.workload_commands:jobs", "List workloads."),
    "job": (f"{_HERE}.workload_commands:job", "Show one workload and its story."),
    "why": (f"{_HERE}.workload_commands:why", "Why there; why not yet."),
    "whatif": (f"{_HERE}.whatif:whatif", "What would move if one thing were otherwise."),
    "watch": (f"{_HERE}.workload_commands:watch", "Follow events live."),
    "wait": (f"{_HERE}.wait_command:wait", "Wait until workloads run, or have ended."),
    "logs": (f"{_HERE}.logs:logs", "What a job writes, wherever it runs."),
    "cancel": (f"{_HERE}.workload_commands:cancel", "Cancel workloads."),
    "hold": (f"{_HERE}.moving_commands:hold", "Have a workload wait until it is released."),
    "release": (f"{_HERE}.moving_commands:release", "Hold it no more."),
    "move": (f"{_HERE}.moving_commands:move", "Have a workload go on in another cluster."),
    "evict": (f"{_HERE}.moving_commands:evict", "End its attempt; it waits again."),
    "reprioritize": (f"{_HERE}.workload_commands:reprioritize", "Give a workload a priority."),
    "clusters": (f"{_HERE}.fleet_commands:clusters", "List the clusters."),
    "gpus": (f"{_HERE}.gpus_command:gpus", "Which GPUs are free, how soon, at what price."),
    "top": (f"{_HERE}.top:top", "Watch the fleet, one cluster's GPUs, or jobs, live."),
    "report": (f"{_HERE}.report:report", "What ended jobs used: GPU-hours, waits, cost."),
    "quality": (f"{_HERE}.quality:quality", "Waits, allocation, fairness, as they are now."),
    "cordon": (f"{_HERE}.fleet_commands:cordon", "Put nothing new on a cluster or node."),
    "uncordon": (f"{_HERE}.fleet_commands:uncordon", "Allow placements there again."),
    "drain": (f"{_HERE}.moving_commands:drain", "Move away what runs there, by a time if need be."),
    "undrain": (f"{_HERE}.moving_commands:undrain", "End that, and the cordon."),
    "cordons": (f"{_HERE}.moving_commands:cordons", "List cordons and how far drains are."),
    "lost": (f"{_HERE}.fleet_commands:lost", "Declare a cluster lost."),
    "found": (f"{_HERE}.fleet_commands:found", "Take that back."),
    "problems": (f"{_HERE}.problems:problems", "What is broken, or not as it should be."),
    "webhook": (f"{_HERE}.webhook_commands:webhook", "Have an address told of ends of jobs."),
    "queue": (f"{_HERE}.fleet_commands:queue", "Set queues, or list them."),
    "runtime": (f"{_HERE}.runtime_commands:runtime", "Set runtimes, or list them."),
    "dead": (f"{_HERE}.fleet_commands:dead", "List messages that nobody could handle."),
    "replay": (f"{_HERE}.replay:replay", "Submit a trace at a speed; account for all of it."),
    "simulate": (f"{_HERE}.simulate:simulate", "Jobs and fleets in virtual time, by policy."),
    "replay-decisions": (f"{_HERE}.decisions:replay_decisions", "Repeat decisions from the log."),
    "repair": (f"{_HERE}.repair:repair", "Go on after damage: say what is to be done about it."),
    "backup": (f"{_HERE}.backup:backup", "Copy what cannot be made again, while it runs."),
    "restore": (f"{_HERE}.backup:restore", "Make an empty bus's streams from a backup."),
    "audit": (f"{_HERE}.audit:audit", "Check the invariants from the bus alone."),
    "serve": (f"{_HERE}.serve:serve", "Run one service as this process."),
}


class Absent(click.ClickException):
    """A library that the command needs is not installed."""

    exit_code = 3


class LazyGroup(click.Group):
    """A group whose commands are imported one at a time."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order of COMMANDS."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command that was called."""
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
        """As click does; a name that is none is answered with the one that is most like it."""
        from berthmaster.cli.nearest import did_you_mean

        unknown = bool(args) and not args[0].startswith("-") and args[0] not in COMMANDS
        if unknown and not ctx.resilient_parsing:  # as it is while a shell completes
            ctx.fail(f"there is no command {args[0]!r}{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in --help, from COMMANDS alone."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="berthmaster")
def berth() -> None:
    """Finds every GPU job its berth."""
