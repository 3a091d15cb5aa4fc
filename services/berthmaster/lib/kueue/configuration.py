"""The parts of the Configuration of Kueue's manager that other services need. Pure.

The Configuration is text in a ConfigMap. Kueue's manager reads the text once, at its start. A later
change therefore applies here before Kueue's next restart, and in Kueue after the restart.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from berthmaster.lib.kube.objects import Object
from berthmaster.lib.runtime.plain_yaml import NotYaml, document

NAMESPACE: Final = "kueue-system"
CONFIG_MAP: Final = "kueue-manager-config"
CONFIG_FILE: Final = "controller_manager_config.yaml"
MAX_CHARS: Final = 256 * 1024
MAX_CLASSES: Final = 256  # more are dropped and reported: a fact must fit a message
MAX_NAME_CHARS: Final = 253


class ConfigMap(Object, frozen=True):
    data: dict[str, str] = msgspec.field(default_factory=dict)


class Unreadable(ValueError):
    """The ConfigMap holds no Configuration. The message is for operators."""


def configuration_in(data: Mapping[str, str]) -> dict[str, Any]:
    """Return the Configuration of a ConfigMap. Raise Unreadable."""
    text = data.get(CONFIG_FILE, "")
    if len(text) > MAX_CHARS:
        raise Unreadable(f"{CONFIG_FILE} has more than {MAX_CHARS} characters")
    try:
        told = document(text)
    except NotYaml as error:
        raise Unreadable(f"{CONFIG_FILE} is no YAML: {error}") from error
    if not isinstance(told, dict):
        raise Unreadable(f"there is no {CONFIG_FILE} in it")
    return told


def section(told: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a section, empty if missing or malformed."""
    found = told.get(name)
    return found if isinstance(found, dict) else {}


def device_classes(told: Mapping[str, Any], problems: list[str]) -> dict[str, str]:
    """Return DeviceClass -> resource in quota, from ``resources.deviceClassMappings``.

    Of a class in two mappings the first mapping counts, as in Kueue.
    """
    found: dict[str, str] = {}
    mappings = section(told, "resources").get("deviceClassMappings")
    if mappings is None:
        return found
    where = "resources.deviceClassMappings"
    if not isinstance(mappings, list):
        problems.append(f"{where} is no list")
        return found
    for at, mapping in enumerate(mappings):
        name = mapping.get("name") if isinstance(mapping, dict) else None
        classes = mapping.get("deviceClassNames") if isinstance(mapping, dict) else None
        if not _is_name(name) or not isinstance(classes, list):
            problems.append(f"{where}[{at}] has no name or no list deviceClassNames")
            continue
        for one in classes:
            if not _is_name(one):
                problems.append(f"{where}[{at}].deviceClassNames: {str(one)[:64]!r} is no name")
            elif len(found) < MAX_CLASSES:
                found.setdefault(one, str(name))
            elif one not in found:
                problems.append(f"{where}: only the first {MAX_CLASSES} classes are looked at")
                return found
    return found


def _is_name(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= MAX_NAME_CHARS
