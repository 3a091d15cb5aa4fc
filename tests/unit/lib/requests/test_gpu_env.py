"""No request opens or chooses devices by a variable."""

import pytest

from berthmaster.lib.jobs.pods import pod_spec
from berthmaster.lib.messages.workload import PodSet, RunSpec, SecretKey
from berthmaster.lib.requests.names import gpu_env_fault


@pytest.mark.parametrize(
    "name",
    [
        *("NVIDIA_VISIBLE_DEVICES", "AMD_VISIBLE_DEVICES", "HABANA_VISIBLE_DEVICES"),
        *("NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_IMEX_CHANNELS", "ASCEND_RT_VISIBLE_DEVICES"),
        *("CUDA_DISABLE_CONTROL", "CUDA_DEVICE_MEMORY_LIMIT", "CUDA_DEVICE_MEMORY_LIMIT_0"),
        *("CUDA_DEVICE_SM_LIMIT", "CUDA_OVERSUBSCRIBE", "GPU_CORE_UTILIZATION_POLICY"),
        *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
        *("CUDA_VISIBLE_DEVICES", "NVIDIA_FABRIC_DEVICES", "NVIDIA_GDS", "NVIDIA_MOFED"),
        *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL", "HSA_CU_MASK"),
        *("ZE_AFFINITY_MASK", "ONEAPI_DEVICE_SELECTOR", "SYCL_DEVICE_FILTER"),
        *("ZE_FLAT_DEVICE_HIERARCHY", "TPU_VISIBLE_CHIPS", "TPU_VISIBLE_DEVICES"),
        *("TPU_CHIPS_PER_HOST_BOUNDS", "TPU_PROCESS_BOUNDS", "TPU_WORKER_ID", "TPU_TOPOLOGY"),
        *("CLOUD_TPU_TASK_ID", "ASCEND_VISIBLE_DEVICES", "ASCEND_RUNTIME_OPTIONS"),
        *("ASCEND_VNPU_SPECS", "ASCEND_DEVICE_ID", "HABANA_VISIBLE_MODULES", "HLS_MODULE_ID"),
        *("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "AWS_NEURON_VISIBLE_DEVICES"),
        *("MTHREADS_VISIBLE_DEVICES", "MLU_VISIBLE_DEVICES", "CAMBRICON_VISIBLE_DEVICES"),
        *("ILUVATAR_COREX_VISIBLE_DEVICES", "METAX_VISIBLE_DEVICES", "XPU_VISIBLE_DEVICES"),
        *("NVIDIA_DRIVER_CAPABILITIES", "MTHREADS_DRIVER_CAPABILITIES"),
        *("NPU_VISIBLE_DEVICES", "QAIC_VISIBLE_DEVICES", "RBLN_DEVICES", "VISIBLE_DEVICES"),
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
    "name",
    [
        *("LD_PRELOAD", "LD_LIBRARY_PATH", "CUDA_HOME", "NCCL_DEBUG", "CUDA_LAUNCH_BLOCKING"),
        *("CUDA_DEVICE_ORDER", "CUDA_CACHE_PATH", "ROCM_PATH", "HSA_OVERRIDE_GFX_VERSION"),
        *("TPU_LIBRARY_PATH", "TPU_NAME", "TPU_MIN_LOG_LEVEL", "ASCEND_HOME_PATH"),
        *("ASCEND_GLOBAL_LOG_LEVEL", "HABANA_LOGS", "NEURON_CC_FLAGS", "NEURON_RT_LOG_LEVEL"),
        *("ZE_ENABLE_TRACING_LAYER", "ONEAPI_ROOT", "XPU_BACKEND", "DEVICE", "NUM_DEVICES"),
    ],
)
def test_variable_that_only_tunes_is_accepted(name: str) -> None:
    assert gpu_env_fault(RunSpec(env={name: "0"})) is None


@pytest.mark.parametrize("value", ["compute", "compute,utility", "video, compute,ngx", ""])
def test_driver_capabilities_of_libraries_are_accepted(value: str) -> None:
    assert gpu_env_fault(RunSpec(env={"NVIDIA_DRIVER_CAPABILITIES": value})) is None


@pytest.mark.parametrize("value", ["all", "graphics", "compute,display", "compute;all"])
def test_driver_capabilities_with_device_files_are_refused_and_left_out(value: str) -> None:
    run = RunSpec(image="train", env={"NVIDIA_DRIVER_CAPABILITIES": value})
    refusal = gpu_env_fault(run)
    assert refusal is not None
    assert (refusal.field, refusal.expected) == (
        "run.env.NVIDIA_DRIVER_CAPABILITIES",
        "of compute, utility, video, compat32, ngx: others bring device files of the display",
    )
    spec = pod_spec(run, PodSet(gpus=1), tenant="acme", account="", devices={})
    assert "env" not in spec["containers"][0]
