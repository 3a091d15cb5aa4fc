"""The tables, and their version.

- ``jobs``, ``holdings``: each ended job, and the GPUs of one model that each attempt held. Their
  keys make a repeated insert harmless. A part of a divided job has its own row, of which only the
  holdings count. Its ``wait_bucket`` is ``OF_A_PART``.
- ``cells``: sums by hour, day and month for each group of tenant, queue, model and cluster. Sums by
  day and month also exist with the owner. ``through``, in the smallest cells only, is the use of
  attempts that held their GPUs for the whole cell. Half an hour is thus computed from the few
  attempts that began or ended in the hour.
- ``likes``: features that each ended job shares with others (core/similar.py).
- ``forms``: the layout of each ended job, and its labels without the layout (core/suggest.py).
- ``trends``: samples by step.
- ``uses``: measured use of attempts that have not ended.
- ``profiles``: the profile of each attempt, by its job's features (core/profiles.py).
- ``cursors``: the positions of the streams, written together with the rows from them.
"""

from collections.abc import Iterator
from typing import Final

from berthmaster.control.usage.store.database import Database, StoreError

VERSION: Final = 3
HOURS: Final = ("asked_gpu_us", "held_gpu_us", "used_gpu_us", "measured_gpu_us")
THROUGH: Final = tuple(f"through_{name}" for name in HOURS)
COUNTS: Final = ("jobs", "succeeded", "failed", "cancelled", "evictions")
OF_A_PART: Final = -1
SUMS: Final = (*HOURS, *THROUGH, *COUNTS)


