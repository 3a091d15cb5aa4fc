import hashlib
import json

import pytest

from berthmaster.control.dashboard.core.access import (
    ANYBODY,
    Doorkeeper,
    People,
    PeopleError,
    Person,
    Refused,
    Shown,
    is_loopback,
    network_problem,
    read_people,
)


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


PEOPLE = read_people(
    json.dumps(
        {
            "people": [
                {"name": "ada", "role": "operator", "acts": True, "token_sha256": [digest("a")]},
                {"name": "bob", "role": "tenant", "tenants": ["acme"], "acts": True},
                {"name": "*", "role": "watcher"},
            ]
        }
    ).encode()
)
ADA = Person("ada", "operator", frozenset(), True)
BOB = Person("bob", "tenant", frozenset({"acme"}), True)


def test_a_token_a_proxys_word_or_nobody() -> None:
    keeper = Doorkeeper(PEOPLE, proxies=["10.0.0.0/24"])
    assert keeper.who(Shown("192.0.2.1", token="a"), 0.0) == ADA
    assert keeper.who(Shown("10.0.0.7", identity="bob"), 0.0) == BOB
    assert keeper.who(Shown("10.0.0.7", identity="zoe"), 0.0) == Person(
        "zoe", "watcher", frozenset(), False
    )
    # The same word from anybody else counts for nothing.
    assert isinstance(keeper.who(Shown("10.0.1.7", identity="bob"), 0.0), Refused)
    assert isinstance(keeper.who(Shown("", identity="bob"), 0.0), Refused)
    open_to_all = Doorkeeper(People(), anybody=True)
    assert open_to_all.who(Shown("127.0.0.1", identity="bob"), 0.0) == ANYBODY
    assert (ADA.may_change("acme"), ADA.may_cordon) == (True, True)
    assert (BOB.may_change("acme"), BOB.may_change("rival"), BOB.may_cordon) == (True, False, False)
    assert not ANYBODY.may_change("acme")


def test_an_address_that_guesses_waits_and_nobody_else() -> None:
    keeper = Doorkeeper(PEOPLE)
    wrong = [keeper.who(Shown("192.0.2.1", token=f"guess-{n}"), 0.0) for n in range(11)]
    assert [each.again_s > 0 for each in wrong if isinstance(each, Refused)] == [False] * 10 + [
        True
    ]
    assert isinstance(keeper.who(Shown("192.0.2.1", token="a"), 1.0), Refused)
    assert keeper.who(Shown("192.0.2.2", token="a"), 1.0) == ADA
    assert keeper.who(Shown("192.0.2.1", token="a"), 6.5) == ADA
    assert isinstance(keeper.who(Shown("192.0.2.3", token="x" * 5_000), 0.0), Refused)


@pytest.mark.parametrize(
    ("people", "said"),
    [
        ([{"name": "a", "role": "king"}], "role"),
        ([{"name": "a", "role": "tenant"}], "names none"),
        ([{"name": "a", "role": "watcher", "tenants": ["x"]}], "names tenants"),
        ([{"name": "a", "role": "watcher", "acts": True}], "a watcher does not act"),
        ([{"name": "*", "role": "operator", "acts": True}], "'*'"),
        ([{"name": "a", "role": "watcher"}] * 2, "twice"),
        ([{"name": "a", "role": "watcher", "token": "secret"}], "unknown field"),
        ([{"name": "a", "role": "watcher", "token_sha256": ["secret"]}], "token_sha256"),
    ],
)
def test_a_file_of_people_that_is_wrong_is_told_where(people: list[object], said: str) -> None:
    with pytest.raises(PeopleError, match=said) as told:
        read_people(json.dumps({"people": people}).encode())
    assert "secret" not in str(told.value)


def test_addresses() -> None:
    assert network_problem(["10.0.0.7", "fd00::/8"]) == ""
    assert "proxy.example.org" in network_problem(["proxy.example.org"])
    hosts = ("127.0.0.1", "::1", "localhost", "0.0.0.0", "10.0.0.1")
    assert [is_loopback(host) for host in hosts] == [True, True, True, False, False]
