"""The figures of both versions of control groups, and none where there is no group."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from attendant.service.watch.container import ContainerCollector

SECOND_VERSION = {
    "proc/self/cgroup": "0::/\n",
    "sys/fs/cgroup/cpu.stat": "usage_usec 9\nnr_periods 40\nnr_throttled 10\nthrottled_usec 2500000\n",
    "sys/fs/cgroup/memory.current": "900\n",
    "sys/fs/cgroup/memory.stat": "anon 500\ninactive_file 300\n",
    "sys/fs/cgroup/memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\n",
}
FIRST_VERSION = {
    "proc/self/cgroup": "4:cpu,cpuacct:/\n5:memory:/\n",
    "sys/fs/cgroup/cpu,cpuacct/cpu.stat": "nr_periods 40\nnr_throttled 10\nthrottled_time 2500000000\n",
    "sys/fs/cgroup/memory/memory.usage_in_bytes": "900\n",
    "sys/fs/cgroup/memory/memory.stat": "inactive_file 1\ntotal_inactive_file 300\n",
    "sys/fs/cgroup/memory/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
}
NAMES = (
    "cpu_periods_total",
    "cpu_throttled_periods_total",
    "cpu_throttled_seconds_total",
    "container_memory_bytes",
    "container_working_set_bytes",
    "container_oom_kills_total",
)


def figures(root: Path) -> list[float | None]:
    registry = CollectorRegistry()
    ContainerCollector(registry, root)
    return [registry.get_sample_value(f"attendant_{name}") for name in NAMES]


@pytest.mark.parametrize("files", [SECOND_VERSION, FIRST_VERSION], ids=["version 2", "version 1"])
def test_the_group_s_figures_are_read(files: dict[str, str], tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert figures(tmp_path) == [40, 10, 2.5, 900, 600, 1]


def test_without_a_group_they_are_zero(tmp_path: Path) -> None:
    assert figures(tmp_path) == [0] * len(NAMES)


def test_a_file_of_another_form_is_read_as_far_as_it_can_be(tmp_path: Path) -> None:
    for name, text in {**SECOND_VERSION, "sys/fs/cgroup/cpu.stat": "nr_periods max\nx\nnr_throttled 3"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert figures(tmp_path)[:3] == [0, 3, 0]
