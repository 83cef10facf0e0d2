"""The layout: data goes one way, model <- export <- service; no module reaches what it must not through others."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("attendant/common", "model", "export", "service")
HEAVY = {"torch", "onnx", "onnxscript", "safetensors", "matplotlib"}
WEB = {"asyncio", "fastapi", "starlette", "uvicorn"}
MOST_MODULES = 15  # side by side in a folder; beyond that it has folders of its own
SERVICE = "attendant.service"


def imports(path: Path, late: bool = True) -> set[str]:
    """Every module or name that a file imports; without `late`, only what is imported with the file itself."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = set()
    for node in ast.walk(tree) if late else at_import(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module or ""}
    return found


def at_import(tree: ast.AST) -> list[ast.AST]:
    """The statements that run when a module is imported: not those of functions, nor those for type checkers alone."""
    found: list[ast.AST] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        found += [node, *at_import(node)]
    return found


def files(package: str) -> list[Path]:
    found = sorted((ROOT / package).rglob("*.py"))
    assert found, package
    return found


@cache
def modules() -> dict[str, Path]:
    """Every file that is installed, by its import name."""
    found = {}
    for package in ("attendant", "model", "export", "hub", "kernels", "service"):
        for path in files(package):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name if package == "attendant" else f"attendant.{name}"] = path
    return found


@cache
def reached(name: str) -> frozenset[str]:
    """All that importing a module imports: modules of this project followed, others by their top-level name."""
    seen: set[str] = set()
    open_names = [name]
    while open_names:
        current = open_names.pop()
        if current in seen:
            continue
        seen.add(current)
        if current in modules():
            open_names += [found for found in imports(modules()[current], late=False) if found in modules()]
            seen |= {found.split(".")[0] for found in imports(modules()[current], late=False)}
    return frozenset(seen)


def names_under(*prefixes: str) -> list[str]:
    found = [name for name in modules() if name.startswith(tuple(f"{SERVICE}.{prefix}" for prefix in prefixes))]
    assert found, prefixes
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_exists_and_its_init_is_empty(package: str) -> None:
    assert (ROOT / package / "__init__.py").read_text(encoding="utf-8") == ""


@pytest.mark.parametrize("top", ["attendant", "model", "export", "hub", "kernels", "service", "bench", "tests"])
def test_a_folder_shows_few_modules_side_by_side(top: str) -> None:
    folders = {path.parent for path in files(top)}
    crowded = {folder: len([*folder.glob("*.py")]) for folder in folders}
    assert {str(folder): count for folder, count in crowded.items() if count > MOST_MODULES + 1} == {}  # and __init__


def test_model_knows_neither_export_nor_service() -> None:
    for path in files("model"):
        assert not [name for name in imports(path) if name.startswith(("attendant.export", SERVICE))], path


def test_export_does_not_know_service() -> None:
    for path in files("export"):
        assert not [name for name in imports(path) if name.startswith(SERVICE)], path


def test_the_kernels_know_no_other_package_and_need_only_the_standard_library() -> None:
    for path in files("kernels"):
        others = [name for name in imports(path, late=False) if name.startswith("attendant")]
        assert not [name for name in others if not name.startswith("attendant.kernels")], path
        assert not reached("attendant.kernels") & {"numpy", "onnxruntime", *HEAVY, *WEB}, path


def test_models_by_name_know_no_other_package_and_only_the_client_meets_huggingface_hub_when_it_is_called() -> None:
    for path in files("hub"):
        others = [name for name in imports(path) if name.startswith("attendant")]
        assert not [name for name in others if not name.startswith(("attendant.hub", "attendant.common"))], path
    late = {
        path for name, path in modules().items() if "huggingface_hub" in {each.split(".")[0] for each in imports(path)}
    }
    assert late == {ROOT / "hub" / "client.py"}
    assert "huggingface_hub" not in reached("attendant.hub.client")


def test_what_all_may_import_imports_none_of_them() -> None:
    for path in files("attendant/common"):
        known = [name for name in imports(path) if name.startswith("attendant.")]
        assert not [name for name in known if not name.startswith("attendant.common")], path


def test_service_knows_only_the_bundle_and_nothing_heavy() -> None:
    for path in files("service"):
        for name in imports(path):
            assert name.split(".")[0] not in HEAVY, path
            assert not name.startswith("attendant.model"), path
            assert not name.startswith("attendant.export") or name.startswith("attendant.export.bundle"), path


def test_the_engine_reaches_neither_http_nor_asyncio() -> None:
    for name in names_under("engine"):
        assert not reached(name) & WEB, name
        assert not [found for found in reached(name) if found.startswith(f"{SERVICE}.http")], name


def test_http_knows_no_tensors_and_of_the_engine_only_its_interface() -> None:
    engine = f"{SERVICE}.engine"
    interface = ("interface", "tasks", "collect", "search.distributions", "explain.attention", "explain.counts")
    interface += ("search.constraints",)
    seen = tuple(f"{engine}.{name}" for name in interface)
    packages = {engine, f"{engine}.search", f"{engine}.explain"}
    names = ("Engine", "EngineSettings", "ThreadBudget", "total_threads")
    loader = {f"{engine}.engine", *(f"{engine}.engine.{name}" for name in names)}
    loader |= {f"{engine}.cache.shared", f"{engine}.cache.shared.SharedEngine"}
    for path in [*files("service/http"), *files("service/requests"), *files("service/openai")]:
        assert not {name.split(".")[0] for name in imports(path)} & {"numpy", "onnxruntime"}, path
        found = imports(path) - packages
        known = {name for name in found if name.startswith(engine) and not name.startswith(seen)}
        assert known <= (loader if path.name == "app.py" else set()), path


def test_only_the_loader_of_the_application_meets_the_real_engine_and_only_when_it_is_called() -> None:
    assert f"{SERVICE}.engine.engine" not in reached(f"{SERVICE}.http.app")


def test_the_models_do_not_reach_http() -> None:
    for name in names_under("models"):
        assert not [found for found in reached(name) if found.startswith(f"{SERVICE}.http")], name
        assert not reached(name) & {"fastapi", "starlette", "uvicorn"}, name


def test_what_works_without_http_reaches_no_web_framework() -> None:
    """`from attendant import Model` and `attendant generate` must not pay for FastAPI."""
    web = WEB | {"prometheus_client"}
    for name in ["attendant", *names_under("api", "requests", "openai", "bulk", "commands.generate", "commands.info")]:
        own = (
            {"asyncio"} if name == f"{SERVICE}.api.awaiting" else set()
        )  # imported with the first call that is awaited
        assert not reached(name) & (web - own), name
        assert not [found for found in reached(name) if found.startswith(f"{SERVICE}.http")], name


def test_the_formats_of_importers_share_through_families_and_file_readers_know_neither() -> None:
    formats, families = "attendant.model.importers.formats", "attendant.model.importers.families"
    for folder, unknown in (("formats", (formats,)), ("families", (formats,)), ("files", (formats, families))):
        for path in files(f"model/importers/{folder}"):
            assert not [name for name in imports(path) if name.startswith(unknown)], path
