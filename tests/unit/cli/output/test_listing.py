"""Lists in every form, in every order, and as local times."""

import time
from collections.abc import Iterator

import click
import msgspec
import pytest
import yaml

from berthmaster.cli.fleet import screen as fleet
from berthmaster.cli.job import screen as workloads
from berthmaster.cli.job.commands import SORTS, in_sort
from berthmaster.cli.main import berth
from berthmaster.cli.output import amounts
from berthmaster.cli.output.listing import FORMS, as_csv, as_yaml, write_list
from berthmaster.cli.problems import screen as problems
from berthmaster.cli.problems.commands import DeadRow
from berthmaster.cli.session import Output
from berthmaster.client.following import SeenDead
from berthmaster.lib.messages.api import GpusReply, GpuStock, ListReply, WorkloadView
from berthmaster.lib.messages.records import DeadLetter
from tests.unit.cli.screens import screen

OLD = WorkloadView(
    tenant="ann", id="old", state="running", queue="night", priority=5, gpus=2.0, pods=1,
    cluster="berlin", submitted_at_s=1000.0, changed_at_s=1500.0, set="sweep",
    labels={"team": "a,b", "note": "=1+1"}, gpu_models=("T4", "A100"), attempt=2,
)  # fmt: skip
NEW = WorkloadView(
    tenant="bob", id="new", state="queued", queue="=cmd()", gpus=8.0, submitted_at_s=2000.0
)
REPLY = ListReply(workloads=(NEW, OLD), counts={"running": 1, "queued": 1})


def test_csv_has_a_line_for_each_and_nothing_that_a_spreadsheet_runs() -> None:
    header, first, second = as_csv(REPLY.workloads).splitlines()
    assert header.split(",") == list(WorkloadView.__struct_fields__)
    assert first.startswith("bob,new,queued,'=cmd(),0,")
    assert '"{""team"":""a,b"",""note"":""=1+1""}"' in second
    assert '"[""T4"",""A100""]"' in second


def test_yaml_is_the_same_as_json() -> None:
    plain = msgspec.json.decode(msgspec.json.encode(REPLY))
    assert yaml.safe_load(as_yaml(REPLY)) == plain
    assert as_yaml(REPLY).startswith("type: api.workloads.v1\n")


