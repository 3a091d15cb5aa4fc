"""`berth report`: the usage and cost of ended jobs, and the trends of usage metrics.

The usage service provides the numbers. A period is a day, a month, or between two times, all in
UTC, the time zone of the sums.
"""

import csv
import io
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, get_args

import click
import msgspec

from berthmaster.cli.completion import CLUSTER, MODEL, QUEUE
from berthmaster.cli.output.listing import Form, cell_text, form_option, write_list
from berthmaster.cli.session import Session, bus_command, option_group, usage
from berthmaster.lib.messages.usage import (
    MOST_ROWS,
    ReportGroup,
    ReportKind,
    TrendSpan,
    TrendsRequest,
    UsageReportRequest,
)

if TYPE_CHECKING:
    from berthmaster.lib.messages.usage import UsageReport

GROUPS: Final = get_args(ReportGroup)
_FORMS: Final = ("%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%d %H:%M", "%Y-%m-%d", "%Y-%m")
RIGHT: Final = "2026-11, 2026-11-24, 2026-11-24T13:30, or 7d, 12h, 4w ago"


class WrongMoment(ValueError):
    """Invalid time. The text shows a valid one."""


def moment(text: str, now_s: float) -> float:
    """Return seconds since 1970 of a user's text. Raises WrongMoment."""
    if text == "now":
        return now_s
    from berthmaster.cli.values import WrongInput, parse_duration_s

    if text[-1:].isalpha():
        try:
            return now_s - parse_duration_s(text)
        except WrongInput:
            pass
    for form in _FORMS:
        try:
            return datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
    raise WrongMoment(f"{text!r} is not right, expected {RIGHT}")


def whole(text: str) -> tuple[float, float]:
    """Return start and end of a day or a month. Raises WrongMoment."""
    for form in ("%Y-%m-%d", "%Y-%m"):
        try:
            begin = datetime.strptime(text, form).replace(tzinfo=UTC)
        except ValueError:
            continue
        day = timedelta(days=1) if form == "%Y-%m-%d" else timedelta(days=31)
        end = begin + day
        if form == "%Y-%m":
            end = end.replace(day=1)
        return begin.timestamp(), end.timestamp()
    raise WrongMoment(f"{text!r} is not right, expected 2026-11 or 2026-11-24")


# Flags of every report.
_flags = option_group(
    click.option("--since", default="30d", metavar="WHEN", help=f"Start of the period: {RIGHT}."),
    click.option("--until", default="now", metavar="WHEN", help="End of the period, excluded."),
    click.option(
        "--period",
        metavar="DAY|MONTH",
        help="Day or month to report, such as 2026-11-24 or 2026-11.",
    ),
    click.option("--queue", type=QUEUE, default="", help="Only jobs of this queue."),
    click.option("--owner", default="", help="Only jobs of this owner."),
    click.option("--model", type=MODEL, default="", help="Only GPUs of this model."),
    click.option("--cluster", type=CLUSTER, default="", help="Only this cluster."),
    click.option(
        "--of", "of_tenant", default="", metavar="TENANT", help="Only jobs of this tenant."
    ),
    click.option("--mine", is_flag=True, help="Ask as a tenant, about its own jobs."),
    click.option("--limit", type=click.IntRange(1, MOST_ROWS), default=100, show_default=True),
    click.option("--csv", "as_csv", is_flag=True, help="Print CSV, like -o csv."),
    form_option,
)
_BY = click.option(
    "--by",
    "group",
    multiple=True,
    type=click.Choice(GROUPS),
    help="Group rows by this field; may be repeated.",
)


@click.group()
def report() -> None:
    """Report usage of ended jobs: requested and used GPU-hours, waits, evictions, cost."""


@report.command("usage")
@_BY
@_flags
@bus_command
async def usage_report(session: Session, /, **flags: Any) -> None:
    """Report usage by tenant, or by the fields of --by."""
    await _show(session, "usage", flags)


@report.command("queue")
@_BY
@_flags
@bus_command
async def queue_report(session: Session, /, **flags: Any) -> None:
    """Report usage and waits by queue."""
    await _show(session, "queue", flags)


@report.command("cluster")
@_BY
@_flags
@bus_command
async def cluster_report(session: Session, /, **flags: Any) -> None:
    """Report usage by cluster."""
    await _show(session, "cluster", flags)


@report.command("job")
@click.argument("workload", required=False, default="")
@click.option(
    "--page", default="", metavar="TOKEN", help="Continue after the end of the previous list."
)
@_flags
@bus_command
async def job_report(session: Session, /, workload: str, page: str, **flags: Any) -> None:
    """List ended jobs, newest end first, or one job with its attempts."""
    await _show(session, "job", flags | {"id": workload, "page": page})


@report.command("sharing")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@form_option
@bus_command
async def sharing(session: Session, limit: int, form: Form | None) -> None:
    """Report granted and measured use of the tenant's running jobs with fractions of GPUs."""
    from berthmaster.cli.report import screen, sharing

    async with session.client() as berth:
        rows = await sharing.rows(berth, limit)
    write_list(session.out, form, rows, rows, lambda one: one.id, lambda _: screen.sharing(rows))


@report.command("interference")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@bus_command
async def interference(session: Session, limit: int) -> None:
    """Report which of the tenant's running jobs slow each other down, and which could share."""
    from berthmaster.cli.report import interference as found
    from berthmaster.cli.report import screen

    async with session.client() as berth:
        reply = await found.read(berth, limit)
    session.out.document(reply, lambda: screen.interference(reply))