def _statements(database: Database) -> Iterator[str]:
    words = database.words
    yield f"""CREATE TABLE IF NOT EXISTS groups (
        id {words.number}, by_owner SMALLINT NOT NULL, tenant TEXT NOT NULL, queue TEXT NOT NULL,
        model TEXT NOT NULL, cluster TEXT NOT NULL, owner TEXT NOT NULL,
        UNIQUE (by_owner, tenant, queue, model, cluster, owner))"""
    yield """CREATE TABLE IF NOT EXISTS jobs (
        tenant TEXT NOT NULL, id TEXT NOT NULL, submitted_ms BIGINT NOT NULL,
        ended_ms BIGINT NOT NULL, placed_ms BIGINT, running_ms BIGINT, state TEXT NOT NULL,
        queue TEXT NOT NULL, owner TEXT NOT NULL, cluster TEXT NOT NULL, hub TEXT NOT NULL,
        asked_milli BIGINT NOT NULL, attempts BIGINT NOT NULL, evictions BIGINT NOT NULL,
        reason TEXT NOT NULL, wait_bucket INTEGER, start_bucket INTEGER,
        group_id BIGINT NOT NULL, owner_group_id BIGINT NOT NULL,
        PRIMARY KEY (tenant, id, submitted_ms))"""
    yield "CREATE INDEX IF NOT EXISTS jobs_ended ON jobs (ended_ms, tenant, id)"
    yield "CREATE INDEX IF NOT EXISTS jobs_tenant_ended ON jobs (tenant, ended_ms, id)"
    yield """CREATE TABLE IF NOT EXISTS holdings (
        tenant TEXT NOT NULL, id TEXT NOT NULL, submitted_ms BIGINT NOT NULL,
        attempt BIGINT NOT NULL, model TEXT NOT NULL, cluster TEXT NOT NULL,
        asked_milli BIGINT NOT NULL, held_milli BIGINT NOT NULL, placed_ms BIGINT NOT NULL,
        running_ms BIGINT, from_ms BIGINT NOT NULL, to_ms BIGINT NOT NULL, how TEXT NOT NULL,
        reason TEXT NOT NULL, used_gpu_us BIGINT NOT NULL, measured_gpu_us BIGINT NOT NULL,
        group_id BIGINT NOT NULL, owner_group_id BIGINT NOT NULL,
        PRIMARY KEY (tenant, id, submitted_ms, attempt, model, from_ms))"""
    yield "CREATE INDEX IF NOT EXISTS holdings_to ON holdings (to_ms)"
    yield "CREATE INDEX IF NOT EXISTS holdings_from ON holdings (from_ms)"
    sums = ", ".join(f"{name} BIGINT NOT NULL" for name in SUMS)
    yield f"""CREATE TABLE IF NOT EXISTS cells (
        by_owner SMALLINT NOT NULL, size SMALLINT NOT NULL, start_ms BIGINT NOT NULL,
        group_id BIGINT NOT NULL, {sums}, waits {words.blob}, starts {words.blob},
        PRIMARY KEY (by_owner, size, start_ms, group_id))"""
    yield f"""CREATE TABLE IF NOT EXISTS trends (
        step_s INTEGER NOT NULL, tenant TEXT NOT NULL, at_s BIGINT NOT NULL, name TEXT NOT NULL,
        cell TEXT NOT NULL, n BIGINT NOT NULL, total {words.double} NOT NULL,
        low {words.double} NOT NULL, high {words.double} NOT NULL,
        PRIMARY KEY (step_s, tenant, at_s, name, cell))"""
    yield """CREATE TABLE IF NOT EXISTS uses (
        tenant TEXT NOT NULL, id TEXT NOT NULL, attempt BIGINT NOT NULL,
        measured_ms BIGINT NOT NULL, used_gpu_us BIGINT NOT NULL, at_ms BIGINT NOT NULL,
        PRIMARY KEY (tenant, id, attempt))"""
    yield """CREATE TABLE IF NOT EXISTS likes (
        tenant TEXT NOT NULL, id TEXT NOT NULL, submitted_ms BIGINT NOT NULL,
        labels TEXT NOT NULL, program TEXT NOT NULL, shape TEXT NOT NULL,
        PRIMARY KEY (tenant, id, submitted_ms))"""
    for by in ("labels", "program", "shape"):
        yield f"CREATE INDEX IF NOT EXISTS likes_{by} ON likes (tenant, {by}, submitted_ms)"
    yield """CREATE TABLE IF NOT EXISTS forms (
        tenant TEXT NOT NULL, id TEXT NOT NULL, submitted_ms BIGINT NOT NULL,
        tags TEXT NOT NULL, layout TEXT NOT NULL, PRIMARY KEY (tenant, id, submitted_ms))"""
    yield "CREATE INDEX IF NOT EXISTS forms_tags ON forms (tenant, tags, submitted_ms)"
    yield f"""CREATE TABLE IF NOT EXISTS profiles (
        tenant TEXT NOT NULL, id TEXT NOT NULL, attempt BIGINT NOT NULL,
        submitted_ms BIGINT NOT NULL, at_ms BIGINT NOT NULL, ended SMALLINT NOT NULL,
        labels TEXT NOT NULL, shape TEXT NOT NULL, body {words.blob} NOT NULL,
        PRIMARY KEY (tenant, id, attempt))"""
    yield "CREATE INDEX IF NOT EXISTS profiles_labels ON profiles (tenant, labels, at_ms)"
    yield "CREATE INDEX IF NOT EXISTS profiles_ended ON profiles (ended, at_ms)"
    yield "CREATE INDEX IF NOT EXISTS profiles_shape ON profiles (tenant, shape, at_ms)"
    yield """CREATE TABLE IF NOT EXISTS cursors (
        name TEXT PRIMARY KEY, created TEXT NOT NULL, sequence BIGINT NOT NULL)"""


def prepare(database: Database) -> None:
    """Create missing tables. Raises StoreError, also for a store of a newer version."""
    database.begin()
    for statement in _statements(database):
        database.change(statement)
    found = database.fetch("SELECT sequence FROM cursors WHERE name = 'version'")
    if found and int(found[0][0]) > VERSION:
        raise StoreError(
            f"the store is of version {found[0][0]}, and this program knows up to {VERSION}: "
            "run the newer program, or give it another store"
        )
    if found and int(found[0][0]) < VERSION:
        raise StoreError(
            f"the store is of version {found[0][0]}, and this program reads {VERSION} alone: "
            "move it away, and it is filled anew from the archive"
        )
    database.change(
        "INSERT INTO cursors (name, created, sequence) VALUES ('version', '', ?) "
        "ON CONFLICT (name) DO UPDATE SET sequence = excluded.sequence",
        (VERSION,),
    )
    database.commit()
