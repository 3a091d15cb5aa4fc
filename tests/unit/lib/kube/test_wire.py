"""Lists and watches on the wire, and the mirror that they make."""

import json
import tracemalloc
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from berthmaster.lib.kube.errors import BadAnswer, Gone
from berthmaster.lib.kube.mirror import Added, Change, Deleted, Listed, Mirror, Updated
from berthmaster.lib.kube.objects import Metadata, Object, Struct
from berthmaster.lib.kube.wire import (
    LineSplitter,
    Page,
    RawPage,
    Undecodable,
    UndecodableEvent,
    WatchEvent,
    codec,
)
from tests.unit.lib.kube.stage import Spec, Widget

WIDGETS = codec(Widget)


def widget(name: str, version: int, size: int = 0, uid: str = "") -> Widget:
    meta = Metadata(
        name=name, namespace="toys", uid=uid or f"u-{name}", resource_version=str(version)
    )
    return Widget(metadata=meta, spec=Spec(size=size))


# ---------------------------------------------------------------- decoding


def test_a_page_is_decoded_as_far_as_needed() -> None:
    body = b"""{"kind": "WidgetList", "metadata": {"resourceVersion": "9", "continue": "t",
        "remainingItemCount": 4}, "items": [{"metadata": {"name": "a", "namespace": "toys",
        "uid": "u-a", "resourceVersion": "5"}, "spec": {"size": 1, "huge": []}}]}"""
    assert WIDGETS.page(body, "/p") == RawPage((widget("a", 5, 1),), (), "9", "t", 4)
    assert WIDGETS.page(b'{"items": null, "metadata": {}}', "/p") == RawPage((), (), "", "", 0)


@pytest.mark.parametrize("body", [b"", b"[]", b'{"items": 5}', b'{"items": [1', b'{"metadata": 1}'])
def test_what_is_no_list_is_told(body: bytes) -> None:
    with pytest.raises(BadAnswer, match=r"no list \(/p\)"):
        WIDGETS.page(body, "/p")


def test_an_item_without_any_form_is_told_without_a_name() -> None:
    body = b'{"metadata": {"resourceVersion": "9"}, "items": [5, {"metadata": {"name": 7}}]}'
    page = WIDGETS.page(body, "/p")
    assert page.items == ()
    assert page.undecodable == (
        Undecodable("", "", "", "Expected `object`, got `int`"),
        Undecodable("", "", "", "Expected `str`, got `int` - at `$.metadata.name`"),
    )


@pytest.mark.parametrize("spaces", ["", " ", "\t"])
def test_a_line_means_the_same_however_it_is_written(spaces: str) -> None:
    def line(kind: str, found: object, *, type_first: bool = True) -> bytes:
        event = {"type": kind, "object": found}
        pairs = list(event.items()) if type_first else list(event.items())[::-1]
        separators = (f"{spaces},", f"{spaces}:{spaces}")
        return json.dumps(dict(pairs), separators=separators).encode()

    meta = {"name": "a", "namespace": "toys", "uid": "u-a", "resourceVersion": "5"}
    empty = {"metadata": {"resourceVersion": "8"}, "spec": {"parts": None}}
    status = {"metadata": {}, "code": 410, "reason": "Expired", "message": "old"}
    for first in (True, False):
        added = WIDGETS.line(line("ADDED", {"metadata": meta}, type_first=first), "/p")
        assert added == WatchEvent("ADDED", widget("a", 5), "5")
        mark = WIDGETS.line(line("BOOKMARK", empty, type_first=first), "/p")
        assert isinstance(mark, WatchEvent)
        assert (mark.type, mark.resource_version) == ("BOOKMARK", "8")
        with pytest.raises(Gone, match="old"):
            WIDGETS.line(line("ERROR", status, type_first=first), "/p")
        bad = {"metadata": meta, "spec": {"parts": 5}}
        assert WIDGETS.line(line("DELETED", bad, type_first=first), "/p") == UndecodableEvent(
            "DELETED",
            Undecodable("toys", "a", "5", "Expected `array`, got `int` - at `$.object.spec.parts`"),
        )


@pytest.mark.parametrize(
    "line", [b"nonsense", b"[]", b"5", b'{"type":"ADDED"', b'{"type":"NEWS","object":{}}', b"{}"]
)
def test_what_is_no_line_of_a_watch_is_told(line: bytes) -> None:
    with pytest.raises(BadAnswer):
        WIDGETS.line(line, "/p")


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda raw: raw.replace(b"\n", b"")), max_size=20),
    cuts=st.lists(st.integers(0, 600), max_size=20),
)
def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    edges = sorted({0, len(whole), *(cut for cut in cuts if cut < len(whole))})
    splitter = LineSplitter()
    found = [line for start, end in pairwise(edges) for line in splitter.feed(whole[start:end])]
    assert found == [line for line in lines if line.strip()]


def test_a_line_is_bounded_however_small_its_pieces() -> None:
    splitter = LineSplitter(100)
    assert splitter.feed(b"x" * 100) == []
    with pytest.raises(BadAnswer, match="longer than 100 bytes"):
        splitter.feed(b"x")
    fresh = LineSplitter(100)
    for _ in range(50):
        assert fresh.feed(b"y" * 60 + b"\n" + b"z" * 20) != []
        assert fresh.feed(b"\n") == [b"z" * 20]


# ---------------------------------------------------------------- the mirror


def page(*found: Widget, first: bool = True, last: bool = True, version: int = 9) -> Page[Widget]:
    return Page(found, str(version), first, last)


