"""The layout: data goes one way, model <- export <- service, and service takes only export.bundle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("model", "export", "service")
HEAVY = {"torch", "onnx", "onnxscript", "safetensors", "matplotlib"}


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def files(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, package
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_exists_and_its_init_is_empty(package: str) -> None:
    assert (ROOT / package / "__init__.py").read_text(encoding="utf-8") == ""


def test_model_knows_neither_export_nor_service() -> None:
    for path in files("model"):
        assert not [name for name in imports(path) if name.split(".")[0] in ("export", "service")], path


def test_export_does_not_know_service() -> None:
    for path in files("export"):
        assert not [name for name in imports(path) if name.split(".")[0] == "service"], path


def test_service_knows_only_the_bundle_and_nothing_heavy() -> None:
    for path in files("service"):
        for name in imports(path):
            top = name.split(".")[0]
            assert top != "model", path
            assert top not in HEAVY, path
            assert top != "export" or name.startswith("export.bundle"), path


def tops(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


def test_the_engine_knows_neither_http_nor_asyncio() -> None:
    for path in files("service/engine"):
        assert not tops(path) & {"asyncio", "fastapi", "starlette", "uvicorn"}, path
        assert not [name for name in imports(path) if name.startswith("service.http")], path


def test_requests_and_bulk_work_without_http() -> None:
    """But for the files of OpenAI's batches, whose lines are requests of HTTP."""
    for path in [
        *files("service/requests"),
        *files("service/bulk"),
        ROOT / "service/api.py",
        ROOT / "service/generate.py",
    ]:
        assert not tops(path) & {"asyncio", "fastapi", "starlette", "uvicorn"}, path
        assert path.name == "batch.py" or not [n for n in imports(path) if n.startswith("service.http")], path


def test_http_knows_no_tensors_and_of_the_engine_only_its_interface() -> None:
    seen = tuple(f"service.engine.{name}" for name in ("interface", "tasks", "distributions", "attention"))
    names = ("Engine", "EngineSettings", "Turns", "total_threads")
    loader = {"service.engine.engine", *(f"service.engine.engine.{name}" for name in names)}
    loader |= {"service.engine.shared", "service.engine.shared.SharedEngine"}
    for path in [*files("service/http"), *files("service/requests")]:
        assert not tops(path) & {"numpy", "onnxruntime"}, path
        found = imports(path) - {"service.engine"}
        known = {name for name in found if name.startswith("service.engine") and not name.startswith(seen)}
        assert known <= (loader if path.name == "app.py" else set()), path


def test_only_the_loader_of_the_application_meets_the_real_engine_and_only_when_it_is_called() -> None:
    tree = ast.parse((ROOT / "service" / "http" / "app.py").read_text(encoding="utf-8"))
    at_import = {node.module for node in tree.body if isinstance(node, ast.ImportFrom)}
    assert "service.engine.engine" not in at_import
