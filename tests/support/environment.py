"""Settings of a service as the variables of a manifest make them."""

import os
from collections.abc import Mapping, Sequence
from typing import TypeVar
from unittest import mock

from berthmaster.lib.runtime.settings import CommonSettings, load, unknown_variables

S = TypeVar("S", bound=CommonSettings)


def load_with(kind: type[S], service: str, env: Mapping[str, str], argv: Sequence[str] = ()) -> S:
    """Return settings by these variables beside the process's own. Each must be a setting."""
    with mock.patch.dict(os.environ, env):
        assert unknown_variables(kind, service) == []
        return load(kind, service, argv)
