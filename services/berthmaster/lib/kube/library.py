"""The parts of kubernetes_asyncio in use, imported without the classes of the API's kinds.

The library's package imports 768 modules, one for each kind and group of the API, before any other
name is available. That costs 0.2 s of a core and 34 MiB in each process. Berthmaster decodes
objects itself and uses none of these classes.

This module therefore registers the packages without running them. A missing name is imported from
the module that defines the name, or else by running the package. All other modules import the
library from here, so that the registration comes first.
"""

import importlib
import sys
from importlib.util import find_spec, module_from_spec
from typing import Any, Final

_LATER: Final[dict[str, dict[str, str]]] = {  # package: {exported name: its module}
    "kubernetes_asyncio": {},
    "kubernetes_asyncio.client": {
        "ApiClient": "kubernetes_asyncio.client.api_client",
        "Configuration": "kubernetes_asyncio.client.configuration",
    },
    "kubernetes_asyncio.client.models": {},
}


def _put(name: str, known: dict[str, str]) -> None:
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    module, loader = module_from_spec(spec), spec.loader

    def given(attribute: str) -> Any:
        if attribute in known:
            return getattr(importlib.import_module(known[attribute]), attribute)
        if attribute.startswith("__"):  # the import system looks up optional attributes
            raise AttributeError(attribute)
        vars(module).pop("__getattr__", None)
        loader.exec_module(module)
        return getattr(module, attribute)

    vars(module)["__getattr__"] = given
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)


for _name, _known in _LATER.items():
    if _name not in sys.modules:  # else the package was imported already
        _put(_name, _known)

from kubernetes_asyncio.client.configuration import Configuration
from kubernetes_asyncio.client.rest import RESTClientObject
from kubernetes_asyncio.config.config_exception import ConfigException
from kubernetes_asyncio.config.exec_provider import ExecProvider
from kubernetes_asyncio.config.incluster_config import load_incluster_config
from kubernetes_asyncio.config.kube_config import ConfigNode, KubeConfigLoader

__all__ = [
    "ConfigException",
    "ConfigNode",
    "Configuration",
    "ExecProvider",
    "KubeConfigLoader",
    "RESTClientObject",
    "load_incluster_config",
]
