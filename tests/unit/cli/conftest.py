"""Screens show local times: here the zone is the same wherever the tests run."""

import os
import time
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _in_utc() -> Iterator[None]:
    before = os.environ.get("TZ")
    os.environ["TZ"] = "UTC"
    time.tzset()
    yield
    if before is None:
        del os.environ["TZ"]
    else:
        os.environ["TZ"] = before
    time.tzset()