@report.command("jobs")
@click.option("--like", default="", metavar="[TENANT/]JOB", help="Only jobs similar to this one.")
@_flags
@bus_command
async def jobs_report(session: Session, /, like: str, **flags: Any) -> None:
    """Summarize ended jobs: run times, waits, causes of failures."""
    own = session.target.tenant if _of_all(session, flags["mine"]) else ""
    flags["of_tenant"], workload = likened(like, flags["of_tenant"], own)
    await _show(session, "jobs", flags | {"like": workload})


def likened(like: str, of_tenant: str, own: str) -> tuple[str, str]:
    """Return tenant and id of `--like`. Without a tenant the job is of ``--of``, or of ``own``."""
    tenant, slash, workload = like.rpartition("/")
    if slash and of_tenant not in ("", tenant):
        usage(f"--of {of_tenant} or --like {like}, not both")
    return tenant or of_tenant or (own if like else ""), workload


@report.command("load")
@_flags
@bus_command
async def load_report(session: Session, /, **flags: Any) -> None:
    """Show arrivals by hour and weekday, and the calm hours of the next day."""
    await _show(session, "load", flags)


@report.command("trends")
@click.argument("span", type=click.Choice(get_args(TrendSpan)), default="day")
@click.option("--until", default="now", metavar="WHEN", help=f"End of the period: {RIGHT}.")
@click.option("--cell", default="", help="Only the resolver of this cell.")
@click.option("--mine", is_flag=True, help="Ask as a tenant, about its own waits and placements.")
@bus_command
async def trends(session: Session, span: TrendSpan, until: str, cell: str, mine: bool) -> None:
    """Show metrics over an hour, a day or a month."""
    from berthmaster.cli.report import screen

    async with session.client() as berth:
        request = TrendsRequest(
            span=span, until_s=_moment("--until", until, berth.now()), cell=cell
        )
        reply = await berth.trends(request, of_all=_of_all(session, mine))
        ascii_only = session.out.ascii_only
        session.out.document(reply, lambda: screen.trends(reply, ascii_only=ascii_only))


async def _show(session: Session, kind: ReportKind, flags: dict[str, Any]) -> None:
    from berthmaster.cli.report import screen

    form: Form | None = flags.pop("form")
    as_csv, mine = flags.pop("as_csv"), flags.pop("mine")
    if as_csv and (session.out.as_json or form not in (None, "csv")):
        usage("--csv or another form, not both")
    async with session.client() as berth:
        since_s, until_s = _period(flags, berth.now())
        request = UsageReportRequest(
            kind=kind,
            since_s=since_s,
            until_s=until_s,
            tenant=flags.pop("of_tenant"),
            group=tuple(dict.fromkeys(flags.pop("group", ()))),
            **flags,
        )
        reply = await berth.report(request, of_all=_of_all(session, mine))
    if as_csv or form == "csv":
        session.out.write(in_csv(reply).encode().rstrip(b"\n"))
        return
    if reply.summary is not None or reply.load is not None:
        session.out.document(reply, lambda: screen.report(reply))
        return
    items: list[Any] = [*reply.rows, *reply.jobs]
    keys = _keys(reply)
    write_list(
        session.out,
        form,
        reply,
        items,
        lambda one: "/".join(getattr(one, key) for key in keys),
        lambda _: screen.report(reply),
    )


def _of_all(session: Session, mine: bool) -> bool:
    """Return whether to request all tenants' usage; a tenant may only request its own."""
    return not (mine or session.target.is_tenant)


def _period(flags: dict[str, Any], now_s: float) -> tuple[float, float]:
    since, until, period = flags.pop("since"), flags.pop("until"), flags.pop("period")
    if period is None:
        return _moment("--since", since, now_s), _moment("--until", until, now_s)
    try:
        return whole(period)
    except WrongMoment as error:
        usage(f"--period: {error}")


def _moment(flag: str, text: str, now_s: float) -> float:
    try:
        return moment(text, now_s)
    except WrongMoment as error:
        usage(f"{flag}: {error}")


def in_csv(reply: "UsageReport") -> str:
    """Return the rows or jobs as CSV: one column per name, empty for unknown values."""
    found: list[Any] = [*reply.rows, *reply.jobs]
    names = _columns(reply)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    for one in found:
        writer.writerow([_cell(getattr(one, name)) for name in names])
    return text.getvalue()


def _keys(reply: "UsageReport") -> list[str]:
    """Return the columns that identify a row."""
    if reply.kind == "job":
        return ["tenant", "id"]
    return ["period" if name in ("day", "month") else name for name in reply.group]


def _columns(reply: "UsageReport") -> list[str]:
    from berthmaster.lib.messages.usage import JobUsage, UsageRow

    if reply.kind == "job":
        return [field.name for field in msgspec.structs.fields(JobUsage) if field.name != "each"]
    figures = [field.name for field in msgspec.structs.fields(UsageRow)]
    return [*_keys(reply), *(name for name in figures[figures.index("jobs") :])]


def _cell(value: object) -> object:
    if value is None:
        return ""
    if isinstance(value, tuple):
        value = " ".join(str(each) for each in value)
    return cell_text(value) if isinstance(value, str) else value
