"""What deploy/kubernetes comes to, without kustomize: resources of resources, and image tags.

Only what our files use; anything else in a kustomization.yaml is an error here, so that a test that
applies them does not apply something else than people do. Where kubectl is, a test compares both.
"""

from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]
KNOWN = {"apiVersion", "kind", "resources", "images"}


def render(folder: Path) -> list[Manifest]:
    """All objects of a kustomization, in order."""
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    if unknown := set(told) - KNOWN:
        raise ValueError(f"{folder}: {', '.join(sorted(unknown))} is not understood here")
    found: list[Manifest] = []
    for name in told["resources"]:
        path = folder / name
        found += render(path) if path.is_dir() else documents(path)
    names = [(one["kind"], one["metadata"]["name"]) for one in found]
    if len(set(names)) != len(names):
        raise ValueError(f"{folder}: an object stands in it twice")
    tags = {image["name"]: image["newTag"] for image in told.get("images", ())}
    for one in found:
        pod = one.get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers", ()):
            if container["image"] in tags:
                container["image"] += f":{tags[container['image']]}"
    return found


def documents(path: Path) -> list[Manifest]:
    """The objects of one file."""
    return [each for each in yaml.safe_load_all(path.read_text()) if each]
