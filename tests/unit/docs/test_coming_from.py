"""docs/users/coming-from.md: every everyday verb of other systems has its row, and each command
of `berth` exists."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.unit.docs.command_lines import fault

PAGE = (Path(__file__).parents[3] / "docs" / "users" / "coming-from.md").read_text()
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
    assert [wrong for span in typed if (wrong := fault(span))] == []


def _commands(cell: str) -> list[str]:
    text = cell.replace("\\|", "|")
    return [
        part.strip().removeprefix("xargs ")
        for span in re.findall(r"`(berth [^`]+)`", text)
        for part in span.split("|")
    ]
