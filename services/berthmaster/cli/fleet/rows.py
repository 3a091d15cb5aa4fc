"""The clusters of the fleet as rows of commands."""

from berthmaster.client import Client
from berthmaster.lib.engine.fleetview.rows import ClusterRow, FleetView


async def fleet_rows(berth: Client) -> list[ClusterRow]:
    """Return one row per cluster, with its newest score and its cordons. Raises BerthError."""
    view = FleetView()
    for seen in await berth.fleet():
        view.take(seen)
    view.set_control(await berth.control())
    return view.rows(berth.now())
