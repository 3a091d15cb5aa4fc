"""What a side's pod runs, by its settings."""

from pathlib import Path

import click
import pytest

from berthmaster.runtime.settings import load
from berthmaster.supervisor import agent, hub
from berthmaster.supervisor.agent import AgentSettings
from berthmaster.supervisor.hub import HubSettings
from berthmaster.supervisor.plan import PIPELINE, Entry, KubeTarget, UpOptions, entries
from tests.support.environment import load_with


def test_an_agent_runs_all_of_it_as_one_user_of_the_bus() -> None:
    env = {"BERTH_AGENT_CLUSTER": "a/b", "BERTH_AGENT_NAMESPACES": "ml, research"}
    settings = load_with(AgentSettings, "agent", env)
    user = "agent.a=2Fb"
    where = ("--cluster", "a/b")
    assert agent.entries(settings) == [
        Entry("inventory-a=2Fb", "inventory", user, where, "a/b"),
        Entry("executor-a=2Fb", "executor", user, (*where, "--namespaces", "ml,research"), "a/b"),
        Entry("figures-a=2Fb", "figures", user, (*where, "--namespaces", "ml,research"), "a/b"),
    ]
    flags = ["--telemetry", "--kubeconfig", "/k", "--context", "c"]
    more = agent.entries(load_with(AgentSettings, "agent", env, flags))
    assert more[3] == Entry("telemetry-a=2Fb", "telemetry", user, where)
    assert more[0].flags == (*where, "--kubeconfig", "/k", "--context", "c")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--namespaces", "ml"), "'--cluster' (env var"),
        (("--cluster", "b"), "'--namespaces' (env var"),
        (("--cluster", "b", "--namespaces", ","), "between the commas is empty"),
        (("--cluster", "c" * 3000, "--namespaces", "ml"), "a name that can stand in a subject"),
    ],
)
def test_an_agent_that_cannot_be_says_which_setting(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(click.UsageError) as told:
        load(AgentSettings, "agent", flags)
    assert said in told.value.format_message()


def test_a_hub_observes_unless_it_is_told_otherwise() -> None:
    settings = load(HubSettings, "hub")
    assert hub.options(settings) == UpOptions(
        folder=Path("/data"),
        services=(*PIPELINE, "inventory", "multikueue"),
        nats_port=4222,
        hub=KubeTarget(name="hub"),
        mode="observe",
        external=("berth-hub.berth-system.svc",),
    )
    told = entries(hub.options(load_with(HubSettings, "hub", {"BERTH_HUB_MODE": "dispatch"})))
    assert told[-2:] == [
        Entry("inventory-hub", "inventory", "inventory", ("--side", "hub"), "hub"),
        Entry("multikueue", "multikueue", "multikueue", ("--mode", "dispatch"), "hub"),
    ]


def test_services_that_need_more_run_where_they_are_asked_for() -> None:
    of_hub = entries(hub.options(load(HubSettings, "hub", ("--also", "ocm"))))
    assert of_hub[-1] == Entry("ocm", "ocm", "ocm", (), "hub")
    both = entries(hub.options(load_with(HubSettings, "hub", {"BERTH_HUB_ALSO": "ocm,admission"})))
    assert both[-2:] == [of_hub[-1], Entry("admission", "admission", "admission", (), "hub")]
    file = {"BERTH_HUB_KARMADA": "/etc/berth-karmada/kubeconfig"}
    beside = entries(hub.options(load_with(HubSettings, "hub", file)))
    at = ("--kubeconfig", "/etc/berth-karmada/kubeconfig")
    assert beside[-1] == Entry("karmada", "karmada", "karmada", at, "karmada")
    flags = ("--cluster", "b", "--namespaces", "ml", "--also", "ocm")
    of_agent = agent.entries(load(AgentSettings, "agent", flags))
    assert of_agent[-1] == Entry(
        "ocm-b", "ocm", "agent.b", ("--side", "worker", "--cluster", "b"), "b"
    )
    for settings, service, needed in (
        (HubSettings, "hub", ()),
        (AgentSettings, "agent", ("--cluster", "b", "--namespaces", "ml")),
    ):
        with pytest.raises(click.UsageError, match="some of ocm"):
            load(settings, service, (*needed, "--also", "everything"))
