"""Pages as a dcgm-exporter writes them, made up."""

from collections.abc import Mapping

HELP = {
    "DCGM_FI_DEV_SM_CLOCK": "SM clock frequency (in MHz).",
    "DCGM_FI_DEV_GPU_UTIL": "GPU utilization (in %).",
}
COUNTERS = {"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"}

A100 = {
    "DCGM_FI_DEV_SM_CLOCK": 1410,
    "DCGM_FI_DEV_MEM_CLOCK": 1215,
    "DCGM_FI_DEV_GPU_TEMP": 48,
    "DCGM_FI_DEV_POWER_USAGE": 214.318,
    "DCGM_FI_DEV_POWER_MGMT_LIMIT": 400.0,
    "DCGM_FI_DEV_GPU_UTIL": 93,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 41,
    "DCGM_FI_DEV_FB_FREE": 20_000,
    "DCGM_FI_DEV_FB_USED": 20_300,
    "DCGM_FI_DEV_FB_RESERVED": 660,
    "DCGM_FI_DEV_XID_ERRORS": 0,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 4,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
    "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": 123,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.31,
}


def uuid(gpu: int) -> str:
    return f"GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e{gpu:02d}"


def labels(gpu: int = 0, host: str = "node-1", **more: str) -> dict[str, str]:
    """The labels of one series; one given as "" is left out."""
    all_of_them = {
        "gpu": str(gpu),
        "UUID": uuid(gpu),
        "pci_bus_id": f"00000000:{gpu:02X}:00.0",
        "device": f"nvidia{gpu}",
        "modelName": "NVIDIA A100-SXM4-40GB",
        "Hostname": host,
        "container": "main",
        "namespace": "team-a",
        "pod": "train-7",
        **more,
    }
    return {key: value for key, value in all_of_them.items() if value}


def page(*parts: tuple[Mapping[str, str], Mapping[str, float | str]]) -> bytes:
    """The page on which each of these sets of labels has these values."""
    lines = []
    for name in dict.fromkeys(name for _, values in parts for name in values):
        lines.append(f"# HELP {name} {HELP.get(name, name.lower())}")
        lines.append(f"# TYPE {name} {'counter' if name in COUNTERS else 'gauge'}")
        for whose, values in parts:
            if name in values:
                inner = ",".join(
                    f'{key}="{value}"' for key, value in whose.items()
                )  # the test's own labels need no escapes
                lines.append(f"{name}{{{inner}}} {values[name]}")
    return "\n".join([*lines, ""]).encode()
