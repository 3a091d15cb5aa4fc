"""The runtimes that exist without an operator's setting, as templates like any other.

An operator may replace one by a runtime of the same name, or remove it. The processes of a gang
find each other by environment variables (lib/jobs/rendezvous.py).
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from berthmaster.lib.messages.runtimes import (
    ObjectKey,
    PodTemplate,
    RuntimeParameter,
    RuntimeSetting,
    RuntimeVolume,
)
from berthmaster.lib.requests.templates import with_version

_SHM: Final = "{{shared_memory_mib}}"


def _shared_memory(default_mib: int) -> dict[str, RuntimeParameter]:
    told = "size of /dev/shm in MiB, at most the pod's memory; 0 = 64 MiB, as everywhere"
    parameter = RuntimeParameter(
        type="integer", default=default_mib, minimum=0, maximum=1 << 22, description=told
    )
    return {"shared_memory_mib": parameter}


_PLAIN: Final = RuntimeSetting(
    runtime="plain",
    description="What the request says, with shared memory",
    parameters=_shared_memory(0),
    template=PodTemplate(shared_memory_mib=_SHM),
)

_TORCH: Final = RuntimeSetting(
    runtime="torch",
    description="PyTorch: torchrun starts the script on every pod, and they find each other",
    parameters={
        **_shared_memory(1 << 16),
        "processes": RuntimeParameter(
            default="$(BERTH_PROCESSES)",
            maximum=32,
            description="of each pod: a number, or gpu, cpu, auto; else one a GPU",
        ),
        "max_restarts": RuntimeParameter(
            type="integer",
            default=0,
            minimum=0,
            maximum=1000,
            description="how often torchrun starts its processes again",
        ),
    },
    template=PodTemplate(
        command=("torchrun",),
        needs_command=True,
        env={
            "PET_NPROC_PER_NODE": "{{processes}}",
            "PET_MAX_RESTARTS": "{{max_restarts}}",
        },
        shared_memory_mib=_SHM,
    ),
)

_JAX: Final = RuntimeSetting(
    runtime="jax",
    description="JAX: jax.distributed.initialize() finds the others by itself",
    parameters=_shared_memory(1 << 16),
    template=PodTemplate(needs_command=True, shared_memory_mib=_SHM),
)

# Rank 0 is the launcher and works too, and the other ranks wait for its login. The key for the
# login is in a Secret of the tenant, since Berthmaster requests no right to create Secrets. The
# script gets the hosts as "<name prefix>:<pods>" for each pod set.
_MPI_SCRIPT: Final = r"""
set -eu
umask 077
work="$(mktemp -d)"
done_file=/tmp/berth-mpi-done
cp /etc/berth-mpi/ssh-privatekey "$work/id"
ssh-keygen -y -f "$work/id" > "$work/authorized"
port="${BERTH_SSH_PORT:-2222}"
login="-p $port -i $work/id -o BatchMode=yes -o ConnectTimeout=5 -o LogLevel=ERROR"
login="$login -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null"
if [ "$RANK" -ne 0 ]; then
    rm -f "$done_file"
    ssh-keygen -q -t ed25519 -N '' -f "$work/host"
    "$(command -v sshd || echo /usr/sbin/sshd)" -D -e -p "$port" -f /dev/null -h "$work/host" \
        -o AuthorizedKeysFile="$work/authorized" -o StrictModes=no -o UsePAM=no \
        -o PidFile=none -o PasswordAuthentication=no -o KbdInteractiveAuthentication=no &
    daemon=$!
    trap 'kill "$daemon" 2>/dev/null; exit 143' TERM INT
    while [ ! -e "$done_file" ]; do
        kill -0 "$daemon" 2>/dev/null || { echo "sshd has ended" >&2; exit 1; }
        sleep 1
    done
    kill "$daemon" 2>/dev/null || true
    exit 0
fi
: > "$work/hosts"; : > "$work/names"; : > "$work/others"
rank=0
for peers in $BERTH_PEERS; do
    index=0
    while [ "$index" -lt "${peers##*:}" ]; do
        host="${peers%:*}$index.$BERTH_SERVICE"
        echo "$host slots=$BERTH_PROCESSES" >> "$work/hosts"
        echo "$host:$BERTH_PROCESSES" >> "$work/names"
        [ "$rank" -eq 0 ] || echo "$host" >> "$work/others"
        index=$((index + 1)); rank=$((rank + 1))
    done
done
left={{wait_s}}
while read -r host; do
    until ssh -n $login "$host" true 2>"$work/why"; do
        left=$((left - 1))
        [ "$left" -gt 0 ] || { echo "no answer of $host: $(cat "$work/why")" >&2; exit 1; }
        sleep 1
    done
done < "$work/others"
export OMPI_MCA_orte_default_hostfile="$work/hosts" OMPI_MCA_orte_keep_fqdn_hostnames=true
export OMPI_MCA_plm_rsh_args="$login" OMPI_MCA_plm_rsh_no_tree_spawn=true
export PRTE_MCA_prte_default_hostfile="$work/hosts" PRTE_MCA_plm_ssh_args="$login"
export HYDRA_HOST_FILE="$work/names" HYDRA_LAUNCHER=ssh HYDRA_LAUNCHER_EXTRA_ARGS="$login"
export BERTH_HOST_FILE="$work/hosts" BERTH_SSH_ARGS="$login"
status=0
"$@" || status=$?
while read -r host; do
    ssh -n $login "$host" touch "$done_file" || true
