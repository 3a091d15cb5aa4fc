"""Nobody opens GPUs by a variable."""

import pytest

from berthmaster.messages.workload import RunSpec, SecretKey
from berthmaster.requests.gpu_env import gpu_env_fault


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES"),
        *("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_IMEX_CHANNELS", "ASCEND_RT_VISIBLE_DEVICES"),
        *("CUDA_DISABLE_CONTROL", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0"),
        *("CUDA_DEVICE_SM_LIMIT", "CUDA_OVERSUBSCRIBE", "GPU_CORE_UTILIZATION_POLICY"),
        *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    ],
)
def test_what_device_plugins_set_is_refused_by_name(name: str) -> None:
    for run in (
        RunSpec(env={name: "all"}),
        RunSpec(secret_env={name: SecretKey(name="s", key="k")}),
    ):
        refusal = gpu_env_fault(run)
        assert refusal is not None
        assert refusal.field.startswith(("run.env", "run.secret_env"))
        assert name in refusal.field


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "CUDA_HOME", "NCCL_DEBUG"]
)
def test_what_only_hides_or_tunes_is_taken(name: str) -> None:
    assert gpu_env_fault(RunSpec(env={name: "0"})) is None
