import base64

import msgspec

from berthmaster.hub.credentials.core import manifests, names
from berthmaster.hub.credentials.core.credentials import Credentials
from berthmaster.hub.credentials.core.errors import StillListed
from berthmaster.hub.credentials.core.index import ACCOUNT
from berthmaster.hub.credentials.core.instructions import (
    Adopt,
    Check,
    Look,
    Mint,
    Prepare,
    Publish,
    Register,
    Sweep,
    Unregister,
)
from berthmaster.hub.credentials.core.objects import (
    ClusterPermission,
    ManagedServiceAccount,
    Secret,
)
from berthmaster.hub.credentials.core.observed import Minted, Refused
from berthmaster.hub.credentials.core.rights import DEFAULT_FRAMEWORKS, rules
from berthmaster.hub.credentials.core.stages import Stage
from berthmaster.lib.kube.controller.shell_contract import KubeEvent
from berthmaster.lib.kube.errors import Forbidden, Unauthorized
from berthmaster.lib.kube.managed_clusters import ManagedCluster
from berthmaster.lib.kube.resources import CLUSTER_PROFILES
from tests.unit.hub.credentials.world import (
    CLUSTER,
    GRACE_S,
    HERE,
    LIFE_S,
    THERE,
    TIMES,
    World,
    book,
    bootstrap,
    failed,
    make,
    profile,
    secret_body,
)


def reasons(world: World) -> list[str]:
    found = [event.reason for event in world.events]
    world.events.clear()
    return found


def held() -> World:
    world = World()
    world.know()
    world.give(bootstrap())
    world.settle()
    reasons(world)
    return world


def test_a_cluster_gets_its_access_in_four_steps_and_then_rests() -> None:
    world = World()
    world.know()
    assert world.settle() == []
    assert reasons(world) == ["NoBootstrapSecret"]

    source = bootstrap()
    world.give(source)
    assert world.settle() == ["Prepare", "Mint", "Publish", "Register"]
    assert reasons(world) == ["CredentialsIssued"]
    assert world.works()
    assert world.token() == "secret"

    # Nothing more to do until the token is to be checked.
    assert world.core.wake_at_s() == world.now_s + TIMES.check_s
    world.later(TIMES.check_s)
    assert world.act() == [Check(CLUSTER, world.serial)]


def test_each_step_says_what_it_rests_on() -> None:
    world = World()
    world.know()
    source = bootstrap()
    world.give(source)
    [prepare] = world.act()
    assert prepare == Prepare(CLUSTER, source)
    assert world.act() == []  # one step a cluster at a time
    world.done(prepare, world.do(prepare))
    [mint] = world.act()
    assert mint == Mint(CLUSTER, source, names.serial(world.now_s))
    answer = world.do(mint)
    minted = answer.found
    assert isinstance(minted, Minted)
    world.done(mint, answer)
    [publish] = world.act()
    assert publish == Publish(CLUSTER, HERE, minted, "", None)
    world.done(publish, world.do(publish))
    assert world.act() == [Register(CLUSTER, None)]


def test_a_token_is_renewed_at_two_thirds_and_the_old_one_lives_through_its_grace() -> None:
    world = held()
    first = world.serial
    world.later(LIFE_S * 2 / 3 - 1)
    assert world.settle() == ["Check"]
    world.later(1.5)
    assert world.settle() == ["Mint", "Publish"]
    assert reasons(world) == ["CredentialsRotated"]
    second = world.serial
    assert second != first
    assert set(world.worker.bound) == {first, second}

    world.later(GRACE_S - 2)
    assert world.settle() == []
    world.later(3)
    assert world.act() == [Sweep(CLUSTER, bootstrap(), (first,))]
    world.settle()
    assert set(world.worker.bound) == {second}


def test_renewal_that_fails_keeps_the_token_tries_again_ever_later_and_says_so_each_time() -> None:
    world = held()
    before = world.serial
    world.later(LIFE_S * 0.7)
    world.worker.away = True
    assert world.settle() == ["Mint", "Prepare"]  # what is there now, nobody knows
    world.events.clear()
    pauses = []
    for _ in range(8):
        pauses.append(world.core.wake_at_s() - world.now_s)
        world.later(pauses[-1])
        assert world.settle() == ["Prepare"]
        assert world.works()
        [tell] = world.events
        assert tell.reason == "CredentialsRotationFailed"
        assert "no answer; the token that Kueue has works for another" in tell.note
        world.events.clear()
    assert pauses == sorted(pauses)
    assert 0.7 <= pauses[0] <= 1.0
    assert 45 <= pauses[-1] <= 60
    [shown] = world.core.statuses(world.now_s)
    assert (shown.failing, shown.usable) == (True, True)
    assert shown.message == "no answer"

    # It answers: all is well again.
    world.worker.away = False
    world.later(60)
    world.settle()
    assert world.serial != before
    assert not world.core.statuses(world.now_s)[0].failing


