"""What is read of the configuration of Kueue's manager."""

import pytest

from berthmaster.lib.kueue.configuration import (
    CONFIG_FILE,
    MAX_CHARS,
    MAX_CLASSES,
    Unreadable,
    configuration_in,
    device_classes,
)

MAPPED = """
resources:
  deviceClassMappings:
  - name: example.com/gpus
    deviceClassNames: [gpu.nvidia.com, gpu.amd.com]
  - name: example.com/slices
    deviceClassNames: [mig.nvidia.com]
    sources: [{counter: {name: memory, driver: gpu.nvidia.com}}]
  - name: example.com/late
    deviceClassNames: [gpu.nvidia.com, late]
"""


def classes(text: str) -> tuple[dict[str, str], list[str]]:
    problems: list[str] = []
    return device_classes(configuration_in({CONFIG_FILE: text}), problems), problems


def test_each_class_is_counted_as_the_first_resource_that_names_it() -> None:
    assert classes(MAPPED) == (
        {
            "gpu.nvidia.com": "example.com/gpus",
            "gpu.amd.com": "example.com/gpus",
            "mig.nvidia.com": "example.com/slices",
            "late": "example.com/late",
        },
        [],
    )
    assert classes("kind: Configuration") == ({}, [])
    assert classes("resources: null") == ({}, [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{}", "resources.deviceClassMappings is no list"),
        ("[x]", "resources.deviceClassMappings[0] has no name or no list deviceClassNames"),
        ("[{name: a}]", "resources.deviceClassMappings[0] has no name or no list deviceClassNames"),
        (
            "[{name: 7, deviceClassNames: [x]}]",
            "resources.deviceClassMappings[0] has no name or no list deviceClassNames",
        ),
        (
            "[{name: a, deviceClassNames: [7]}]",
            "resources.deviceClassMappings[0].deviceClassNames: '7' is no name",
        ),
        (
            f"[{{name: a, deviceClassNames: {[f'c{n}' for n in range(MAX_CLASSES + 2)]}}}]",
            f"resources.deviceClassMappings: only the first {MAX_CLASSES} classes are looked at",
        ),
    ],
)
def test_nonsense_is_told_and_the_rest_is_read(text: str, problem: str) -> None:
    found, problems = classes(f"resources: {{deviceClassMappings: {text}}}")
    assert problems == [problem]
    assert len(found) <= MAX_CLASSES


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({}, f"there is no {CONFIG_FILE} in it"),
        ({CONFIG_FILE: "- a"}, f"there is no {CONFIG_FILE} in it"),
        ({CONFIG_FILE: "a: ["}, f"{CONFIG_FILE} is no YAML"),
        ({CONFIG_FILE: "a: 2026-99-99"}, f"{CONFIG_FILE} is no YAML"),
        ({CONFIG_FILE: "#" * (MAX_CHARS + 1)}, f"{CONFIG_FILE} has more than {MAX_CHARS}"),
    ],
)
def test_what_is_no_configuration_is_named(data: dict[str, str], why: str) -> None:
    with pytest.raises(Unreadable, match=r".*") as caught:
        configuration_in(data)
    assert str(caught.value).startswith(why)
