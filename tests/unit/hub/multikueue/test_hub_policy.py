"""The policy of a hub's reconciler is read from its settings by field name."""

import msgspec

from berthmaster.hub.multikueue.policy import HubPolicy
from berthmaster.hub.multikueue.service import MultiKueueSettings

# Fields that no operator sets: another value is another engine's.
CONSTANTS = {
    "silent_s",
    "settle_s",
    "trap_s",
    "eviction_s",
    "unscheduled_s",
    "neglect_s",
    "mute_s",
    "hub_mute_s",
    "tell_after_s",
    "commit_limit",
    "commit_bytes",
    "ranking_limit",
}


def test_every_field_of_the_policy_has_a_setting_or_is_constant() -> None:
    fields = set(HubPolicy.__struct_fields__)
    settings = {name for name in fields if hasattr(MultiKueueSettings, name)}
    assert fields == settings | CONSTANTS
    assert not settings & CONSTANTS


def test_policy_of_default_settings_is_the_default_policy() -> None:
    assert MultiKueueSettings().policy == HubPolicy()


def test_policy_has_each_setting_of_its_name() -> None:
    settings = MultiKueueSettings(mode="dispatch", patience_s=7.0, weights=("idle=2", "price=1"))
    changes = {"mode": "dispatch", "patience_s": 7.0, "weights": "idle=2,price=1"}
    assert settings.policy == msgspec.structs.replace(HubPolicy(), **changes)
