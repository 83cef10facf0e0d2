"""Processors and memory that this process may use, within the container's limits if there are any.

Both versions of Linux control groups are read. A limit may be set at any level of the hierarchy, so the smallest one
counts. `root` is the directory that holds `proc` and `sys`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path("/")
GROUPS = Path("sys/fs/cgroup")


def available_cpus(root: Path = ROOT) -> int:
    """Whole processors that can be kept busy; a quota of 2.5 counts as 2, since a third thread would be throttled."""
    allowed = _allowed_cpus()
    quota = cpu_quota(root)
    return allowed if quota is None else max(1, min(allowed, int(quota)))


def memory_limit(root: Path = ROOT) -> int:
    """Bytes that this process may use: the smallest of its control groups' limits and the machine's memory."""
    names = ("memory.max", "memory.limit_in_bytes")
    limits = [_whole(_text(group / name)) or 0 for group in _groups(root, "memory") for name in names]
    return min([physical_memory(root), *(limit for limit in limits if limit > 0)])


def cpu_quota(root: Path = ROOT) -> float | None:
    """The control groups' CPU quota, in processors (1.5 is one and a half); None without a quota."""
    quotas = []
    for group in _groups(root, "cpu"):
        quotas.append(_quota(_text(group / "cpu.max")))
        quotas.append(_quota(f"{_text(group / 'cpu.cfs_quota_us')} {_text(group / 'cpu.cfs_period_us')}"))
    return min((quota for quota in quotas if quota is not None), default=None)


def physical_memory(root: Path = ROOT) -> int:
    """Bytes of memory in the machine."""
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        kibibytes = _whole(value.removesuffix("kB").strip())
        if name == "MemTotal" and kibibytes:
            return kibibytes * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def cpu_name(root: Path = ROOT) -> str:
    """The processor's model name, or an empty string."""
    for line in _text(root / "proc/cpuinfo").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return ""


def group_file(root: Path, controller: str, name: str) -> str:
    """A file of the innermost control group of this process that has it, or an empty string."""
    found = (_text(group / name) for group in _groups(root, controller))
    return next((text for text in found if text), "")


def _allowed_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _quota(text: str) -> float | None:
    """Parse "QUOTA PERIOD"; None for no limit, which version 2 writes as "max" and version 1 as -1."""
    numbers = [_whole(word) or 0 for word in text.split()]
    return numbers[0] / numbers[1] if len(numbers) == 2 and min(numbers) > 0 else None


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The control groups that this process is in, from its own up to the top."""
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:  # version 2; next to version 1 it is mounted under `unified`
            mounts = [GROUPS, GROUPS / "unified"]
        elif controller in controllers.split(","):
            mounts = [GROUPS / controllers, GROUPS / controller]
        else:
            continue
        for mount in dict.fromkeys(mounts):
            yield from _levels(root / mount, path)


def _levels(mount: Path, path: str) -> Iterator[Path]:
    """The group's directory and its parents, if they exist: in a container the path may be the host's."""
    inside = [part for part in PurePosixPath(path).parts if part not in ("/", "..")]
    for depth in range(len(inside), -1, -1):
        directory = mount.joinpath(*inside[:depth])
        if directory.is_dir():
            yield directory


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
