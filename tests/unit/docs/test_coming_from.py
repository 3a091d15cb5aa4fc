"""docs/coming-from.md: every everyday verb of the others has its row, and what it says to type is
there."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest

from berthmaster.cli.main import berth

PAGE = (Path(__file__).parents[3] / "docs" / "coming-from.md").read_text()
# As their own command lines list them: armadactl (2026), SkyPilot 0.12, kueuectl 0.19.
VERBS: Final = {
    "Armada": (
        "submit, watch, cancel job, cancel job-set, cancel executor, cancel node, cancel queues, "
        "preempt job, preempt executor, preempt node, preempt queues, reprioritize job, "
        "reprioritize job-set, create queue, update queue, delete queue, get queue, get queues, "
        "job-report, scheduling-report, queue-report, create retry-policy, get retry-policies, "
        "cordon queue, uncordon queue, cordon executor, uncordon executor, config get-contexts, "
        "config use-context, config current-context, version, docs"
    ),
    "SkyPilot": (
        "launch, exec, status, queue, logs, cancel, stop, start, down, autostop, check, "
        "cost-report, show-gpus, gpus list, jobs launch, jobs queue, jobs cancel, jobs logs, "
        "jobs pool apply, serve up, serve down, serve status, serve update, serve logs, "
        "storage ls, storage delete, volumes apply, volumes ls, volumes delete, dashboard, "
        "api start, api stop, api login, api logout, api info, api status, api logs, api cancel, "
        "local up, local down, ssh up, ssh down"
    ),
    "kueuectl": (
        "create clusterqueue, create localqueue, create resourceflavor, list clusterqueue, "
        "list localqueue, list workload, list resourceflavor, list pods, stop workload, "
        "resume workload, stop clusterqueue, resume clusterqueue, stop localqueue, "
        "resume localqueue, delete workload, describe workload, get workload, edit clusterqueue, "
        "patch clusterqueue, delete clusterqueue, delete localqueue, version, completion"
    ),
}


def _rows(title: str) -> Iterator[tuple[str, str]]:
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    for line in section.splitlines():
        there, _, here = line.removeprefix("| ").removesuffix(" |").partition(" | ")
        if line.startswith("| ") and here:
            yield there, here


@pytest.mark.parametrize("title", VERBS)
def test_every_verb_has_its_row(title: str) -> None:
    named = [span for there, _ in _rows(title) for span in re.findall(r"`([^`]+)`", there)]
    missing = [
        verb
        for verb in VERBS[title].split(", ")
        if not any(span == verb or span.startswith(f"{verb} ") for span in named)
    ]
    assert missing == []


def test_what_is_to_be_typed_is_there() -> None:
    titles = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    typed = [span for title in titles for _, here in _rows(title) for span in _commands(here)]
    assert len(typed) > 80
    assert [fault for span in typed if (fault := _fault(span))] == []


def _commands(cell: str) -> list[str]:
    text = cell.replace("\\|", "|")
    return [
        part.strip().removeprefix("xargs ")
        for span in re.findall(r"`(berth [^`]+)`", text)
        for part in span.split("|")
    ]


def _fault(typed: str) -> str:
    """What of a command line is not there; "" = all of it is."""
    command: click.Command = berth
    context = click.Context(berth)
    for word in shlex.split(typed)[1:]:
        if word == "--":
            break
        if word.startswith("-"):
            flags = {flag for each in command.get_params(context) for flag in _flags(each)}
            if word not in flags:
                return f"{typed}: {command.name} has no {word}"
        elif isinstance(command, click.Group) and word.islower():
            found = command.get_command(context, word)
            if found is None:
                return f"{typed}: there is no {word}"
            command, context = found, click.Context(found)
    return ""


def _flags(param: click.Parameter) -> list[str]:
    return [*param.opts, *param.secondary_opts]