def test_a_new_bootstrap_secret_ends_the_pause_of_what_failed_with_the_old() -> None:
    world = World()
    world.know()
    world.give(bootstrap())
    [step] = world.act()
    world.steps.clear()
    world.done(step, failed("unknown", Unauthorized))
    assert world.act() == []
    fresh = bootstrap(version="2")
    world.give(fresh)
    assert world.act() == [Prepare(CLUSTER, fresh)]


def test_new_ocm_token_ends_pause() -> None:
    world = World()
    world.know()
    index = world.core.index
    index.uses_managed = True
    at_east = [{"url": HERE.server, "caBundle": base64.b64encode(HERE.ca).decode()}]
    spec = {"hubAcceptsClient": True, "managedClusterClientConfigs": at_east}
    index.put(make(ManagedCluster, {"metadata": {"name": CLUSTER}, "spec": spec}))
    wanted = manifests.permission(CLUSTER, manifests.permission_spec(rules(DEFAULT_FRAMEWORKS)))
    account = manifests.managed_account(CLUSTER, "24h0m0s")
    for body in (wanted, account):
        body["metadata"]["namespace"] = CLUSTER
    index.put(make(ClusterPermission, wanted))
    index.put(make(ManagedServiceAccount, account))

    def bring(token: str) -> None:
        meta = {"name": ACCOUNT, "namespace": CLUSTER}
        data = {"token": base64.b64encode(token.encode()).decode()}
        world.core.touched(index.token(make(Secret, {"metadata": meta, "data": data})))

    bring("first")
    [step] = world.act()
    world.steps.clear()
    assert isinstance(step, Adopt)
    world.done(step, failed("unknown", Unauthorized))
    assert world.act() == []
    bring("first")
    assert world.act() == []
    bring("second")
    [step] = world.act()
    assert isinstance(step, Adopt)
    assert step.token.text == "second"


def test_removal_takes_the_registration_first_then_revokes_then_forgets() -> None:
    world = held()
    world.know(False)
    assert world.settle() == ["Unregister", "Revoke", "Forget"]
    assert (world.secret, world.registered) == (None, None)
    assert (world.worker.bound, world.worker.account) == ({}, False)
    assert reasons(world) == ["CredentialsRevoked"]
    assert world.core.statuses(world.now_s) == []


def test_removal_with_the_bootstrap_secret_gone_in_the_same_moment_still_revokes() -> None:
    world = held()
    world.give(None)
    world.know(False)
    assert world.settle() == ["Unregister", "Revoke", "Forget"]
    assert world.workers[HERE.fingerprint].bound == {}


def test_a_listed_cluster_keeps_its_access_and_its_renewals_until_it_is_drained() -> None:
    world = held()
    world.list_it()
    world.know(False)
    world.settle()
    assert reasons(world) == ["CredentialsDraining"]
    [shown] = world.core.statuses(world.now_s)
    assert (shown.draining, shown.usable) == (True, True)
    before = world.serial
    world.later(LIFE_S * 0.7)
    world.settle()
    assert world.serial != before
    assert world.works()

    world.list_it(False)
    assert world.settle() == ["Unregister", "Revoke", "Forget"]


def test_listed_a_moment_before_its_end_it_is_kept() -> None:
    world = held()
    world.know(False)
    [step] = world.act()
    assert isinstance(step, Unregister)
    world.steps.clear()
    world.done(step, failed("MultiKueueConfig all lists it", StillListed))
    assert reasons(world) == ["CredentialsDraining"]
    world.list_it()
    world.settle()
    assert world.registered is not None
    assert world.works()


def test_away_at_its_removal_it_is_cut_off_on_the_hub_and_revoked_when_it_is_back() -> None:
    world = held()
    world.worker.away = True
    world.know(False)
    assert world.settle() == ["Unregister", "Revoke", "Empty"]
    assert world.serial == ""
    assert world.secret is not None
    world.workers[HERE.fingerprint].away = False
    world.later(100)
    assert world.settle() == ["Revoke", "Forget"]


def test_what_nobody_can_revoke_is_out_of_reach_at_once_and_forgotten_when_it_has_expired() -> None:
    world = held()
    world.give(None)
    world.know(False)
    world.restart()  # and with it goes the way in
    assert world.settle() == ["Unregister", "Empty"]
    assert reasons(world)[-1] == "CredentialsLinger"
    world.later(LIFE_S + 1)
    assert world.settle() == ["Forget"]


def test_a_new_life_asks_what_is_there_and_sweeps_what_nobody_uses() -> None:
    world = held()
    world.worker.bound["000000000001"] = world.now_s  # minted by a life that was killed
    world.restart()
    assert world.settle() == ["Prepare", "Check"]
    world.later(GRACE_S + 1)
    assert world.settle() == ["Sweep"]
    assert set(world.worker.bound) == {world.serial}


