"""Access providers of ClusterProfiles: runs the credential plugins that an operator lists.

Example of the list (``--access-providers``), in the form of cluster-inventory-api::

    providers:
    - name: secretreader
      execConfig:
        apiVersion: client.authentication.k8s.io/v1
        command: /plugins/secretreader/bin/secretreader-plugin
        provideClusterInfo: true
    - name: kubeconfig-secretreader  # without execConfig: Kueue's own manager runs its plugin

Rules of this file:

- The list alone names programs, arguments and variables. A profile names an entry of the list, and
  has data for the plugin. The first entry that the profile names is used.
- Only profiles in Kueue's namespace count, as in Kueue. A profile by Berthmaster never counts,
  because its provider reads the Secret that this service writes.
- A credential goes only to the profile's server, under the profile's authority.
- A plugin runs again at two thirds of its credential's lifetime, or each ``REFRESH_S`` if it states
  no end, or when the worker rejects the credential. After a failure the last credential stays.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from berthmaster.hub.credentials.bootstrap import CA_FIELD, ca_fault, life_of
from berthmaster.hub.credentials.core import names
from berthmaster.hub.credentials.core.described import address, made_by_us
from berthmaster.hub.credentials.core.index import PROVIDER_SERIAL
from berthmaster.hub.credentials.core.observed import (
    SHARE,
    Endpoint,
    Managed,
    Referenced,
    Refused,
    Source,
    Token,
)
from berthmaster.lib.kube.config import MAX_FILE_BYTES, Access, from_kubeconfig_bytes
from berthmaster.lib.kube.errors import BadConfig
from berthmaster.lib.kube.kubeconfig import Exec, User
from berthmaster.lib.kube.multicluster import (
    EXEC_EXTENSION,
    AccessProvider,
    ClusterProfile,
    ProviderCluster,
)
from berthmaster.lib.kube.plugin import LIMIT_S, Plugin, PluginFailed, Printed
from berthmaster.lib.runtime.errors import SettingsError
from berthmaster.lib.runtime.log import LogLike
from berthmaster.lib.runtime.plain_yaml import NotYaml, document

REFRESH_S: Final = 60.0  # seconds after which a plugin that states no end runs again
FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
AT_ONCE: Final = 8  # plugins that run at the same time
MAX_NAMES: Final = 10  # names of a profile's providers in an error
Providers = Mapping[str, Exec | None]  # in the operator's order; None = Kueue runs the plugin


class _Entry(msgspec.Struct, rename="camel"):
    name: str = ""
    exec_config: Exec | None = None


class _File(msgspec.Struct):
    providers: tuple[_Entry, ...] = ()


def read_providers(path: Path | None) -> Providers:
    """Return the operator's list. None = empty. Raises SettingsError."""
    if path is None:
        return {}

    def wrong(field: str, why: str) -> SettingsError:
        return SettingsError(f"--access-providers {path}: {field}: {why}")

    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES)
        listed = msgspec.convert(document(data), _File).providers
    except OSError as error:
        raise wrong("file", error.strerror or type(error).__name__) from None
    except (NotYaml, msgspec.ValidationError) as error:
        raise wrong("providers", f"{error}; expected a list of name and execConfig") from None
    found: dict[str, Exec | None] = {}
    for number, one in enumerate(listed):
        field = f"providers[{number}]"
        if not one.name or one.name in found:
            raise wrong(f"{field}.name", f"{one.name[:64]!r}, expected a name of its own")
        wanted = one.exec_config
        if wanted is not None:
            if "/" in wanted.command and not wanted.command.startswith("/"):
                why = f"{wanted.command[:128]!r}, expected an absolute path or a name on PATH"
                raise wrong(f"{field}.execConfig.command", why)
            try:
                _access(wanted, ProviderCluster(server="https://unknown"), str(path))
            except BadConfig as error:
                at = error.field.replace("exec.", "execConfig.")
                raise wrong(f"{field}.{at}", error.problem) from None
        found[one.name] = wanted
    return found


@dataclass(eq=False)
class _Run:
    """The plugin of one cluster."""

    provider: str
    access: Access  # server and checked plugin
    config: Any  # the profile's data for the plugin
    token: Token | None = None
    trouble: str = ""
    failures: int = 0
    due_s: float = 0.0
    busy: bool = False

    @property
    def endpoint(self) -> Endpoint:
        access = self.access
        return Endpoint(access.server, access.ca, access.server_name, access.proxy)

    @property
    def source(self) -> Managed:
        return Managed(self.endpoint, self.token, self.trouble, self.provider)


