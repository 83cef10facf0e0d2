"""The lowest versions that pyproject.toml admits, which `make test-versions` installs."""

from __future__ import annotations

import tomllib

import pytest

from deploy.lowest_versions import PROJECT, lowest


def test_a_lower_bound_becomes_the_version_and_keeps_its_marker() -> None:
    given = ["numpy>=1.26", "uvicorn>=0.45,<1", "uvloop>=0.20; sys_platform != 'win32'", "ray[data,serve]>=2.6"]
    assert lowest(given) == ["numpy==1.26", "uvicorn==0.45", "uvloop==0.20; sys_platform != 'win32'", "ray==2.6"]


@pytest.mark.parametrize("given", ["numpy", "numpy<2", "numpy==1.26"])
def test_a_dependency_without_a_lower_bound_is_refused(given: str) -> None:
    with pytest.raises(ValueError, match="has no lower bound"):
        lowest([given])


def test_every_runtime_dependency_has_a_lower_bound() -> None:
    dependencies = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["dependencies"]
    assert len(lowest(dependencies)) == len(dependencies)
