"""Free memory out of /proc and /sys as various systems have them."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from sixfold.engine.free_memory import free_memory

GB = 1 << 30
NONE = resource.RLIM_INFINITY


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Of the process; none."""
    chosen = {resource.RLIMIT_AS: NONE, resource.RLIMIT_DATA: NONE}
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (chosen[kind], NONE))
    return chosen


@pytest.fixture
def root(tmp_path: Path, limits: dict[int, int]) -> Path:
    """A machine with 8 GB available and no control groups."""
    write(
        tmp_path, "proc/meminfo", "MemTotal: 16777216 kB\nMemAvailable: 8388608 kB\nCommitLimit: 4194304 kB\n\nHuge\n"
    )
    write(tmp_path, "proc/sys/vm/overcommit_memory", "0\n")
    write(tmp_path, "proc/self/status", "Name:\tpython\nVmSize:\t1048576 kB\nVmData:\t524288 kB\n")
    return tmp_path


def write(root: Path, path: str, text: object) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(f"{text}\n")


def test_the_system(root: Path) -> None:
    assert free_memory(root=root) == (8 * GB, "free")
    (root / "proc/meminfo").unlink()
    assert free_memory(root=root).n_bytes > GB / 2, "the machine's memory"


def test_a_system_that_promises_no_more_than_it_has(root: Path) -> None:
    write(root, "proc/sys/vm/overcommit_memory", 2)
    write(root, "proc/meminfo", "MemAvailable: 8388608 kB\nCommitLimit: 4194304 kB\nCommitted_AS: 1048576 kB")
    free = free_memory(root=root)
    assert 2.5 * GB < free.n_bytes < 3 * GB and "overcommit" in free.source


def group(root: Path, path: str, **files: object) -> None:
    for name, value in files.items():
        write(root, f"sys/fs/cgroup/{path}/{name.replace('__', '.')}", value)


def test_control_groups_of_version_2(root: Path) -> None:
    write(root, "sys/fs/cgroup/cgroup.controllers", "cpu memory")
    write(root, "proc/self/cgroup", "0::/user.slice/job.scope")
    group(root, "user.slice/job.scope", memory__max="max", memory__high="max", memory__current=GB)
    group(root, "user.slice", memory__max=4 * GB, memory__high="max", memory__current=3 * GB)
    assert free_memory(root=root) == (GB, "left of the control group's limit")
    group(root, "user.slice", memory__stat=f"anon 5\nactive_file {GB}\ninactive_file {GB // 2}\nshmem 7")
    assert free_memory(root=root).n_bytes == 2.5 * GB, "page cache gives way"
    group(root, "user.slice/job.scope", memory__high=GB + 5)
    assert free_memory(root=root).n_bytes == 5
    group(root, "user.slice/job.scope", memory__max=GB - 5)
    assert free_memory(root=root).n_bytes == 0


@pytest.mark.parametrize("path", ["/", "/../..", "/docker/0123"])
def test_inside_a_container_its_group_is_the_top(path: str, root: Path) -> None:
    write(root, "sys/fs/cgroup/cgroup.controllers", "memory")
    write(root, "proc/self/cgroup", f"0::{path}")
    group(root, "", memory__max=2 * GB, memory__current=GB)
    group(root, "docker", memory__max=1, memory__current=0)
    assert free_memory(root=root).n_bytes == GB


def test_control_groups_of_version_1(root: Path) -> None:
    write(root, "proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/job\n0::/")
    group(root, "memory", memory__limit_in_bytes=9223372036854771712, memory__usage_in_bytes=6 * GB)
    assert free_memory(root=root) == (8 * GB, "free")
    group(root, "memory/job", memory__limit_in_bytes=2 * GB, memory__usage_in_bytes=GB)
    group(root, "memory/job", memory__stat=f"active_file 9\ntotal_active_file {GB // 2}")
    assert free_memory(root=root) == (1.5 * GB, "left of the control group's limit")


def test_limits_of_the_process(root: Path, limits: dict[int, int]) -> None:
    limits[resource.RLIMIT_AS] = 4 * GB
    free = free_memory(root=root)
    assert 2.5 * GB < free.n_bytes < 3 * GB and "ulimit -v" in free.source
    assert free_memory(GB, root=root).n_bytes == free.n_bytes - GB, "a file that is mapped takes addresses"
    assert free_memory(0, GB, root=root).n_bytes == free.n_bytes + GB, "others have limits of their own"
    limits[resource.RLIMIT_DATA] = GB
    assert free_memory(root=root).n_bytes < GB / 2
    assert "ulimit -d" in free_memory(root=root).source


def test_this_machine() -> None:
    assert 1 << 20 < free_memory().n_bytes < 1 << 50
