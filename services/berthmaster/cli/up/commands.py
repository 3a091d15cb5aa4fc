"""`berth up`: runs all services on this machine until Ctrl-C."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from berthmaster.cli.output.errors import complain
from berthmaster.cli.session import EXIT_FAILED, EXIT_INTERRUPTED, Output, option_group, run, usage
from berthmaster.lib.runtime.ports import PAGE_PORT
from berthmaster.lib.runtime.settings import EmptyMember, members
from berthmaster.lib.supervisor import plan
from berthmaster.lib.supervisor.faults import FAULTS, fault_text
from berthmaster.lib.supervisor.folder import DATA_FOLDER
from berthmaster.lib.supervisor.plan import KubeTarget, PlanError, UpOptions, kube_target
from berthmaster.lib.supervisor.processes import NO_LIMIT_S, LeftOut, SlowStart, Supervised, unless
from berthmaster.lib.supervisor.stack import Stack, ephemeral_folder, process_view

SAME_CTRL_C_S = 0.5  # seconds; a wrapper forwards the signal that the terminal also sends
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_CLUSTER_FLAGS: list[Callable[[Any], Any]] = [
    click.option(
        "--hub", metavar="CLUSTER",
        help="Hub with Kueue: [NAME=]CONTEXT or [NAME=]KUBECONFIG[:CONTEXT].",
    ),
    click.option(
        "--karmada", metavar="CLUSTER",
        help=(
            "API server of a Karmada control plane, in the same form. Bindings with Berthmaster"
            " as scheduler are placed here."
        ),
    ),
    click.option(
        "--worker", "workers", multiple=True, metavar="CLUSTER",
        help="Worker cluster, in the same form; NAME is the name of its MultiKueueCluster.",
    ),
    click.option(
        "--mode", type=click.Choice(["observe", "dispatch"]), default="observe",
        show_default=True,
        help=(
            "Mode on the hub: observe writes nothing; dispatch nominates a cluster for each "
            "Workload, and needs what clears nominations there: `berth doctor`."
        ),
    ),
    click.option(
        "--namespaces", metavar="A,B,…", help="Namespaces of the workers for jobs, comma-separated."
    ),
    click.option(
        "--label", "labels", multiple=True, metavar="WORKER:KEY=VALUE",
        help="Label of a worker cluster, for requests and queues to match.",
    ),
    click.option(
        "--external", multiple=True, metavar="HOST",
        help=(
            "Name or address of this machine for agents in other clusters; the bus is then "
            "served over TLS on all addresses."
        ),
    ),
]  # fmt: skip

_FLAGS: list[Callable[[Any], Any]] = [
    click.option(""
    "--services", metavar="A,B,…", help="Run only these services; NAME=N runs several of one."),
    click.option(
        "--clusters", type=int, default=plan.DEFAULT_CLUSTERS, show_default=True, metavar="N",
        help="Number of emulated clusters.",
    ),
    click.option(
        "--nodes", type=int, default=plan.DEFAULT_NODES, show_default=True, metavar="N",
        help="Number of nodes in all emulated clusters; 0 = all of the list.",
    ),
    click.option(
        "--fleet", default="builtin", show_default=True, metavar="FILE",
        help="Node list in openb's format for the emulated fleet.",
    ),
    click.option(
        "--speed", type=click.FloatRange(min=0, min_open=True), default=1.0, show_default=True,
        metavar="X", help="Speed-up of emulated jobs.",
    ),
    click.option(""
    "--seed", type=int, default=1, show_default=True, help="Seed of all emulated random events."),
    click.option("--resolvers", type=int, default=1, show_default=True, metavar="N"),
    click.option("--scorers", type=int, default=1, show_default=True, metavar="N"),
    click.option(
        "--servers", type=int, default=1, show_default=True, metavar="N",
        help="Number of NATS servers: 1, or 3 or 5 that replicate.",
    ),
    click.option(""
    "--port", type=click.IntRange(0, 65535), default=0, help="Port of NATS; 0 = any free port."),
    click.option(
        "--page-port", type=click.IntRange(0, 65535), default=0,
        help=f"Port of the dashboard; 0 = {PAGE_PORT}, or any free port if that is taken.",
    ),
    click.option(
        "--sync", type=click.Choice(["always", "default"]), default=None,
        help=(
            "Answer after the disk has the data (always), or let the disk follow within 2 "
            "minutes."
        ),
    ),
    click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info"
    ),
]  # fmt: skip
stack_flags = option_group(*_FLAGS)  # `berth demo` uses them too
cluster_flags = option_group(*_CLUSTER_FLAGS)  # for real clusters


def options_of(folder: Path, flags: dict[str, Any], tenants: tuple[str, ...] = ()) -> UpOptions:
    """Return the options of the flags. Raises PlanError."""
    hub, workers = clusters_of(flags)
    karmada = kube_target(flags["karmada"], Path.is_file) if flags.get("karmada") else None
    services, replicas = services_of(flags.get("services"), plan.defaults(hub, workers, karmada))
    for flag, service in (("resolvers", "resolver"), ("scorers", "scorer")):
        if flags.get(flag, 1) != 1:
            replicas[service] = flags[flag]
    options = UpOptions(
        folder=folder,
        services=services,
        replicas=replicas,
        clusters=flags["clusters"],
        nodes=flags["nodes"],
        fleet=flags["fleet"],
        speed=flags["speed"],
        seed=flags["seed"],
        servers=flags["servers"],
        nats_port=flags["port"],
        page_port=flags["page_port"],
        websocket_port=flags.get("websocket") or 0,
        websocket_origins=tuple(flags.get("websocket_origins") or ()),
        sync=flags["sync"] or "always",
        tenants=tenants or ("default",),
        log_level=flags["log_level"],
        hub=hub,
        karmada=karmada,
        workers=workers,
        mode=flags.get("mode") or "observe",
        namespaces=_namespaces(flags.get("namespaces")),
        labels=labels_of(flags.get("labels") or ()),
        external=tuple(flags.get("external") or ()),
        login_mapping=flags.get("login"),
    )
    plan.check(options)
    return options


def clusters_of(flags: dict[str, Any]) -> tuple[KubeTarget | None, tuple[KubeTarget, ...]]:
    """Return the real clusters of the flags. Raises PlanError."""
    named = flags.get("hub")
    hub = kube_target(named, Path.is_file) if named else None
    return hub, tuple(kube_target(text, Path.is_file) for text in flags.get("workers") or ())


def labels_of(texts: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Return the labels of each worker from texts: berlin:accelerator=t4. Raises PlanError."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        worker, colon, label = text.rpartition(":")
        key, equals, _ = label.partition("=")
        if not (worker and colon and key and equals) or "," in label:
            raise PlanError(f"--label {text!r}: right is WORKER:KEY=VALUE")
        found[worker] = (*found.get(worker, ()), label)
    return found


def _namespaces(text: str | None) -> tuple[str, ...]:
    try:
        return members(text or "")
    except EmptyMember as error:
        raise PlanError(f"--namespaces {text!r}: {error}; right is A,B") from error


def services_of(
    text: str | None, default: tuple[str, ...] = plan.defaults()
) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the names and numbers of gateway,resolver=2. Raises PlanError."""
    if not text:
        return default, {}
    services: list[str] = []
    replicas: dict[str, int] = {}
    for part in text.split(","):
        name, equals, count = part.strip().partition("=")
        services.append(name)
        if equals:
            if not count.isdecimal():
                raise PlanError(f"{part!r}: right is NAME or NAME=N, such as resolver=2")
            replicas[name] = int(count)
    return tuple(services), replicas


