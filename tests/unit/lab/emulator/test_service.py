from pathlib import Path

import click
import pytest

from berthmaster.lab.emulator.service import EmulatorSettings, fleet_of, nature_of
from berthmaster.lib.runtime.errors import CannotStart
from berthmaster.lib.runtime.settings import load


def settings(*flags: str) -> EmulatorSettings:
    return load(EmulatorSettings, "emulator", flags)


def test_fleet_of_with_a_part_gives_each_cluster_to_one_process() -> None:
    parts = [fleet_of(settings("--part", f"{k}/2", "--nodes", "100")) for k in (1, 2)]
    whole = fleet_of(settings("--nodes", "100"))
    named = [{cluster.name for cluster in part} for part in parts]
    assert named[0] | named[1] == {cluster.name for cluster in whole}
    assert not named[0] & named[1]


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b", "1/0"])
def test_fleet_of_with_a_part_that_cannot_be_says_what_is_right(part: str) -> None:
    with pytest.raises(CannotStart, match="right is K/N with K from 1 to N"):
        fleet_of(settings("--part", part))


def test_fleet_of_with_more_parts_than_clusters_is_refused() -> None:
    with pytest.raises(CannotStart, match="the fleet has 2 clusters"):
        fleet_of(settings("--part", "1/3", "--clusters", "2"))


def test_a_fleet_that_cannot_be_is_refused_with_what_would_be_right(tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="8 nodes make 1 to 8"):
        fleet_of(settings("--nodes", "8", "--clusters", "9"))
    with pytest.raises(CannotStart, match="cannot read the node list"):
        fleet_of(settings("--fleet", str(tmp_path / "none.csv")))
    with pytest.raises(click.UsageError, match="is not in the range"):
        settings("--speed", "0")


def test_the_openb_list_is_taken_from_the_folder_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "openb").mkdir()
    listed = "sn,cpu_milli,memory_mib,gpu,model\nx,1000,1000,1,T4\ny,1000,1000,1,T4\n"
    (tmp_path / "openb" / "openb_node_list_gpu_node.csv").write_text(listed)
    monkeypatch.setenv("BERTH_TRACES", str(tmp_path))
    fleet = fleet_of(settings("--fleet", "openb", "--clusters", "1"))
    assert [(cluster.name, len(cluster.nodes)) for cluster in fleet] == [("t4", 2)]


def test_no_disturbance_means_none() -> None:
    nature = nature_of(settings("--disturbance", "0", "--foreign-share", "0"))
    assert (nature.dead_gpu_share, nature.gpu_deaths_per_hour) == (0, 0)
    assert (nature.node_flaps_per_hour, nature.foreign_share) == (0, 0)
