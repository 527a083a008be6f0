"""The machine: processors, memory, network, and GPUs where NVML answers. A collector for any registry, read at every scrape.

GPU names are those of NVIDIA's DCGM exporter, so that rules and dashboards work whichever of the two is scraped.

Example:
    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> registry = CollectorRegistry(); registry.register(HostCollector()); b"policyloop_host_memory_used_bytes" in generate_latest(registry)
    True
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from policyloop.monitor.metrics import GPU, HOST


@dataclass(frozen=True, slots=True)
class Gpu:
    """One device now. Degrees Celsius, percent, mebibytes (as DCGM gives them), watts."""

    index: int
    temperature: float
    utilisation: float
    used_mib: float
    free_mib: float
    watts: float

    def values(self) -> dict[str, float]:
        return {
            "DCGM_FI_DEV_GPU_TEMP": self.temperature,
            "DCGM_FI_DEV_GPU_UTIL": self.utilisation,
            "DCGM_FI_DEV_FB_USED": self.used_mib,
            "DCGM_FI_DEV_FB_FREE": self.free_mib,
            "DCGM_FI_DEV_POWER_USAGE": self.watts,
        }


def gpus() -> list[Gpu]:
    """All devices that NVML sees; none without a driver or without the `gpu` extra."""
    try:
        pynvml = importlib.import_module("pynvml")  # nvidia-ml-py, the gpu extra
        pynvml.nvmlInit()
    except Exception:  # no library, no driver, no permission: all mean that nothing can be read here
        return []
    return [_gpu(pynvml, i) for i in range(pynvml.nvmlDeviceGetCount())]


def _gpu(nvml: Any, index: int) -> Gpu:
    device = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = nvml.nvmlDeviceGetMemoryInfo(device)
    return Gpu(
        index,
        float(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)),
        float(nvml.nvmlDeviceGetUtilizationRates(device).gpu),
        memory.used / 2**20,
        memory.free / 2**20,
        nvml.nvmlDeviceGetPowerUsage(device) / 1000,
    )


def host() -> dict[str, float]:
    """Names as in `HOST`. CPU use is since the last call, all processors together."""
    memory, network = psutil.virtual_memory(), psutil.net_io_counters()
    return {
        "host_cpu_usage_ratio": psutil.cpu_percent(interval=None) / 100,
        "host_memory_used_bytes": float(memory.total - memory.available),
        "host_memory_total_bytes": float(memory.total),
        "host_network_receive_bytes_total": float(network.bytes_recv),
        "host_network_transmit_bytes_total": float(network.bytes_sent),
    }


class HostCollector(Collector):
    """Host and GPU figures as Prometheus families."""

    def collect(self) -> Iterator[Any]:
        for name, value in host().items():
            row = HOST[name]
            family = CounterMetricFamily if row.kind == "counter" else GaugeMetricFamily
            yield family(f"policyloop_{name}", row.help, value=value)
        families = {name: GaugeMetricFamily(name, row.help, labels=["gpu"]) for name, row in GPU.items()}
        for gpu in gpus():
            for name, value in gpu.values().items():
                families[name].add_metric([str(gpu.index)], value)
        yield from families.values()