@click.command()
@cluster_flags
@stack_flags
@click.option(
    "--data", type=click.Path(path_type=Path), default=DATA_FOLDER, show_default=True,
    envvar="BERTH_DATA", metavar="FOLDER",
    help="Folder for data, keys and logs. [default: BERTH_DATA]",
)  # fmt: skip
@click.option(
    "--login", type=click.Path(path_type=Path, exists=True, dir_okay=False), metavar="FILE",
    help="Run the login service with this mapping of tokens to tenants and clusters.",
)  # fmt: skip
@click.option(
    "--websocket", type=click.IntRange(1, 65535), metavar="PORT",
    help="Port for web pages that subscribe to NATS by WebSocket. [default: off]",
)  # fmt: skip
@click.option(
    "--websocket-origin", "websocket_origins", multiple=True, metavar="URL",
    help="Accept only web pages of this origin, such as https://wall.example.org; may be repeated.",
)  # fmt: skip
@click.option(
    "--ephemeral", is_flag=True, help="Keep data in a temporary folder, deleted at the end."
)
@click.option(
    "--tenant", "tenants", multiple=True, metavar="NAME", help="Also create keys for this tenant."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines instead of text.")
def up(data: Path, ephemeral: bool, tenants: tuple[str, ...], as_json: bool, **flags: Any) -> None:
    """Run NATS and all services on this machine, with emulated clusters, or with a real hub and
    real workers. Ctrl-C stops all."""
    output = Output(as_json=as_json)
    with contextlib.ExitStack() as owned:
        if ephemeral:
            data = Path(owned.enter_context(ephemeral_folder()))
            # data that is deleted at the end needs no sync
            flags["sync"] = flags["sync"] or "default"
        try:
            options = options_of(data, flags, tenants)
        except PlanError as error:
            usage(str(error))
        code = run(_up(options, output), output)
    sys.exit(code)


async def _up(options: UpOptions, output: Output) -> int:
    from berthmaster.cli.up import screen

    is_up = False

    def announce(watched: Supervised) -> None:
        view = process_view(watched)
        if watched.child.cluster and not watched.was_ready:
            return  # excluded by name; the first news of it is that it is ready
        if is_up and watched.condition not in ("starting", "stopped"):
            output.item({"changed": view}, lambda: screen.change(view))

    async with until_signal() as stopping:
        try:
            away = await unless(stopping, _away(options))
        except PlanError as error:
            return cannot_start(output, error)
        if away is None:
            return 0
        if away:
            say_slow(LeftOut(away))
        bringing = Stack(options, announce, start_limit_s=NO_LIMIT_S, slow=say_slow, away=away)
        output.say(f"Starting in {options.folder} …")
        try:
            stack = await unless(stopping, bringing.__aenter__())
        except FAULTS as error:
            return cannot_start(output, error)
        if stack is None:
            return 0
        try:
            view = stack.view()
            page = f"Dashboard: {view.page}\n" if view.page else ""
            hint = f"{page}Ctrl-C stops it. In another terminal: berth top, berth submit --gpus 1"
            if output.as_json:
                output.line({"up": view})
            else:
                output.console.print(screen.stack(view, hint=hint))
                sys.stdout.flush()
            is_up = True
            await stopping.wait()
            is_up = False
            output.say("Stopping …")
        finally:
            await stack.__aexit__(None, None, None)
    killed = [w.child.name for w in stack.supervisor.watched if w.note.startswith("killed")]
    output.say("All stopped." if not killed else f"All stopped; had to kill {', '.join(killed)}.")
    return 0


async def _away(options: UpOptions) -> Mapping[str, str]:
    """Return why contexts do not answer, by cluster.

    Raises PlanError if two workers are one cluster.
    """
    targets = [one for one in (options.hub, options.karmada, *options.workers) if one is not None]
    if not targets:
        return {}
    from berthmaster.lib.supervisor.contexts import away, meet, named_twice

    met = await meet(targets)
    if twice := named_twice([one for one in met if one.target in options.workers]):
        raise PlanError(twice)
    return away(met)


def say_slow(slow: SlowStart | LeftOut) -> None:
    """Report a slow start on standard error in any case, so that the user knows the reason."""
    complain(f"{slow}; still trying, Ctrl-C ends it")


def cannot_start(output: Output, error: BaseException) -> int:
    """Report why the start fails."""
    text = fault_text(error)
    if output.as_json:
        output.line({"error": {"code": "failed", "message": text}})
    complain(f"{text}")
    return EXIT_FAILED


@asynccontextmanager
async def until_signal() -> AsyncGenerator[asyncio.Event, None]:
    """Yield an event that the first Ctrl-C or SIGTERM sets.

    A second signal ends this process at once, and its children with it.
    """
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    first_s = 0.0

    def stop() -> None:
        nonlocal first_s
        if not stopping.is_set():
            first_s = loop.time()
            stopping.set()
        elif loop.time() - first_s > SAME_CTRL_C_S:
            os._exit(EXIT_INTERRUPTED)

    for number in SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield stopping
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
