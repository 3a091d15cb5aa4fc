"""services.py is the only list of services: what must repeat a part of it agrees with it."""

import re
from typing import Final

import yaml

from berthmaster.lib.access import permissions
from berthmaster.lib.supervisor.hub_folder import USERS
from berthmaster.services import SERVICES
from scripts import services
from scripts.schema_tools import asyncapi
from tests.support.chart import CHART, DEPLOY

WITHOUT_BUS: Final = {"clearing", "credentials", "placement", "shares"}
# Users and writers that are no service.
PEOPLE: Final = {"tenant", "viewer", "agent"}
OTHERS: Final = {"tenant", "nats-server", "berth recover"}


def test_every_service_on_the_bus_is_a_user() -> None:
    on_bus = SERVICES.keys() - WITHOUT_BUS
    whole, parts = permissions.SERVICES.keys() - {"setup"}, permissions.PART_ROLES.keys() - PEOPLE
    assert whole | parts == on_bus
    # A service of one worker cluster has a user there, and no other service has.
    assert parts == {name for name in on_bus if SERVICES[name].side == "worker"}


def test_keys_of_a_hub_are_for_users_that_are_known() -> None:
    assert set(USERS) <= permissions.WHOLE_ROLES.keys()


def test_chart_gives_each_container_the_port_of_its_row() -> None:
    table = yaml.safe_load((CHART / "services.yaml").read_text())
    found = {name: each["port"] for side in ("hub", "worker") for name, each in table[side].items()}
    ports = {row.name: row.port for row in SERVICES.values() if row.port}
    assert found | {"accounts": ports["accounts"]} == ports
    assert len(set(ports.values())) == len(ports)


def test_dockerfile_has_a_target_for_each_service() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert set(re.findall(r'^ENTRYPOINT \["berth", "serve", "(\w+)"', text, re.MULTILINE)) == set(
        SERVICES
    )


def test_docs_tables_are_those_of_the_rows() -> None:
    stale = [page.name for page, text in services.pages().items() if page.read_text() != text]
    assert stale == [], "run `python -m scripts.services`"


def test_asyncapi_names_no_service_that_is_none() -> None:
    named = {party for each in asyncapi.channels() for party in (*each.senders, *each.receivers)}
    assert named <= SERVICES.keys() | OTHERS
