"""The resolver's policy is read from its settings by field name."""

import msgspec

from berthmaster.control.resolver.policy import Policy
from berthmaster.control.resolver.service import WEIGHTS, ResolverSettings

# Fields that no operator sets: another value is another engine's.
CONSTANTS = {
    "gather_s",
    "avoid_s",
    "deadline_grace_s",
    "commit_limit",
    "commit_bytes",
    "ranking_limit",
    "share_cpu",
    "share_memory",
    "reserve_wait_s",
    "rebalance_gain",
    "backfill",
}


def test_every_field_of_the_policy_has_a_setting_or_is_constant() -> None:
    fields = set(Policy.__struct_fields__)
    settings = {name for name in fields if hasattr(ResolverSettings, name)} - {"weights"}
    assert fields == settings | CONSTANTS | set(WEIGHTS)
    assert not settings & CONSTANTS


def test_policy_of_default_settings_is_the_default_policy() -> None:
    assert ResolverSettings().policy == Policy()


def test_policy_has_each_setting_of_its_name() -> None:
    settings = ResolverSettings(order="due", short_first=0.5, restart_s=7.0, weights=("idle=2",))
    changes = {"order": "due", "short_first": 0.5, "restart_s": 7.0, "idle": 2.0}
    assert settings.policy == msgspec.structs.replace(Policy(), **changes)
