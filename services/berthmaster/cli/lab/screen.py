"""The output of `berth lab` once the lab is up."""

from rich.console import Group, RenderableType

from berthmaster.cli.output import amounts
from berthmaster.cli.output.terminal import plain_table, safe
from berthmaster.lab.sandbox.layout import WORKERS
from berthmaster.lab.sandbox.state import LabState
from berthmaster.lib.kueue.names import QUEUE_LABEL


def screen(state: LabState) -> RenderableType:
    """Return the clusters, the kubeconfig, and the next steps."""
    table = plain_table("CONTEXT", "NODES", "GPUS", "MODEL", right=("NODES", "GPUS"))
    table.add_row(safe(state.hub), "0", "0", "")
    for worker in WORKERS:
        if worker.name in state.workers:
            table.add_row(safe(worker.name), str(worker.nodes), str(worker.gpus), worker.model)
    jobs = f"kubectl --context {state.hub} -n {state.namespace}"
    label = f"{QUEUE_LABEL}: {state.local_queue}"
    lines = [
        f"Up after {amounts.duration(state.took_s)}; data and logs: {state.folder}",
        f"export KUBECONFIG={state.kubeconfig}",
        f"Dashboard: {state.page}" if state.page else "",
        f"Create Jobs with {jobs}, with the label {label}.",
        f"A pod of a Job ends after 0.3 s, unless it has the annotation {state.annotations[0]!r}.",
        "Next: berth tour gpus, berth tour labels. `berth lab stop` ends it.",
    ]
    return Group(table, safe(), *(safe(line) for line in lines if line))