def test_names_alone_can_forge_no_line(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    evil = msgspec.structs.replace(NEW, id="a\n\x1b[2Jb")
    out = Output(as_json=False)
    write_list(out, "name", REPLY, (evil, OLD), lambda v: v.id, lambda _: "")
    assert capfdbinary.readouterr().out == b"a\\n\\x1b[2Jb\nold\n"
    write_list(
        out,
        "wide",
        REPLY,
        REPLY.workloads,
        lambda v: v.id,
        lambda wide: workloads.jobs(REPLY, 2600.0, wide=wide),
    )
    table = capfdbinary.readouterr().out.decode().splitlines()
    assert table[0].split()[-1] == "REASON"  # not folded, however narrow the terminal is
    write_list(out, "json", REPLY, (), lambda v: v.id, lambda _: "")
    assert msgspec.json.decode(capfdbinary.readouterr().out, type=ListReply) == REPLY


def test_a_wide_list_and_one_of_all_tenants_have_more_columns() -> None:
    assert screen(workloads.jobs(REPLY, 2600.0, wide=True, all_tenants=True), 150) == (
        "TENANT  ID   STATE    GPUS  PODS  QUEUE   PRIO  CLUSTER  AGE  CHANGED  TRIES  SET    "
        "LABELS              MODELS      REASON\n"
        "bob     new  queued      8     -  =cmd()     0  -        10m        -      0  -      "
        "-                   -           -\n"
        "ann     old  running     2     1  night      5  berlin   26m      18m      2  sweep  "
        "team=a,b,note==1+1  T4 or A100  -\n"
        "\n"
        "In all: 1 running · 1 queued."
    )


@pytest.mark.parametrize(
    ("sort", "first"),
    [("age", "new"), ("-age", "old"), ("name", "new"), ("gpus", "new"), ("-gpus", "old"),
     ("priority", "old"), ("state", "new"), ("tenant", "old"), ("changed", "old"),
     ("queue", "new"), ("cluster", "new")],
)  # fmt: skip
def test_a_page_is_put_in_order(sort: str, first: str) -> None:
    assert in_sort(REPLY, sort).workloads[0].id == first
    assert sort.removeprefix("-") in SORTS


def test_times_are_those_of_whoever_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-3")
    time.tzset()
    try:
        assert amounts.moment(1_700_000_000.0) == "2023-11-15 01:13:20 XYZ"
        assert (amounts.clock(1_700_000_000.5), amounts.zone(0.0)) == ("01:13:20.500", "XYZ")
    finally:
        monkeypatch.undo()
        time.tzset()


def test_gpus_are_told_with_their_wait_and_price() -> None:
    reply = GpusReply(
        models=(
            GpuStock(
                model="Tesla-T4", memory_mib=15_360, clusters=3, gpus=8, open_gpus=6,
                free_gpu_milli=4500, free_gpus=4, most_on_a_node=2, expected_wait_s=0.0,
                price_least=0.5, price_most=0.75,
            ),
            GpuStock(model="H100", gpus=8, expected_wait_s=4000.0, price_least=4, price_most=4),
            GpuStock(model="A100", gpus=8, why_not="the queue 'night' allows: T4, H100"),
            GpuStock(model="L4", gpus=1),
        ),
        waiting=3,
    )  # fmt: skip
    assert screen(fleet.gpu_models(reply)) == (
        "MODEL        FREE  TOTAL    WAIT   PRICE/H\n"
        "Tesla-T4  4 + 0.5      8    none  0.5-0.75\n"
        "H100            0      8  ~1h06m         4\n"
        "A100            0      8   never         -\n"
        "L4              0      1       ?         -\n"
        "\n"
        "A100: the queue 'night' allows: T4, H100\n"
        "WAIT is as if jobs ended as they state, or as similar jobs did, and no other\n"
        "came; 3 pending jobs in all."
    )
    assert "NODE MAX  OPEN  CLUSTERS  MEMORY" in screen(fleet.gpu_models(reply, wide=True))


def _commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[str, click.Command]]:
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        if isinstance(command, click.Group):
            yield from _commands(command, (*path, name))
        elif command is not None:
            yield " ".join((*path, name)), command


def test_every_command_that_lists_does_so_in_every_form() -> None:
    forms = {
        name: tuple(param.type.choices)
        for name, command in _commands(berth)
        for param in command.params
        if param.name == "form" and isinstance(param.type, click.Choice)
    }
    lists = {
        name
        for name, command in _commands(berth)
        if name.endswith("list") or (command.help or "").startswith("List ")
    }
    assert len(lists) > 8
    others = {
        f"report {kind}" for kind in ("usage", "queue", "cluster", "job", "jobs", "load", "sharing")
    }
    assert set(forms) == lists | others | {"cluster credentials", "top"}
    assert set(forms.values()) == {FORMS}


def test_dead_letters_are_listed_in_every_form() -> None:
    letter = DeadLetter(
        service="scorer", subject="berth.x", reason="=bad", at_s=1.0, body=b"\xff{" + b"x" * 300
    )
    seen = SeenDead(sequence=7, stored_at_s=2.0, letter=letter)
    header, line = as_csv([DeadRow.of(seen)]).splitlines()
    assert header == "sequence,stored_at_s,service,subject,workload,reason,body"
    assert line.startswith("7,2.0,scorer,berth.x,,'=bad,\N{REPLACEMENT CHARACTER}{xx")
    assert "…" in screen(problems.dead([seen], 3.0))
    assert "x" * 300 in screen(problems.dead([seen], 3.0, wide=True), width=2000)