def test_a_removed_cluster_whose_bootstrap_secret_stays_is_looked_at_once() -> None:
    world = World()
    worker = world.workers[HERE.fingerprint]
    worker.account, worker.bound = True, {"1": world.now_s}  # killed before it was published
    world.give(bootstrap())
    world.restart()
    assert world.act() == [Look(CLUSTER, bootstrap())]
    assert world.settle() == ["Look", "Revoke"]
    assert (worker.account, worker.bound) == (False, {})
    world.core.touched([CLUSTER])
    assert world.settle() == []


def test_a_replaced_cluster_gets_a_new_token_and_the_old_ones_secret_is_overwritten() -> None:
    world = held()
    world.give(bootstrap(THERE, "2"))
    assert world.settle() == ["Prepare", "Mint", "Publish"]
    assert world.works()
    assert world.worker is world.workers[THERE.fingerprint]


def test_what_a_check_finds_unknown_is_made_anew_from_the_account_on() -> None:
    world = held()
    before = world.serial
    world.worker.bound.clear()  # restored from a backup, or somebody's hand
    world.worker.account = False
    world.later(TIMES.check_s)
    assert world.settle() == ["Check", "Mint", "Prepare"]  # the account was gone too
    world.later(2)
    assert world.settle() == ["Mint", "Publish"]
    assert world.serial != before
    assert world.works()


def test_rights_that_were_taken_are_given_again() -> None:
    world = held()
    world.later(TIMES.check_s)
    [check] = world.act()
    world.steps.clear()
    world.done(check, failed("it may not list workloads", Forbidden))
    world.later(2)
    assert world.settle() == ["Prepare", "Check"]


def test_a_token_that_waited_too_long_to_be_published_is_not_published() -> None:
    world = World()
    world.know()
    world.give(bootstrap())
    for _ in range(2):
        [step] = world.act()
        world.steps.clear()
        world.done(step, world.do(step))
    world.later(30)  # stopped, and continued
    [again] = world.act()
    assert isinstance(again, Mint)
    world.settle()
    assert world.works()


def test_a_refused_bootstrap_secret_is_told_by_its_field_and_what_is_there_stays() -> None:
    world = held()
    refused = Refused("Secret berth-system/boot", "exec", "would run a program here")
    touched = world.core.index.bootstrap(("berth-system", "boot"), CLUSTER, refused)
    world.core.touched(touched)
    assert world.settle() == []
    note = "Secret berth-system/boot: exec: would run a program here"
    about = profile()
    assert world.events == [
        KubeEvent(CLUSTER_PROFILES, about.metadata, True, "BootstrapRefused", note)
    ]
    assert world.works()
    [shown] = world.core.statuses(world.now_s)
    assert (shown.stage, shown.message, shown.usable) == (Stage.REFUSED, note, True)


def test_spoiled_notes_on_the_secret_only_mean_a_new_token() -> None:
    world = held()
    spoiled = secret_body(**{names.EXPIRES: "soon", names.ISSUED: "🙈", names.TARGET: "x"})
    world.secret = world.stored(Secret, spoiled)
    world.core.touched(world.core.index.secret(world.secret))
    assert world.settle() == ["Mint", "Publish"]
    assert world.works()


def test_a_secret_without_a_kubeconfig_has_no_token_whose_end_could_be_told() -> None:
    world = held()
    [well] = world.core.statuses(world.now_s)
    assert (well.usable, well.expires_at_s) == (True, world.now_s + LIFE_S)
    assert world.secret is not None
    world.secret = msgspec.structs.replace(world.secret, data={})
    world.core.touched(world.core.index.secret(world.secret))
    [spoiled] = world.core.statuses(world.now_s)
    assert (spoiled.usable, spoiled.expires_at_s) == (False, 0.0)


def test_a_leader_anew_believes_nothing_that_it_knew() -> None:
    world = held()
    world.core.begin()
    assert world.settle() == ["Prepare", "Check"]


def test_an_odd_object_stops_nobody_else() -> None:
    core = Credentials(book(), TIMES)
    for name in ("a", "b"):
        core.touched(core.index.put(profile(name)))
        core.touched(core.index.bootstrap(("ns", name), name, bootstrap()))
    core.index._registered["a"] = object()  # type: ignore[assignment]
    assert core.act(1.0) == [Prepare("b", bootstrap())]
    [odd] = core.aside.take_unreported()
    assert (odd.metadata.name, odd.event.reason) == ("a", "CannotBeHandled")
    assert core.wake_at_s() == 61.0, "it is tried again now and then"


def test_nothing_that_is_printed_holds_a_token() -> None:
    minted = Minted("t", "1", 0, 0, "very secret")
    step = Publish(CLUSTER, HERE, minted, "", None)
    assert "very secret" not in f"{minted!r}{step!r}"
    found = make(Secret, secret_body())
    assert repr(found) == f"Secret(/{names.hub_secret(CLUSTER)})"
