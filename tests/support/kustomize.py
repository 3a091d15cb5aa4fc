"""What deploy/kubernetes comes to, without kustomize: resources of resources, components with
patches, and image tags.

Only what our files use; anything else in a kustomization.yaml is an error here, so that a test that
applies them does not apply something else than people do. Where kubectl is, a test compares both.
"""

from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
KNOWN = {"apiVersion", "kind", "resources", "components", "images"}
KNOWN_OF_A_COMPONENT = {"apiVersion", "kind", "resources", "patches", "images"}
# What an item of a list is known by in a patch; items without one of these take the list's place.
MERGED_BY = ("mountPath", "name")


def render(folder: Path, *components: Path) -> list[Manifest]:
    """All objects of a kustomization with these components, in order."""
    told = _told(folder, KNOWN)
    found: list[Manifest] = []
    for name in told["resources"]:
        path = folder / name
        found += render(path) if path.is_dir() else documents(path)
    own = (folder / name for name in told.get("components", ()))
    for component in (*own, *components):
        parts = _told(component, KNOWN_OF_A_COMPONENT)
        more = parts.get("resources", ())
        found += [each for name in more for each in documents(component / name)]
        for patch in parts["patches"]:
            for change in documents(component / patch["path"]):
                [meant] = [each for each in found if _identity(each) == _identity(change)]
                _merge(meant, change)
        _tag(found, parts)
    names = [_identity(one) for one in found]
    if len(set(names)) != len(names):
        raise ValueError(f"{folder}: an object stands in it twice")
    _tag(found, told)
    return found


def _tag(objects: list[Manifest], told: Manifest) -> None:
    tags = {image["name"]: image["newTag"] for image in told.get("images", ())}
    for one in objects:
        pod = one.get("spec", {}).get("template", {}).get("spec", {})
        for container in (*pod.get("initContainers", ()), *pod.get("containers", ())):
            if container["image"] in tags:
                container["image"] += f":{tags[container['image']]}"


def documents(path: Path) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(path.read_text()) if each]


def _told(folder: Path, known: set[str]) -> Manifest:
    told: Manifest = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(told) - known:
        raise ValueError(f"{folder}: {', '.join(sorted(unknown))} is not understood here")
    return told


def _identity(one: Manifest) -> tuple[str, str]:
    return one["kind"], one["metadata"]["name"]


def _merge(whole: Manifest, change: Manifest) -> None:
    """As a strategic merge does it: fields of objects, and items of lists by their names."""
    for name, value in change.items():
        if isinstance(value, dict) and isinstance(whole.get(name), dict):
            _merge(whole[name], value)
        elif isinstance(value, list) and whole.get(name) and (key := _key(value)):
            gone = {each[key] for each in value if each.get("$patch") == "delete"}
            value = [each for each in value if each[key] not in gone]
            whole[name] = [each for each in whole[name] if each[key] not in gone]
            items = {each[key]: each for each in whole[name]}
            added = [each for each in value if each[key] not in items]
            for each in value:
                _merge(items.get(each[key], {}), each)
            whole[name] = [*added, *whole[name]]
        else:
            whole[name] = value


def _key(items: list[Any]) -> str:
    return next((key for key in MERGED_BY if all(key in each for each in items)), "")
