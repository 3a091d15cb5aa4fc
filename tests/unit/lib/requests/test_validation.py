"""What strangers send, and the whole reply that they get."""

import json
import string
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from berthmaster.lib.messages import explain
from berthmaster.lib.messages.api import Refusal
from berthmaster.lib.messages.control import QueueSetting
from berthmaster.lib.messages.families import JOB_REQUESTS
from berthmaster.lib.messages.workload import MAX_PODS, JobRequest, PodSet
from berthmaster.lib.requests import validation

ID_WORDS = "1 to 52 lower-case letters, digits or '-', the first and the last a letter or digit"
RUNTIME_WORDS = (
    "1 to 63 lower-case letters, digits or '-', the first and the last a letter or digit"
)
NAME_WORDS = "1 to 63 lower-case letters, digits or '-', the first and the last a letter or digit"
FIELDS = ", ".join(JobRequest.__struct_fields__)
POD_FIELDS = ", ".join(PodSet.__struct_fields__)
JSON = "one JSON object (RFC 8259, UTF-8)"
FINITE = "a finite number (JSON has no NaN and no Infinity)"
DEEP = f"{JSON} without such deep nesting"
PROFILE_WORDS = '"balanced", "pack", "spread", "soonest", "cheapest"'
PART_WORDS = (
    '"fit", "room", "idle", "interference", "wait", "price", "locality", "tier", "headroom"'
)


def malformed(field: str, value: str, expected: str) -> Refusal:
    return Refusal(code="malformed", field=field, value=value, expected=expected)


def invalid(field: str, value: str, expected: str) -> Refusal:
    return Refusal(code="invalid", field=field, value=value, expected=expected)


