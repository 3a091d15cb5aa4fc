import re

from hypothesis import given
from hypothesis import strategies as st

from berthmaster.hub.credentials.core import names

SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
LABEL = re.compile(r"[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?")
part = st.from_regex(r"\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
clusters = st.lists(part, min_size=1, max_size=8).map(".".join).filter(lambda name: len(name) < 254)


def test_a_name_that_fits_stays_as_it_is() -> None:
    assert names.hub_secret("east") == "multikueue-east"
    assert names.label("east") == "east"
    assert names.account("hub", "east").startswith("multikueue-east-")


def test_two_hubs_have_two_accounts_in_one_worker() -> None:
    assert names.account("hub-a", "east") != names.account("hub-b", "east")
    assert names.account("hub-a", "east") != names.account("hub-a", "west")


@given(clusters)
def test_whatever_the_name_what_is_made_of_it_is_one_that_the_api_takes(cluster: str) -> None:
    account = names.account("hub", cluster)
    for name, most in (
        (names.hub_secret(cluster), names.MAX_NAME),
        (account, names.MAX_ACCOUNT),
        (names.bound(account, names.serial(1.7e9)), names.MAX_NAME),
    ):
        assert len(name) <= most
        assert SUBDOMAIN.fullmatch(name), name
    assert len(names.label(cluster)) <= names.MAX_LABEL
    assert LABEL.fullmatch(names.label(cluster))


def test_long_names_that_begin_alike_stay_apart() -> None:
    one, other = "x" * 250 + ".aa", "x" * 250 + ".ab"
    assert names.hub_secret(one) != names.hub_secret(other)
    assert names.label(one) != names.label(other)
    assert names.account("hub", one) != names.account("hub", other)


def test_serials_sort_by_time() -> None:
    times = [0.0, 1.0, 1.001, 9.9e8, 1.7e9, 1.7e9 + 0.001, 4.1e9]
    serials = [names.serial(at_s) for at_s in times]
    assert serials == sorted(set(serials))


def test_parts_of_a_fingerprint_cannot_run_into_each_other() -> None:
    assert names.digest("ab", "c") != names.digest("a", "bc")