done < "$work/others"
exit "$status"
"""

_MPI: Final = RuntimeSetting(
    runtime="mpi",
    description="MPI over ssh: the first pod runs what the request says (mpirun …), on all pods",
    parameters={
        **_shared_memory(1 << 16),
        "ssh_secret": RuntimeParameter(
            default="mpi-ssh",
            maximum=63,
            description="the Secret <tenant>.NAME with the key ssh-privatekey",
        ),
        "wait_s": RuntimeParameter(
            type="integer",
            default=300,
            minimum=1,
            maximum=86_400,
            description="for how long the launcher waits for the others to answer",
        ),
    },
    template=PodTemplate(
        command=("/bin/sh", "-c", _MPI_SCRIPT, "mpi"),
        needs_command=True,
        volumes=(
            RuntimeVolume(
                name="mpi-ssh",
                mount_path="/etc/berth-mpi",
                secret="{{tenant}}.{{ssh_secret}}",
                read_only=True,
            ),
        ),
        shared_memory_mib=_SHM,
    ),
)

# The first pod is the head and works too. The request's command runs there when all have joined.
# The other pods run as long as the head answers, and then succeed: only the head reports the
# outcome.
_RAY_SCRIPT: Final = r"""
set -eu
export RAY_USAGE_STATS_ENABLED=0
port={{port}}
answers() {
    python3 -c 'import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5)' \
        "$MASTER_ADDR" "$port" 2>/dev/null
}
if [ "$RANK" -ne 0 ]; then
    trap 'ray stop >/dev/null 2>&1; exit 143' TERM INT
    until=$(($(date +%s) + {{wait_s}}))
    until answers && ray start --address="$MASTER_ADDR:$port" --disable-usage-stats; do
        [ "$(date +%s)" -lt "$until" ] || { echo "no head at $MASTER_ADDR:$port" >&2; exit 1; }
        sleep "${BERTH_POLL_S:-2}" & wait $!
    done
    silent=0
    while [ "$silent" -lt 3 ]; do
        sleep "${BERTH_POLL_S:-2}" & wait $!
        if answers; then silent=0; else silent=$((silent + 1)); fi
    done
    ray stop >/dev/null 2>&1 || true
    exit 0
fi
ray start --head --port="$port" --include-dashboard=false --disable-usage-stats
export RAY_ADDRESS="$(hostname -i 2>/dev/null | cut -d' ' -f1):$port"
python3 - "$WORLD_SIZE" {{wait_s}} <<'EOF'
import sys, time
import ray
wanted, left_s = int(sys.argv[1]), int(sys.argv[2])
ray.init(log_to_driver=False)
while (there := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if left_s <= 0:
        sys.exit(f"{there} of {wanted} pods have joined")
    left_s -= 1
    time.sleep(1)
EOF
status=0
"$@" & job=$!
trap 'kill -TERM "$job" 2>/dev/null' TERM INT
wait "$job" || status=$?
while kill -0 "$job" 2>/dev/null; do status=0; wait "$job" || status=$?; done
ray stop >/dev/null 2>&1 || true
exit "$status"
"""

_RAY: Final = RuntimeSetting(
    runtime="ray",
    description="Ray: the first pod is the head and runs the command, when all have joined; "
    "a RayJob where KubeRay is served",
    parameters={
        **_shared_memory(1 << 16),
        "port": RuntimeParameter(type="integer", default=6379, minimum=1024, maximum=9999),
        "wait_s": RuntimeParameter(
            type="integer",
            default=300,
            minimum=5,
            maximum=86_400,
            description="for how long the pods wait for each other",
        ),
    },
    template=PodTemplate(
        command=("/bin/sh", "-c", _RAY_SCRIPT, "ray"),
        needs_command=True,
        kuberay=True,
        shared_memory_mib=_SHM,
    ),
)

_NOTEBOOK: Final = RuntimeSetting(
    runtime="notebook",
    description="JupyterLab, reached with kubectl port-forward; its token is the tenant's Secret",
    parameters={
        **_shared_memory(1 << 12),
        "port": RuntimeParameter(type="integer", default=8888, minimum=1024, maximum=65_535),
        "token_secret": RuntimeParameter(
            default="notebook",
            maximum=63,
            description="the Secret <tenant>.NAME with the key token",
        ),
    },
    template=PodTemplate(
        command=("jupyter", "lab", "--ip=0.0.0.0", "--port={{port}}", "--no-browser"),
        secret_env={"JUPYTER_TOKEN": ObjectKey(name="{{tenant}}.{{token_secret}}", key="token")},
        shared_memory_mib=_SHM,
    ),
)

BUILT_IN: Final[Mapping[str, RuntimeSetting]] = MappingProxyType(
    {each.runtime: with_version(each) for each in (_PLAIN, _TORCH, _JAX, _MPI, _RAY, _NOTEBOOK)}
)
