"""Who is told of ends, on the screen."""

from rich.console import Group, RenderableType

from berthmaster.cli.render import amounts
from berthmaster.cli.render.terminal import plain_table, safe
from berthmaster.messages.usage import WebhooksReply, WebhookView


def table(reply: WebhooksReply, now_s: float) -> RenderableType:
    """One a line; what went wrong, and which hosts are allowed, below."""
    lines: list[RenderableType] = []
    if reply.webhooks:
        found = plain_table("NAME", "WHOSE", "HOST", "ON", "OF", "SET")
        for one in reply.webhooks:
            ago = f"{amounts.since(one.set_at_s, now_s)} ago" if one.set_at_s else ""
            cells = (one.name, _whose(one), one.host, ", ".join(one.on), _of(one), ago)
            found.add_row(*map(safe, cells))
        lines += [found, safe()]
    else:
        lines.append(safe("No webhook is set."))
    for one in reply.webhooks:
        if one.fault:
            lines.append(safe(f"{one.name}: nothing is sent: {one.fault}", style="red"))
        elif one.last_failure:
            ago = amounts.since(one.last_failure_at_s, now_s)
            why = f"{one.name}: not taken {ago} ago: {one.last_failure}"
            lines.append(safe(why, style="yellow"))
    hosts = ", ".join(reply.hosts) or "none: operators allow none"
    lines.append(safe(f"Hosts that a tenant may name: {hosts}.", style="dim"))
    return Group(*lines)


def _whose(one: WebhookView) -> str:
    return {"operators": "operators", "queue": f"queue {one.queue}", "tenant": one.tenant}[
        one.whose
    ]


def _of(one: WebhookView) -> str:
    parts = [f"queue {name}" for name in one.queues] + [f"set {name}" for name in one.sets]
    return ", ".join(parts + [f"{key}={value}" for key, value in one.labels.items()]) or "all"
