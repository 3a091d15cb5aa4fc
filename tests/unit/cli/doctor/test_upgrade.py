"""The next step of an upgrade, from the images of pods."""

from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from berthmaster.cli.doctor.commands import doctor
from berthmaster.cli.doctor.facts import ClusterFacts, HubFacts, WorkerFacts
from berthmaster.cli.doctor.findings import Report
from berthmaster.cli.doctor.objects import Pod, our_containers
from berthmaster.cli.doctor.upgrade import (
    OurContainer,
    Side,
    Version,
    diagnose,
    parse_version,
    version_of_image,
)

TARGET = Version(0, 2, 0)


def side(kind: type[ClusterFacts], name: str, *versions: str, ready: bool = True) -> Side:
    return Side(
        cluster=kind(name=name, context=name),
        containers=tuple(
            OurContainer(service="executor", pod="agent-1", image=f"r/x:{one}", ready=ready)
            for one in versions
        ),
    )


def hub(*versions: str, **how: Any) -> Side:
    return side(HubFacts, "hub", *versions, **how)


def agent(name: str, *versions: str, **how: Any) -> Side:
    return side(WorkerFacts, name, *versions, **how)


def said(report: Report) -> list[tuple[str, str, str]]:
    return [(one.level, one.where, one.what) for one in report.findings]


def test_agents_come_first_and_only_those_that_are_behind() -> None:
    report = diagnose(hub("0.1.0"), [agent("a", "0.2.0"), agent("b", "0.1.0")], TARGET, "ns")
    assert report.ready
    assert said(report)[-1] == ("note", "b", "next: the agent, to 0.2.0")
    change = report.findings[-1].change
    assert change.startswith("helm --kube-context b -n ns upgrade")
    assert "--set image.tag=0.2.0" in change
    assert "--set image.tag=0.1.0" in report.findings[-1].undo


def test_hub_comes_once_all_agents_run_the_version() -> None:
    agents = [agent("a", "0.2.0"), agent("b", "0.2.0")]
    report = diagnose(hub("0.1.0"), agents, TARGET, "ns")
    assert said(report)[-1] == ("note", "hub", "next: the hub, to 0.2.0")
    done = diagnose(hub("0.2.0"), agents, TARGET, "ns")
    assert said(done)[-1] == ("ok", "hub", "everything runs 0.2.0")


def test_hub_newer_than_an_agent_blocks_and_names_the_agent() -> None:
    report = diagnose(hub("0.2.0"), [agent("a", "0.2.0"), agent("b", "0.1.0")], TARGET, "ns")
    assert not report.ready
    assert said(report)[-1] == ("blocks", "b", "agent 0.1.0 is older than the hub's 0.2.0")


@pytest.mark.parametrize(
    ("agents", "what"),
    [
        (agent("a", "0.1.0", "0.2.0"), "several versions run: 0.1.0, 0.2.0"),
        (agent("a", "0.2.0", ready=False), "not ready: agent-1"),
        (agent("a", "0.0.9"), "0.0.9 is not next to 0.2.0"),
        (agent("a"), "no pod of ours in the namespace ns"),
        (
            Side(cluster=WorkerFacts(name="a", unreachable="no connection")),
            "not reachable: no connection",
        ),
    ],
)
def test_step_that_is_not_complete_blocks_the_next(agents: Side, what: str) -> None:
    report = diagnose(hub("0.1.0"), [agents], TARGET, "ns")
    assert ("blocks", "a", what) in said(report)
    assert not any("next:" in words for _, _, words in said(report))
    assert not report.ready


def test_step_back_begins_with_the_hub() -> None:
    report = diagnose(hub("0.2.0"), [agent("a", "0.2.0")], Version(0, 1, 0), "ns")
    assert said(report)[-1] == ("note", "hub", "next: the hub, back from 0.2.0 to 0.1.0")


def test_image_by_digest_alone_is_a_warning() -> None:
    nameless = Side(
        cluster=WorkerFacts(name="a"),
        containers=(OurContainer(service="door", pod="p", image="r/door@sha256:ab", ready=True),),
    )
    report = diagnose(None, [nameless], TARGET, "ns")
    assert said(report) == [("warning", "a", "no version in the image of door")]


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("localhost:5000/berth/door:0.1.0", Version(0, 1, 0)),
        ("r/door:0.1.0@sha256:0a1", Version(0, 1, 0)),
        ("r/door:v1.2.3-rc1", Version(1, 2, 3)),
        ("localhost:5000/door", None),
        ("r/door:latest", None),
    ],
)
def test_version_of_image_reads_the_tag(image: str, version: Version | None) -> None:
    assert version_of_image(image) == version


def test_parse_version_refuses_what_is_none() -> None:
    assert (parse_version("v0.2.0"), parse_version("0.2"), parse_version("")) == (
        TARGET,
        None,
        None,
    )


def test_containers_of_other_projects_and_ended_pods_are_left_out() -> None:
    def pod(phase: str) -> Pod:
        body = {
            "metadata": {"name": "hub-1"},
            "spec": {
                "containers": [
                    {"name": "gateway", "image": "r/gateway:0.1.0"},
                    {"name": "nats", "image": "nats:2.12.1"},
                ]
            },
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]},
        }
        return msgspec.convert(body, Pod)

    assert our_containers(pod("Running")) == [
        OurContainer(service="gateway", pod="hub-1", image="r/gateway:0.1.0", ready=True)
    ]
    assert our_containers(pod("Succeeded")) == []


def test_upgrade_to_no_version_is_a_wrong_command_line() -> None:
    done = CliRunner().invoke(doctor, ["--worker", "w=context-w", "--upgrade", "next"])
    assert done.exit_code == 2
    assert "--upgrade 'next': right is a version such as 0.2.0" in done.output
