import pytest

from berthmaster.worker.inventory.core.devices.models import memory_of, model_of, named


@pytest.mark.parametrize(
    ("labels", "model", "memory_mib"),
    [
        ({"nvidia.com/gpu.product": "Tesla-T4"}, "Tesla-T4", 0),
        ({"nvidia.com/gpu.product": "Tesla-T4-SHARED"}, "Tesla-T4", 0),
        (
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"},
            "NVIDIA-A100-SXM4-40GB",
            40_960,
        ),
        (
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb.me-SHARED"},
            "NVIDIA-A100-SXM4-80GB",
            81_920,
        ),
        ({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, "NVIDIA-H100-80GB-HBM3", 81_920),
        ({"cloud.google.com/gke-accelerator": "nvidia-tesla-t4"}, "Tesla-T4", 15_360),
        ({"cloud.google.com/gke-accelerator": "nvidia-next"}, "nvidia-next", 0),
        ({"nvidia.com/gpu.product": "\n"}, "unknown", 0),
        ({}, "unknown", 0),
    ],
)
def test_a_model_is_called_what_discovery_calls_it_without_how_it_is_handed_out(
    labels: dict[str, str], model: str, memory_mib: int
) -> None:
    assert (model_of(labels), memory_of(labels)) == (model, memory_mib)


def test_a_drivers_name_becomes_the_label_that_discovery_would_make_of_it() -> None:
    assert named("NVIDIA A100-SXM4-80GB") == "NVIDIA-A100-SXM4-80GB"
    assert named("Tesla  T4") == "Tesla-T4"
    assert named("") == "unknown"
    assert named("<b>H100</b>\u202e") == "bH100/b"  # as every reader of facts takes it
    assert len(named("H" * 500)) == 63