BAD: dict[str, tuple[bytes, Refusal]] = {
    "the id of a part": (
        b'{"id":"a--1-0"}',
        invalid(
            "id",
            '"a--1-0"',
            "an id that does not end as those of parts of divided jobs do: --<number>-<number>",
        ),
    ),
    "a long id of a job that is divided": (
        json.dumps({"id": "a" * 41, "pod_sets": [{"count": 2}], "divide": {}}).encode(),
        invalid("id", f'"{"a" * 41}"', "at most 40 characters, as the job may be divided (divide)"),
    ),
    "a way to divide that there is not": (
        b'{"id":"a","pod_sets":[{"count":2}],"divide":{"by":"luck"}}',
        invalid("divide.by", '"luck"', 'one of "room", "weight"'),
    ),
    "a part that is larger than all": (
        b'{"id":"a","pod_sets":[{"count":2}],"divide":{"min_part":3}}',
        invalid("divide.min_part", "3", "at most count, which is 2"),
    ),
    "several pod sets that are divided": (
        b'{"id":"a","pod_sets":[{"count":2},{"name":"b"}],"divide":{}}',
        invalid(
            "divide", '"by room"', "nothing: of a job with several pod sets none can be divided"
        ),
    ),
    "an elastic job that is divided": (
        b'{"id":"a","pod_sets":[{"count":2,"min_count":1}],"divide":{}}',
        invalid(
            "divide",
            '"by room"',
            "nothing: a job whose number of pods changes (min_count, max_count) stays together",
        ),
    ),
    "a slice of TPUs that is divided": (
        b'{"id":"a","pod_sets":[{"count":2,"tpus":4,"tpu_topology":"2x4"}],"divide":{}}',
        invalid("divide", '"by room"', "nothing: the pods make one slice 2x4 (tpu_topology)"),
    ),
    "one place that is divided": (
        b'{"id":"a","pod_sets":[{"count":2,"topology":{"same":"zone"}}],"divide":{}}',
        invalid(
            "divide", '"by room"', "nothing: all pods are to be in one place (topology.same zone)"
        ),
    ),
    "weights of what is divided by room": (
        b'{"id":"a","pod_sets":[{"count":2}],"divide":{"weights":{"c1":1}}}',
        invalid("divide.weights", '"1 clusters"', "nothing, as by is room"),
    ),
    "a weight of a cluster that will not do": (
        (
            b'{"id":"a","clusters":["c1"],"pod_sets":[{"count":2}],"divide":'
            b'{"by":"weight","weights":{"c2":1}}}'
        ),
        invalid("divide.weights", '"c2"', "one of clusters: c1"),
    ),
    "an address of pods that need none": (
        b'{"id":"a","pod_sets":[{"count":2}],"divide":{"gang":false,"address":"a.example"}}',
        invalid(
            "divide.address",
            '"a.example"',
            "nothing, as gang is false: pods that need no others need no address of theirs",
        ),
    ),
    "nothing": (b"", malformed("", "", f"{JSON}; it ends too early")),
    "half of it": (b'{"id":"a"', malformed("", '{"id":"a"', f"{JSON}; it ends too early")),
    "no JSON": (b"run my job", malformed("", "run my job", f"{JSON}; at byte 0")),
    "something behind it": (b'{"id":"a"}x', malformed("", '{"id":"a"}x', f"{JSON}; at byte 11")),
    "another encoding": (b'{"id":"\xff"}', malformed("", '{"id":"\\xff"}', "UTF-8 (at byte 7)")),
    "a list": (b"[]", invalid("", "[]", f"an object with the fields {FIELDS}")),
    "null": (b"null", invalid("", "null", f"an object with the fields {FIELDS}")),
    "NaN": (
        b'{"id":"a","expected_duration_s":NaN}',
        malformed("expected_duration_s", "NaN", FINITE),
    ),
    "infinity": (
        b'{"id":"a","pod_sets":[{"gpus":-Infinity}]}',
        malformed("pod_sets[0].gpus", "-Infinity", FINITE),
    ),
    "a number beyond all floats": (
        b'{"id":"a","deadline_s":1e999}',
        malformed("deadline_s", "Infinity", FINITE),
    ),
    "half a character": (
        b'{"id":"a","clusters":["\\ud800"]}',
        malformed("clusters[0]", "'\\ud800'", "whole Unicode characters, no lone surrogates"),
    ),
    "deep nesting": (b'{"id":' + b"[" * 60_000, malformed("", '{"id":' + "[" * 74, DEEP)),
    "an id twice": (
        b'{"id":"a","id":"b"}',
        malformed("id", '"id"', "each name once in an object, this one too"),
    ),
    "an id twice, once in other letters": (
        b'{"id":"a", "\\u0069d":"a"}',
        malformed("id", '"id"', "each name once in an object, this one too"),
    ),
    "a variable twice": (
        b'{"id":"a","run":{"env":{"A":"1","B":"2","A":"3"}}}',
        malformed("A", '"A"', "each name once in an object, this one too"),
    ),
    "no id": (b"{}", invalid("id", "(missing)", f"{ID_WORDS} (required)")),
    "a runtime without a name": (
        b'{"id":"a","runtime":{"parameters":{}}}',
        invalid("runtime.name", "(missing)", f"{RUNTIME_WORDS} (required)"),
    ),
    "an unknown field of a runtime": (
        b'{"id":"a","runtime":{"nam":"torch"}}',
        invalid("runtime.nam", '"torch"', "no field of this name; did you mean name?"),
    ),
    "an id in capitals": (b'{"id":"Train"}', invalid("id", '"Train"', ID_WORDS)),
    "an id with a line end": (b'{"id":"a\\n"}', invalid("id", '"a\\n"', ID_WORDS)),
    "an id with dots": (b'{"id":"a.b"}', invalid("id", '"a.b"', ID_WORDS)),
    "a long id": (b'{"id":"%s"}' % (b"a" * 200), invalid("id", '"' + "a" * 78 + "…", ID_WORDS)),
    "an id of another type": (b'{"id":7}', invalid("id", "7", ID_WORDS)),
    "a queue's name": (b'{"id":"a","queue":""}', invalid("queue", '""', NAME_WORDS)),
    "an unknown field": (
        b'{"id":"a","priorty":1}',
        invalid("priorty", "1", "no field of this name; did you mean priority?"),
    ),
    "a field that belongs further in": (
        b'{"id":"a","gpus":1}',
        invalid("gpus", "1", "no field of this name; did you mean pod_sets[0].gpus?"),
    ),
    "an unknown field like no other": (
        b'{"id":"a","zzz":[1,2]}',
        invalid("zzz", "[1,2]", f"no field of this name; the fields are {FIELDS}"),
    ),
    "an unknown field further in": (
        b'{"id":"a","pod_sets":[{},{"name":"b","gpu":1}]}',
        invalid("pod_sets[1].gpu", "1", "no field of this name; did you mean gpus?"),
    ),
    "a negative amount": (
        b'{"id":"a","pod_sets":[{"gpus":-1}]}',
        invalid("pod_sets[0].gpus", "-1", "a whole number from 0 to 64"),
    ),
    "an absurd amount": (
        b'{"id":"a","pod_sets":[{"count":99999999999999999999999999}]}',
        invalid("pod_sets[0].count", "99999999999999999999999999", "a whole number from 1 to 4096"),
    ),
    "half a GPU as a fraction": (
        b'{"id":"a","pod_sets":[{"gpus":0.5}]}',
        invalid("pod_sets[0].gpus", "0.5", "a whole number from 0 to 64"),
    ),
    "an amount as text": (
        b'{"id":"a","pod_sets":[{"memory_mib":"4Gi"}]}',
        invalid("pod_sets[0].memory_mib", '"4Gi"', "a whole number from 0 to 1073741824"),
    ),
    "no pod sets": (
        b'{"id":"a","pod_sets":[]}',
        invalid(
            "pod_sets", "[]", f"a list of 1 to 16, each an object with the fields {POD_FIELDS}"
        ),
    ),
    "no time at all": (
        b'{"id":"a","deadline_s":0}',
        invalid("deadline_s", "0", "a number greater than 0 and at most 31536000, or null"),
    ),
    "a choice that there is not": (
        b'{"id":"a","pod_sets":[{"tolerations":[{"operator":"Like"}]}]}',
        invalid("pod_sets[0].tolerations[0].operator", '"Like"', 'one of "Equal", "Exists"'),
    ),
    "a label that is no text": (
        b'{"id":"a","labels":{"ok":"x","gpu.model":{"v":100}}}',
        invalid('labels["gpu.model"]', '{"v":100}', "text of at most 316 characters"),
    ),
    "a name of a label that is too long": (
        b'{"id":"a","labels":{"%s":"x"}}' % (b"n" * 317),
        invalid(
            "labels." + "n" * 192 + "…",
            '"' + "n" * 78 + "…",
            "as a name there: text of at most 316 characters",
        ),
    ),
    "too many labels": (
        json.dumps({"id": "a", "labels": {f"{n:02}": "" for n in range(65)}}).encode(),
        invalid(
            "labels",
            '{"00":"","01":"","02":"","03":"","04":"","05":"","06":"","07":"","08":"","09":"…',
            "an object of at most 64 names and texts: text of at most 316 characters",
        ),
    ),
    "a variable that is no text": (
        b'{"id":"a","run":{"env":{"N":1}}}',
        invalid("run.env.N", "1", "text in quotes"),
    ),
    "two pod sets of one name": (
        b'{"id":"a","pod_sets":[{"name":"w"},{"name":"x"},{"name":"w"}]}',
        invalid("pod_sets[2].name", '"w"', "a name that is not used yet; pod_sets[0] has this one"),
    ),
    "part of no GPU": (
        b'{"id":"a","pod_sets":[{"gpu_milli":500}]}',
        invalid(
            "pod_sets[0].gpu_milli",
            "500",
            "1000, as gpus is 0: only a pod with one GPU can ask for part of it",
        ),
    ),
    "parts of several GPUs": (
        b'{"id":"a","pod_sets":[{"gpus":2,"gpu_milli":500}]}',
        invalid(
            "pod_sets[0].gpu_milli",
            "500",
            "1000, as gpus is 2: only a pod with one GPU can ask for part of it",
        ),
    ),
    "more pods than a placement can name": (
        b'{"id":"a","pod_sets":[{"count":4096},{"name":"b"}]}',
        invalid(
            "pod_sets[1].count", "1", "at most 4096 pods in all pod sets together; these make 4097"
        ),
    ),
    "a profile that nobody knows": (
        b'{"id":"a","profile":"fastest"}',
        invalid("profile", '"fastest"', f"one of {PROFILE_WORDS}"),
    ),
    "a weight of no part": (
        b'{"id":"a","weights":{"fit":1,"speed":2}}',
        invalid("weights.speed", '"speed"', f"as a name there one of {PART_WORDS}"),
    ),
    "a weight beyond what one can be": (
        b'{"id":"a","weights":{"fit":1,"price":-10.5}}',
        invalid("weights.price", "-10.5", "a number from -10 to 10"),
    ),
    "a weight that is no number": (
        b'{"id":"a","weights":{"room":true}}',
        invalid("weights.room", "true", "a number from -10 to 10"),
    ),
    "weights that are no object": (
        b'{"id":"a","weights":[1]}',
        invalid(
            "weights", "[1]", "an object of at most 32 names and numbers: a number from -10 to 10"
        ),
    ),
    "data at no place": (
        b'{"id":"a","data":["berlin","=eu"]}',
        invalid(
            "data[1]", '"=eu"', "a cluster's name, or a label or property of clusters as key=value"
        ),
    ),
    "too much": (
        b'{"id":"a","labels":{"x":"%s"}}' % (b"y" * 2_000_000),
        Refusal(code="too_large", field="", value="2000028 bytes", expected="at most 262144 bytes"),
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_job_request_is_refused_with_field_value_and_what_is_right(case: str) -> None:
    data, reply = BAD[case]
    assert validation.job_request(data) == reply


@pytest.mark.parametrize(
    "body",
    [
        b'{"id":"a"}',
        b'{"id":"a","pod_sets":[{"gpus":1,"gpu_milli":1}]}',
        b'{"id":"a","pod_sets":[{"gpus":8,"gpu_models":["no-cluster-has-this"]}]}',
        b'{"id":"a","pod_sets":[{"count":4096}]}',
        b' {"id": "a", "clusters": ["eu west.1"]} ',
        b'{"id":"a","profile":"cheapest","weights":{"fit":-10,"price":10},"data":["eu","a=b"]}',
    ],
)
def test_a_good_job_request_is_taken_as_it_is(body: bytes) -> None:
    assert validation.job_request(body) == JOB_REQUESTS.decode(body)


class Pairs(list[tuple[str, Any]]):
    """An object as it is written, a name twice included."""


def written(value: Any, blank: str) -> str:
    match value:
        case Pairs():
            inner = [f"{written(key, blank)}:{blank}{written(each, blank)}" for key, each in value]
            return f"{{{','.join(inner)}}}"
        case list():
            return f"[{blank}{','.join(written(each, blank) for each in value)}]"
        case _:
            return json.dumps(value, ensure_ascii=bool(blank))


def has_twice(value: Any) -> bool:
    match value:
        case Pairs():
            names = [name for name, _ in value]
            return len(names) > len(set(names)) or any(has_twice(each) for _, each in value)
        case list():
            return any(map(has_twice, value))
        case _:
            return False


@given(
    st.recursive(
        st.integers() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(st.tuples(st.sampled_from("abé"), inner), max_size=3).map(Pairs)
        ),
        max_leaves=8,
    ),
    st.sampled_from(["", " "]),
)
def test_a_name_is_told_as_there_twice_when_it_is_and_never_else(value: Any, blank: str) -> None:
    body = written(value, blank).encode()
    assert (explain.twice_named(body, msgspec.json.decode(body)) is not None) == has_twice(value)


def test_the_largest_request_is_taken_and_one_byte_more_is_not() -> None:
    body = b'{"id":"a"}'
    most = body + b" " * (explain.MAX_REQUEST_BYTES - len(body))
    assert validation.job_request(most) == JobRequest(id="a")
    assert validation.job_request(most + b" ") == Refusal(
        code="too_large", field="", value="262145 bytes", expected="at most 262144 bytes"
    )


OTHERS = {
    "cancel": validation.cancel_request,
    "reprioritize": validation.reprioritize_request,
    "get": validation.get_request,
    "list": validation.list_request,
    "cordon": validation.cordon_request,
    "lost": validation.lost_request,
    "queue": validation.queue_setting,
}


@pytest.mark.parametrize(
    ("verb", "body", "reply"),
    [
        ("cancel", b"{}", invalid("id", "(missing)", f"{ID_WORDS} (required)")),
        (
            "cancel",
            b'{"id":"a","raeson":"x"}',
            invalid("raeson", '"x"', "no field of this name; did you mean reason?"),
        ),
        (
            "reprioritize",
            b'{"id":"a","priority":1000001}',
            invalid("priority", "1000001", "a whole number from -999999 to 1000000"),
        ),
        ("get", b'{"id":"a","story":1}', invalid("story", "1", "true or false")),
        ("list", b'{"limit":0}', invalid("limit", "0", "a whole number from 1 to 1000")),
        (
            "list",
            b'{"states":["queued","lost"]}',
            invalid(
                "states[1]",
                '"lost"',
                'one of "admitted", "cancelled", "claimed", "failed", "placed", "queued", '
                '"running", "succeeded"',
            ),
        ),
        ("cordon", b'{"cluster":""}', invalid("cluster", '""', "text of 1 to 253 characters")),
        (
            "cordon",
            json.dumps({"cluster": "a", "node": "é" * 200}).encode(),
            invalid(
                "node", '"' + "é" * 78 + "…", "a name that fits a subject: 512 characters encoded"
            ),
        ),
        (
            "lost",
            b'{"cluster":"a"}',
            invalid("reason", "(missing)", "text of 1 to 1024 characters (required)"),
        ),
        ("queue", b'{"queue":"A B"}', invalid("queue", '"A B"', NAME_WORDS)),
        (
            "queue",
            b'{"queue":"a","profile":"Pack"}',
            invalid("profile", '"Pack"', f"one of {PROFILE_WORDS}"),
        ),
        (
            "queue",
            b'{"queue":"a","weights":{"Fit":1}}',
            invalid("weights.Fit", '"Fit"', f"as a name there one of {PART_WORDS}"),
        ),
        (
            "queue",
            b'{"queue":"a","weights":{"fit":11}}',
            invalid("weights.fit", "11", "a number from -10 to 10"),
        ),
        (
            "queue",
            b'{"type":"control.queue.v1","queue":"a","wieght":2}',
            invalid("wieght", "2", "no field of this name; did you mean weight?"),
        ),
        (
            "queue",
            b'{"queue":"a","tenants":["ok","not ok"]}',
            invalid("tenants[1]", '"not ok"', NAME_WORDS),
        ),
        (
            "queue",
            b'{"queue":"a","weight":0}',
            invalid("weight", "0", "a number greater than 0 and at most 1000000"),
        ),
        (
            "queue",
            b'{"queue":"a","guarantee_gpu_milli":2000,"capability_gpu_milli":1000}',
            invalid("guarantee_gpu_milli", "2000", "at most capability_gpu_milli, which is 1000"),
        ),
        (
            "queue",
            b'{"queue":"a","deserved_gpu_milli":2000,"guarantee_gpu_milli":2001}',
            invalid("guarantee_gpu_milli", "2001", "at most deserved_gpu_milli, which is 2000"),
        ),
        (
            "queue",
            b'{"queue":"a","resources":{"gpu/H100":{"deserved":9,"capability":8}}}',
            invalid('resources["gpu/H100"].deserved', "9", "at most capability, which is 8"),
        ),
        (
            "queue",
            b'{"queue":"a","resources":{"H100":{"capability":8}}}',
            invalid(
                "resources",
                '"H100"',
                '"cpu" (milli), "memory" (MiB), "gpu/<model>" (milli), such as "gpu/H100", or an '
                'extended resource that pods ask for by "resources" or "tpus", such as "rdma/hca"',
            ),
        ),
        (
            "queue",
            json.dumps({"queue": "a", "resources": {f"gpu/m{n}": {} for n in range(65)}}).encode(),
            invalid("resources", '"65 resources"', "at most 64 resources"),
        ),
        (
            "queue",
            b'{"queue":"a","resources":{"cpu":{"capability":-1}}}',
            invalid(
                "resources.cpu.capability",
                "-1",
                "a whole number from 0 to 1125899906842624, or null",
            ),
        ),
        (
            "queue",
            b'{"queue":"a","max_running_jobs":-1}',
            invalid("max_running_jobs", "-1", "a whole number of at least 0, or null"),
        ),
        (
            "queue",
            b'{"queue":"a","places":{"c1":{"namespace":""}}}',
            invalid("places.c1.namespace", '""', NAME_WORDS),
        ),
        (
            "queue",
            b'{"queue":"a","places":{"*":{"service_account":"Not A Name"}}}',
            invalid('places["*"].service_account', '"Not A Name"', NAME_WORDS),
        ),
        (
            "queue",
            b'{"queue":"a","via":"hub","places":{"hub":{"local_queue":"gpu/t4"}}}',
            invalid("places.hub.local_queue", '"gpu/t4"', NAME_WORDS),
        ),
        (
            "queue",
            json.dumps({"queue": "a", "places": {f"c{n}": {} for n in range(1001)}}).encode(),
            invalid(
                "places", '"1001 places"', 'at most 1000 clusters; "*" stands for every other one'
            ),
        ),
        (
            "queue",
            b'{"queue":"default","deleted":true}',
            invalid("deleted", "true", 'false: the queue "default" always exists; hold it'),
        ),
    ],
)
def test_other_bad_request_is_refused(verb: str, body: bytes, reply: Refusal) -> None:
    assert OTHERS[verb](body) == reply


def test_a_cluster_may_be_called_with_dots_and_spaces() -> None:
    asked = validation.cordon_request('{"cluster":"eu west.1 ☃"}'.encode())
    assert not isinstance(asked, Refusal)
    assert asked.cluster == "eu west.1 ☃"


@pytest.mark.parametrize(
    "body",
    [
        {"queue": "default"},
        {"queue": "research", "deleted": True},
        {"queue": "a", "set_by": "b" * 256},
    ],
)
def test_what_a_queue_may_just_be_told(body: dict[str, object]) -> None:
    assert validation.queue_setting(json.dumps(body).encode()) == msgspec.convert(
        body, QueueSetting
    )


@pytest.mark.parametrize("tenant", ["", "A", "a.b", "-a", "a-", "a" * 64, "ä", "a\n", "=ZZ"])
def test_a_tenant_that_is_no_name_is_refused(tenant: str) -> None:
    assert validation.tenant_refusal(tenant) == Refusal(
        code="invalid",
        field="",
        value=ascii(tenant),
        expected=f"as the subject's third token a tenant's name: {NAME_WORDS}",
    )


JUNK = st.one_of(
    st.binary(max_size=200),
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=10),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from([*JobRequest.__struct_fields__, *PodSet.__struct_fields__])
                | st.text(max_size=5),
                inner,
                max_size=5,
            )
        ),
        max_leaves=12,
    ).map(lambda value: json.dumps(value).encode()),
)


