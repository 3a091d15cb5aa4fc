"""MultiKueue's objects as services read them, with everything missing too."""

import msgspec
import pytest

from berthmaster.lib.kube.objects import Object
from berthmaster.lib.kueue.multikueue import (
    AdmissionCheck,
    AdmissionCheckSpec,
    KubeConfig,
    MultiKueueCluster,
    MultiKueueConfig,
    Parameters,
)
from berthmaster.lib.kueue.names import CHECK_CONTROLLER, MULTIKUEUE

OCM = "cluster.open-cluster-management.io"
BY_PLACEMENT = Parameters(api_group=OCM, kind="Placement", name="where")
BY_LABELS = Parameters(api_group="core", kind="ConfigMap", name="where")
CONFIGURED = Parameters(api_group="kueue.x-k8s.io", kind="MultiKueueConfig", name="all")


def decoded(text: str) -> tuple[AdmissionCheck, MultiKueueConfig, MultiKueueCluster]:
    kinds: tuple[type[Object], ...] = (AdmissionCheck, MultiKueueConfig, MultiKueueCluster)
    check, config, cluster = (msgspec.json.decode(text, type=kind) for kind in kinds)
    assert isinstance(check, AdmissionCheck)
    assert isinstance(config, MultiKueueConfig)
    assert isinstance(cluster, MultiKueueCluster)
    return check, config, cluster


@pytest.mark.parametrize(
    ("controller", "parameters", "whose"),
    [
        (CHECK_CONTROLLER, BY_PLACEMENT, "placement"),
        (CHECK_CONTROLLER, None, "placement"),  # who says that it is wrong
        (CHECK_CONTROLLER, CONFIGURED, "placement"),
        (CHECK_CONTROLLER, BY_LABELS, "dispatcher"),
        ("open-cluster-management.io/placement", BY_PLACEMENT, ""),
        (MULTIKUEUE, CONFIGURED, ""),
        (MULTIKUEUE, BY_LABELS, ""),
    ],
)
def test_a_check_of_ours_is_for_one_of_two_and_anybody_elses_for_none(
    controller: str, parameters: Parameters | None, whose: str
) -> None:
    spec = AdmissionCheckSpec(controller_name=controller, parameters=parameters)
    check = AdmissionCheck(spec=spec)
    found = (check.for_placement, check.for_dispatcher)
    assert found == (whose == "placement", whose == "dispatcher")


def test_only_a_check_of_multikueues_names_a_configuration() -> None:
    def config(controller: str, parameters: Parameters | None) -> str:
        spec = AdmissionCheckSpec(controller_name=controller, parameters=parameters)
        return AdmissionCheck(spec=spec).config

    assert config(MULTIKUEUE, CONFIGURED) == "all"
    assert config(MULTIKUEUE, None) == ""
    assert config(CHECK_CONTROLLER, BY_PLACEMENT) == ""


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"spec": {}, "status": {}}',
        '{"spec": {"parameters": null, "clusters": null, "clusterSource": null}, "status": null}',
        '{"spec": {"clusterSource": {"kubeConfig": null}}, "status": {"conditions": null}}',
    ],
)
def test_what_is_left_out_or_null_is_no_error(text: str) -> None:
    check, config, cluster = decoded(text)
    assert (check.config, check.condition("Active")) == ("", None)
    assert (config.clusters, config.draining) == ((), ())
    assert (cluster.kube_config, cluster.connected, cluster.fleet_name) == (None, False, "")


def test_a_cluster_is_called_in_the_fleet_what_its_annotation_says() -> None:
    _, _, plain = decoded('{"metadata": {"name": "a"}}')
    assert plain.fleet_name == "a"
    notes = '{"berthmaster.io/cluster": "b"}'
    _, _, named = decoded('{"metadata": {"name": "a", "annotations": ' + notes + "}}")
    assert named.fleet_name == "b"


def test_a_cluster_is_connected_when_kueue_says_so() -> None:
    source = (
        '"spec": {"clusterSource": {"kubeConfig": {"location": "s", "locationType": "Secret"}}}'
    )
    for status in ("True", "False", "Unknown"):
        said = '"status": {"conditions": [{"type": "Active", "status": "' + status + '"}]}'
        _, _, cluster = decoded("{" + source + ", " + said + "}")
        assert cluster.kube_config == KubeConfig(location="s", location_type="Secret")
        assert cluster.connected is (status == "True")


def test_who_leaves_a_configuration_stands_in_its_annotation() -> None:
    notes = '"annotations": {"berthmaster.io/draining": "a,,c"}'
    _, config, _ = decoded('{"metadata": {' + notes + '}, "spec": {"clusters": ["b", "a", "c"]}}')
    assert (config.clusters, config.draining) == (("b", "a", "c"), ("a", "c"))
