"""The machine's figures are of this machine, and GPUs speak DCGM's names."""

from __future__ import annotations

import psutil
from prometheus_client import CollectorRegistry, generate_latest

from policyloop.monitor.host import Gpu, HostCollector, host
from policyloop.monitor.metrics import GPU, HOST


def test_every_row_of_the_table_is_measured() -> None:
    found = host()
    assert set(found) == set(HOST)
    assert found["host_memory_total_bytes"] == psutil.virtual_memory().total
    assert 0 < found["host_memory_used_bytes"] < found["host_memory_total_bytes"]
    assert 0 <= found["host_cpu_usage_ratio"] <= 1


def test_a_gpu_speaks_the_names_of_the_exporter_that_clusters_run() -> None:
    assert set(Gpu(0, 60.0, 90.0, 1000.0, 80000.0, 400.0).values()) == set(GPU)


def test_a_registry_shows_them() -> None:
    registry = CollectorRegistry()
    registry.register(HostCollector())
    text = generate_latest(registry).decode()
    assert "policyloop_host_memory_total_bytes" in text and "policyloop_host_network_receive_bytes_total" in text
    assert "# TYPE DCGM_FI_DEV_GPU_TEMP gauge" in text  # the family is there; samples only where a device is
