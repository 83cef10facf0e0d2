"""What the container's control group says of this process: throttling, memory, and kills for want of memory.

Read at every scrape, from both versions of control groups; where there is none, values are 0. The kernel's own figures
are those by which it throttles and kills, so they may differ from the process's.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from attendant.common.hardware import ROOT, group_file

MICROSECONDS, NANOSECONDS = 10**6, 10**9


class ContainerCollector(Collector):
    """`root` is the directory that holds `proc` and `sys`."""

    def __init__(self, registry: CollectorRegistry, root: Path = ROOT) -> None:
        self._root = root
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        cpu, memory = self._pairs("cpu", "cpu.stat"), self._pairs("memory", "memory.stat")
        events = self._pairs("memory", "memory.events") or self._pairs("memory", "memory.oom_control")
        throttled = cpu.get("throttled_usec", 0) / MICROSECONDS + cpu.get("throttled_time", 0) / NANOSECONDS
        used = self._number("memory.current") or self._number("memory.usage_in_bytes")
        idle = memory.get("inactive_file", 0) if "total_inactive_file" not in memory else memory["total_inactive_file"]
        yield _counter("cpu_periods", "Periods in which the container's CPU quota held.", cpu.get("nr_periods", 0))
        yield _counter("cpu_throttled_periods", "Those in which it was used up.", cpu.get("nr_throttled", 0))
        yield _counter("cpu_throttled_seconds", "Time for which the container's threads had to wait.", throttled)
        yield _gauge("container_memory_bytes", "Memory that counts towards the container's limit.", used)
        yield _gauge("container_working_set_bytes", "The same without idle files.", max(0, used - idle))
        yield _counter("container_oom_kills", "Processes killed for want of memory.", events.get("oom_kill", 0))

    def _pairs(self, controller: str, name: str) -> dict[str, int]:
        """A file of lines "name number"."""
        words = [line.split() for line in group_file(self._root, controller, name).splitlines()]
        return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdigit()}

    def _number(self, name: str) -> int:
        text = group_file(self._root, "memory", name)
        return int(text) if text.isdigit() else 0


def _counter(name: str, meaning: str, value: float) -> Metric:
    family = CounterMetricFamily(f"attendant_{name}", meaning)
    family.add_metric([], value)
    return family


def _gauge(name: str, meaning: str, value: float) -> Metric:
    family = GaugeMetricFamily(f"attendant_{name}", meaning)
    family.add_metric([], value)
    return family
