"""What is used of kubernetes_asyncio, without the rest: importing this imports no class of a kind.

Its package imports a module for each kind and each group of Kubernetes' API, 768, before any of its
own can be had: 0.2 s of a core and 34 MiB in each process. Objects are raw here, so none of them is
ever looked at. The packages that do so are put in their places without being run. Who asks one of
them for a name that is not there yet gets it all the same: from the module that has it, or by
running the package then. Others of ours import the library from here, so that this comes first.
"""

import importlib
import sys
from importlib.util import find_spec, module_from_spec
from typing import Any, Final

_LATER: Final[dict[str, dict[str, str]]] = {  # package: {a name that it gives: the module of it}
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
        if attribute.startswith("__"):  # asked by the import system, of what a module may lack
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
    if _name not in sys.modules:  # else it is paid for already
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