def test_a_list_that_was_cut_short_removes_nothing() -> None:
    told: list[Change[Widget]] = []
    mirror = Mirror(told.append)
    mirror.page(page(widget("a", 1), widget("b", 2)))
    del told[:]
    mirror.page(page(widget("c", 3), last=False))  # and then the connection broke
    assert told == [Added(widget("c", 3))]
    assert {name for _, name in mirror.objects} == {"a", "b", "c"}
    mirror.page(page(widget("c", 3), last=False, version=12))
    mirror.page(page(widget("d", 4), first=False, version=12))
    assert told[1:] == [
        Added(widget("d", 4)),
        Deleted(widget("a", 1), widget("a", 1)),
        Deleted(widget("b", 2), widget("b", 2)),
        Listed("12"),
    ]
    assert mirror.resource_version == "12"


def test_what_comes_again_unchanged_is_neither_told_nor_kept_twice() -> None:
    told: list[Change[Widget]] = []
    mirror = Mirror(told.append)
    first = widget("a", 1)
    mirror.page(page(first))
    mirror.page(page(widget("a", 1)))
    mirror.event(WatchEvent("ADDED", widget("a", 1), "1"))
    assert told == [Added(first), Listed("9"), Listed("9")]
    assert mirror.objects["toys", "a"] is first


def test_a_deletion_of_what_was_never_seen_is_no_news() -> None:
    told: list[Change[Widget]] = []
    mirror = Mirror(told.append)
    mirror.event(WatchEvent("DELETED", widget("a", 4), "4"))
    assert (told, mirror.resource_version) == ([], "4")


def test_manifests_that_tools_leave_in_annotations_are_not_kept() -> None:
    mirror = Mirror[Widget](lambda change: None)
    annotations = {"tool/last-applied": "x" * 5000, "ours": "0,3"}
    mirror.page(page(Widget(metadata=Metadata(name="a", annotations=annotations))))
    kept = {"tool/last-applied": "", "ours": "0,3"}
    assert mirror.objects["", "a"].metadata.annotations == kept


def test_ten_thousand_pods_fit_into_a_few_dozen_mebibytes() -> None:
    """Of what the API sends (4 KiB a pod here, half of it managedFields) little may stay."""

    class Container(Struct, frozen=True):
        resources: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)

    class PodSpec(Struct, frozen=True):
        node_name: str = ""
        containers: tuple[Container, ...] = ()

    class Pod(Object, frozen=True):
        spec: PodSpec = PodSpec()

    def pod(number: int) -> dict[str, object]:
        fields: dict[str, object] = {f"f:{a}": {f"f:{b}": {} for b in range(8)} for a in range(14)}
        limits = {"cpu": "16", "memory": "128Gi", "nvidia.com/gpu": "8"}
        return {
            "metadata": {
                "name": f"train-{number:06}",
                "namespace": f"team-{number % 20}",
                "uid": f"{number:08x}-aaaa-bbbb-cccc-{number:012x}",
                "resourceVersion": str(number),
                "labels": {f"batch.kubernetes.io/label-{n}": f"job-{number}" for n in range(5)},
                "managedFields": [{"manager": "m", "fieldsV1": fields}] * 2,
            },
            "spec": {
                "nodeName": f"gpu-node-{number % 1000}",
                "containers": [
                    {
                        "resources": {"limits": limits, "requests": limits},
                        "env": [{"name": f"E{n}", "value": "v" * 20} for n in range(20)],
                    }
                ],
            },
        }

    decoder = codec(Pod)
    mirror = Mirror[Pod](lambda change: None)
    bodies = [
        json.dumps({"metadata": {}, "items": [pod(n) for n in range(at, at + 500)]}).encode()
        for at in (0, 500, 1000, 1500)
    ]
    assert len(bodies[0]) > 500 * 4_000
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for at, body in enumerate(bodies):
            raw = decoder.page(body, "/p")
            mirror.page(Page(raw.items, "1", at == 0, at == 3))
            del raw
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    each = (after - before) / len(mirror.objects)
    assert len(mirror.objects) == 2_000
    assert each < 3_000
    assert (peak - before) / len(mirror.objects) < 4_000  # a list costs no second copy


# Names, sizes and whether the watch or the next list tells of it.
STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["put", "drop", "list", "lose"])), max_size=30
)


@given(STEPS)
def test_mirrored_changes_add_up_to_state(steps: list[tuple[str, str]]) -> None:
    """The slow twin: a dictionary that applies what it is told must equal the server's."""
    there: dict[str, Widget] = {}
    twin: dict[str, Widget] = {}

    def hear(change: Change[Widget]) -> None:
        match change:
            case Added(found):
                assert found.metadata.name not in twin
                twin[found.metadata.name] = found
            case Updated(found, previous):
                assert twin[found.metadata.name] == previous != found
                assert previous.metadata.uid == found.metadata.uid
                twin[found.metadata.name] = found
            case Deleted(_, previous):
                assert twin.pop(previous.metadata.name) == previous
            case Listed(_):
                assert twin == there  # all that vanished was told before

    mirror = Mirror(hear)
    heard = True  # whether the watch is up
    for version, (name, step) in enumerate(steps, start=1):
        if step == "lose":
            heard = False
        elif step == "list":
            mirror.page(Page(tuple(there.values()), str(version), True, True))
            heard = True
        elif step == "put":
            old = there.get(name)
            there[name] = widget(
                name, version, version, uid=old.metadata.uid if old else f"u{version}"
            )
            if heard:
                mirror.event(WatchEvent("MODIFIED" if old else "ADDED", there[name], str(version)))
        elif (gone := there.pop(name, None)) and heard:
            mirror.event(WatchEvent("DELETED", gone, str(version)))
        if heard and step != "lose":
            assert twin == {found.metadata.name: found for found in mirror.objects.values()}
    mirror.page(Page(tuple(there.values()), "999", True, True))
    assert twin == there
