"""The container's limits count, wherever they stand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attendant.common import hardware
from attendant.common.hardware import available_cpus, cpu_name, cpu_quota, memory_limit, physical_memory

GIB = 2**30


@pytest.fixture(autouse=True)
def eight_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "_allowed_cpus", lambda: 8)


def machine(root: Path, groups: str, **files: str) -> Path:
    """A root with 16 GiB of memory, a process in `groups`, and control files: path below sys/fs/cgroup, its text."""
    contents = {"proc/meminfo": f"MemTotal: {16 * GIB // 1024} kB\nMemFree: 1 kB\n", "proc/self/cgroup": groups}
    for path, text in contents.items():
        write(root / path, text)
    for path, text in files.items():
        write(root / "sys/fs/cgroup" / path, text)
    return root


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_version_2_limits_are_read(tmp_path: Path) -> None:
    files = {"pod/box/cpu.max": "300000 100000\n", "pod/box/memory.max": f"{2 * GIB}\n"}
    root = machine(tmp_path, "0::/pod/box\n", **files)
    assert cpu_quota(root) == 3.0
    assert available_cpus(root) == 3
    assert memory_limit(root) == 2 * GIB


def test_version_1_limits_are_read(tmp_path: Path) -> None:
    files = {
        "cpu,cpuacct/box/cpu.cfs_quota_us": "200000",
        "cpu,cpuacct/box/cpu.cfs_period_us": "100000",
        "memory/box/memory.limit_in_bytes": str(GIB),
    }
    root = machine(tmp_path, "4:memory:/box\n2:cpu,cpuacct:/box\n1:name=systemd:/box\n0::/box\n", **files)
    assert available_cpus(root) == 2
    assert memory_limit(root) == GIB


def test_the_smallest_limit_of_all_levels_counts(tmp_path: Path) -> None:
    files = {
        "pod/cpu.max": "200000 100000",
        "pod/box/cpu.max": "400000 100000",
        "pod/memory.max": str(3 * GIB),
        "pod/box/memory.max": "max",
    }
    root = machine(tmp_path, "0::/pod/box\n", **files)
    assert available_cpus(root) == 2
    assert memory_limit(root) == 3 * GIB


@pytest.mark.parametrize("path", ["/docker/abcdef", "/../../kubepods/pod1", "/"])
def test_in_a_container_the_mount_itself_is_the_group(path: str, tmp_path: Path) -> None:
    root = machine(tmp_path, f"0::{path}\n", **{"cpu.max": "200000 100000", "memory.max": str(GIB)})
    assert available_cpus(root) == 2
    assert memory_limit(root) == GIB


def test_a_share_of_a_processor_is_left_out_but_one_stays(tmp_path: Path) -> None:
    assert available_cpus(machine(tmp_path / "a", "0::/\n", **{"cpu.max": "250000 100000"})) == 2
    assert available_cpus(machine(tmp_path / "b", "0::/\n", **{"cpu.max": "20000 100000"})) == 1


def test_without_limits_the_machine_counts(tmp_path: Path) -> None:
    unlimited = {
        "cpu/cpu.cfs_quota_us": "-1",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": "9223372036854771712",
        "unified/cpu.max": "max 100000",
    }
    for root in (machine(tmp_path / "a", "2:cpu:/\n3:memory:/\n0::/\n", **unlimited), machine(tmp_path / "b", "")):
        assert cpu_quota(root) is None
        assert available_cpus(root) == 8
        assert memory_limit(root) == 16 * GIB


def test_a_quota_above_the_processors_grants_no_more_than_them(tmp_path: Path) -> None:
    assert available_cpus(machine(tmp_path, "0::/\n", **{"cpu.max": "6400000 100000"})) == 8


@pytest.mark.parametrize("text", ["", "nonsense", "1 2 3", "max", "0 0", "-5 100", "100000 0"])
def test_files_that_say_nothing_limit_nothing(text: str, tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/\nnonsense\n1:\n", **{"cpu.max": text, "memory.max": text})
    assert available_cpus(root) == 8
    assert memory_limit(root) == 16 * GIB


def test_no_proc_at_all_falls_back_to_the_system(tmp_path: Path) -> None:
    assert physical_memory(tmp_path) == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert available_cpus(tmp_path) == 8
    assert cpu_name(tmp_path) == ""


def test_the_processor_is_named(tmp_path: Path) -> None:
    write(tmp_path / "proc/cpuinfo", "processor\t: 0\nmodel name\t: Some Chip 9000\n")
    assert cpu_name(tmp_path) == "Some Chip 9000"


def test_this_machine_has_a_processor_and_memory() -> None:
    assert available_cpus() >= 1
    assert memory_limit() > 0