class Plugins:
    """The plugins of all clusters of one hub."""

    def __init__(
        self,
        providers: Providers,
        *,
        refresh_s: float,
        spawn: Callable[[Coroutine[Any, Any, None], str], object],
        on_source: Callable[[str, Source], None],
        now: Callable[[], float],
        log: LogLike,
    ) -> None:
        """``on_source`` gets a cluster's access after each run. ``now`` returns seconds since
        1970."""
        self._providers = providers
        self._refresh_s = refresh_s
        self._spawn = spawn
        self._on_source = on_source
        self._now = now
        self._log = log
        self._runs: dict[str, _Run] = {}
        self._turns = asyncio.Semaphore(AT_ONCE)

    @property
    def failing(self) -> dict[str, str]:
        """The clusters whose plugin fails, and the reason."""
        return {cluster: run.trouble for cluster, run in self._runs.items() if run.trouble}

    def read(self, profile: ClusterProfile, *, gone: bool) -> Source | None:
        """Return the access by a profile in Kueue's namespace; None = none."""
        cluster = profile.metadata.name
        source = None if gone else self._chosen(profile)
        if not isinstance(source, _Run):
            self._runs.pop(cluster, None)
            return source
        known = self._runs.get(cluster)
        if known is None or (known.provider, known.access, known.config) != (
            source.provider,
            source.access,
            source.config,
        ):
            known = self._runs[cluster] = source
        return known.source

    def _chosen(self, profile: ClusterProfile) -> _Run | Referenced | Refused | None:
        status = profile.status
        # As in cluster-inventory-api, the field's new name wins.
        listed = (*(status.credential_providers or ()), *(status.access_providers or ()))
        offered = {one.name: one for one in listed}
        if not self._providers or not offered or made_by_us(profile):
            return None
        where = f"ClusterProfile {profile.metadata.namespace}/{profile.metadata.name}"
        name = next((name for name in self._providers if name in offered), "")
        if not name:
            there = ", ".join(sorted(offered)[:MAX_NAMES])[:300]
            why = f"{there}: not listed; --access-providers lists {', '.join(self._providers)}"
            return Refused(where, "status.accessProviders", why, "ProviderNotListed")
        wanted = self._providers[name]
        if wanted is None:
            return Referenced(profile.metadata.name, name)
        field, why = "status.accessProviders", ""
        try:
            return self._run(wanted, offered[name], where)
        except BadConfig as error:
            field, why = f"{field}[{name}].cluster.{error.field}", error.problem
        return Refused(where, field, why, "ProviderRefused")

    def _run(self, wanted: Exec, offered: AccessProvider, where: str) -> _Run:
        cluster = offered.cluster or ProviderCluster()
        if cluster.insecure:
            raise BadConfig(where, "", "insecure-skip-tls-verify", "TLS must be checked")
        access = _access(wanted, cluster, where)
        if why := ca_fault(access):
            raise BadConfig(where, "", CA_FIELD, why)
        extensions = cluster.extensions or ()
        config = next((one.extension for one in extensions if one.name == EXEC_EXTENSION), None)
        return _Run(offered.name, access, config)

    def expire(self, cluster: str) -> None:
        """Run the cluster's plugin again, because the worker rejects the credential."""
        if (run := self._runs.get(cluster)) is not None and not run.failures:
            run.due_s = 0.0

    def look(self, is_used: Callable[[str], bool]) -> None:
        """Start every due plugin. ``is_used`` returns whether a cluster's access is by plugin."""
        now_s = self._now()
        for cluster, run in self._runs.items():
            if not run.busy and run.due_s <= now_s and is_used(cluster):
                run.busy = True
                self._spawn(self._carry_out(cluster, run), f"plugin of {cluster}")

    async def _carry_out(self, cluster: str, run: _Run) -> None:
        try:
            async with self._turns:
                printed = await self._printed(run)
            self._took(run, printed)
        except (PluginFailed, ValueError) as error:
            self._failed(cluster, run, str(error))
        except Exception as error:  # noqa: BLE001 - the message may hold a credential
            self._failed(cluster, run, f"a fault of ours: {type(error).__name__}")
        finally:
            run.busy = False
        if self._runs.get(cluster) is run:
            self._on_source(cluster, run.source)

    async def _printed(self, run: _Run) -> Printed:
        access = run.access
        assert access.user.exec is not None
        told = address(run.endpoint)
        if run.config is not None:
            told["config"] = run.config
        return await Plugin(access.user.exec, told, LIMIT_S).run()

    def _took(self, run: _Run, printed: Printed) -> None:
        now_s, pair = self._now(), printed.certificate
        stated_s = printed.expires_at_s
        if 0 < stated_s <= now_s:
            raise ValueError(f"status.expirationTimestamp: {printed.expiration_timestamp} is past")
        life = life_of(Access(server="", user=User(token=printed.token)))
        serial = names.digest(printed.token, printed.client_certificate_data)
        run.token = Token(
            f"{PROVIDER_SERIAL}{serial}",
            printed.token,
            stated_s or (life.expires_at_s if life is not None else 0.0),
            pair if pair[0] else (b"", b""),
        )
        run.trouble, run.failures = "", 0
        run.due_s = now_s + (SHARE * (stated_s - now_s) if stated_s else self._refresh_s)

    def _failed(self, cluster: str, run: _Run, why: str) -> None:
        pause_s = min(FIRST_PAUSE_S * 2.0 ** min(run.failures, 10), LONGEST_PAUSE_S)
        run.failures += 1
        run.due_s = self._now() + pause_s
        if run.trouble != why:
            self._log.warning(
                "credential plugin failed", cluster=cluster, provider=run.provider, why=why
            )
        run.trouble = why


def _access(wanted: Exec, cluster: ProviderCluster, source: str) -> Access:
    """Return the checked server and plugin. Raises BadConfig.

    The check is that of a kubeconfig with both.
    """
    told = msgspec.to_builtins(cluster)
    told.pop("extensions", None)
    config = {
        "current-context": "provider",
        "contexts": [{"name": "provider", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": told}],
        "users": [{"name": "it", "user": {"exec": msgspec.to_builtins(wanted)}}],
    }
    return from_kubeconfig_bytes(msgspec.json.encode(config), allow_exec=True, source=source)