@settings(max_examples=300, deadline=None)
@given(JUNK)
def test_whatever_is_sent_leads_to_a_request_or_a_refusal_that_travels(data: bytes) -> None:
    for check in (validation.job_request, *OTHERS.values()):
        result = check(data)
        if isinstance(result, Refusal):
            assert len(msgspec.json.encode(result)) < 4096
            assert result.expected


names = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)
texts = st.text(st.characters(codec="utf-8"), max_size=12)
pod_sets = st.builds(
    PodSet,
    name=names,
    count=st.integers(1, 300),
    cpu_milli=st.integers(0, 10_000_000),
    gpus=st.integers(0, 64),
    gpu_milli=st.integers(1, 1000),
    gpu_models=st.lists(names, max_size=3).map(tuple),
    node_labels=st.dictionaries(names, st.just("") | names, max_size=3),
)
requests = st.builds(
    JobRequest,
    id=names,
    queue=names,
    priority=st.integers(-1_000_000, 1_000_000),
    pod_sets=st.lists(pod_sets, min_size=1, max_size=4).map(tuple),
    labels=st.dictionaries(texts, texts, max_size=3),
    expected_duration_s=st.none() | st.floats(0, 31_536_000, exclude_min=True),
)


@settings(max_examples=200, deadline=None)
@given(requests)
def test_what_the_messages_take_is_refused_only_by_a_stated_rule(request: JobRequest) -> None:
    result = validation.job_request(msgspec.json.encode(request))
    sets = request.pod_sets
    breaks_a_rule = (
        len({p.name for p in sets}) < len(sets)
        or any(p.gpu_milli < 1000 and p.gpus != 1 for p in sets)
        or sum(p.count for p in sets) > MAX_PODS
    )
    if breaks_a_rule:
        assert isinstance(result, Refusal)
        assert result.code == "invalid"
    else:
        assert result == request


@pytest.mark.parametrize(
    ("resource", "taken"),
    [
        ("rdma/hca", True),
        ("google.com/tpu", True),
        ("huawei.com/Ascend910", True),
        ("nvidia.com/gpu", False),
        ("nvidia.com/mig-1g.10gb", False),
        ("nvidia.com/gpu.shared", False),
        ("kubernetes.io/x", False),
        ("rdma", False),
    ],
)
def test_queue_limits_extended_resources_by_name(resource: str, taken: bool) -> None:
    """GPUs, slices and shares of them count as GPUs, by other fields."""
    body = json.dumps({"queue": "a", "resources": {resource: {"capability": 4}}}).encode()
    assert isinstance(OTHERS["queue"](body), QueueSetting) == taken
