"""The source distribution and the wheel that is built from it, installed in an environment of their own."""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
import textwrap
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from attendant.common.version import DISTRIBUTION, VERSION
from attendant.kernels.compile import LIBRARY, find_compiler
from bench.profile.install_sizes import PACKAGES, copy_source

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {
    name: text for name, text in os.environ.items() if name != "PYTHONPATH" and not name.startswith("ATTENDANT_")
}

pytestmark = pytest.mark.timeout(600)  # pip downloads where its cache has nothing yet


def run(*command: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def succeed(*command: object, cwd: Path) -> str:
    done = run(*command, cwd=cwd)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, which `build` makes first."""
    source = tmp_path_factory.mktemp("source") / "project"
    copy_source(source)
    succeed(sys.executable, "-m", "build", "--no-isolation", "--outdir", "dist", cwd=source)
    assert [path.name for path in (source / "dist").glob("*.tar.gz")] == [f"attendant_transformer-{VERSION}.tar.gz"]
    (found,) = (source / "dist").glob("*.whl")
    return found


@pytest.mark.parametrize("compiler", [None, "/bin/false"])
def test_without_a_compiler_that_works_the_wheel_is_for_any_platform_and_a_sentence_says_why(
    tmp_path: Path, compiler: str | None
) -> None:
    source = tmp_path / "project"
    copy_source(source)
    (tmp_path / "empty").mkdir()
    hidden = {"PATH": str(tmp_path / "empty")} if compiler is None else {"CXX": compiler}
    environment = {name: text for name, text in ENVIRONMENT.items() if name != "CXX"} | hidden
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"]
    done = subprocess.run(command, cwd=source, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert [path.name for path in (source / "dist").iterdir()] == [f"attendant_transformer-{VERSION}-py3-none-any.whl"]
    assert re.search(r"^attendant: .+ so .*the portable graphs are used, .+; install ", done.stderr, re.MULTILINE)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of programs of an environment with the wheel and what it depends on, and nothing else."""
    directory = tmp_path_factory.mktemp("environment")
    venv.create(directory, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", directory / "bin" / "python", "install", "--quiet", "--no-compile"]
    succeed(*pip, "--disable-pip-version-check", wheel, cwd=directory)
    return directory / "bin"


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    paths = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    for_development = ("jsconfig.json", ".d.ts")
    installed = [p for p in paths if "__pycache__" not in p.parts and not p.name.endswith(for_development)]
    installed = [p for p in installed if p.suffix != ".so" and p.parent.name not in ("cc", "tests", "bench")]
    names = {str(path.relative_to(ROOT)) for path in installed} | ({f"kernels/{LIBRARY}"} if find_compiler() else set())
    files = {name if name.startswith("attendant/") else f"attendant/{name}" for name in names}
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == files


def test_the_version_is_the_distribution_s(installed: Path, tmp_path: Path) -> None:
    code = f"import attendant, importlib.metadata as m; print(attendant.__version__, m.version({DISTRIBUTION!r}))"
    assert succeed(installed / "python", "-c", code, cwd=tmp_path).split() == [VERSION, VERSION]
    assert succeed(installed / "attendant", "--version", cwd=tmp_path) == f"attendant {VERSION}\n"


def test_the_command_tells_of_the_embedded_model(installed: Path, tmp_path: Path) -> None:
    found = json.loads(succeed(installed / "attendant", "info", "--json", cwd=tmp_path))
    assert Path(found["bundle"]["directory"]).is_relative_to(installed.parent)


def test_the_command_generates(installed: Path, tmp_path: Path) -> None:
    assert succeed(installed / "attendant", "generate", "attendant", cwd=tmp_path) == "AH0 T EH1 N D AH0 N T\n"


def test_the_python_api_generates(installed: Path, tmp_path: Path) -> None:
    code = "from attendant import Model\nwith Model() as model: print(model.generate('attendant').text)"
    assert succeed(installed / "python", "-c", code, cwd=tmp_path) == "AH0 T EH1 N D AH0 N T\n"


@pytest.fixture(scope="module")
def port(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Of a server that is ready."""
    command = [installed / "attendant", "serve", "--port", "0", "--log-level", "warning"]
    directory = tmp_path_factory.mktemp("service")
    with subprocess.Popen(command, cwd=directory, env=ENVIRONMENT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", process.stdout.readline())
            assert found
            yield int(found[1])
        finally:
            process.terminate()


def test_the_service_answers_and_has_its_documentation(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", "/v1/generate", json.dumps({"inputs": "attendant"}))
    answer = json.loads(connection.getresponse().read())
    assert answer["outputs"][0]["hypotheses"][0]["text"] == "AH0 T EH1 N D AH0 N T"
    connection.request("GET", "/docs")
    page = connection.getresponse()
    assert page.status == 200
    for path in re.findall(r'(?:src|href)="(/[^"]+)"', page.read().decode()):
        connection.request("GET", path)
        part = connection.getresponse()
        part.read()
        assert part.status == 200, path
    connection.close()


@pytest.mark.parametrize("first_line", ["import json, urllib.request", "from openai import OpenAI"])
def test_the_programs_of_the_documentation_are_answered(port: int, first_line: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    (program,) = re.findall(rf"^    {re.escape(first_line)}\n(?:    .*\n|\n(?=    ))+", page, re.MULTILINE)
    code = textwrap.dedent(program).replace("127.0.0.1:8000", f"127.0.0.1:{port}")
    assert succeed(sys.executable, "-c", code, cwd=tmp_path).startswith("AH0 T EH1 N D AH0 N T\n")


def test_what_needs_an_extra_names_it(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "pairs.tsv").write_text("a\tb\n", encoding="utf-8")
    done = run(
        *(installed / "attendant", "train", "--preset", "tiny", "--data", "pairs.tsv", "--valid", "pairs.tsv"),
        *("--out", "run"),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert done.stderr.endswith(f"which is not installed; run: pip install '{DISTRIBUTION}[train]'.\n")


def test_a_type_checker_sees_the_python_api(installed: Path, tmp_path: Path) -> None:
    lines = ["from attendant import Model", "model = Model()", "reveal_type(model.generate(['a'], beam_size=2))"]
    (tmp_path / "program.py").write_text("\n".join([*lines, "model.generate('a', beam_size='two')"]), encoding="utf-8")
    done = run(*(sys.executable, "-m", "mypy", "--python-executable", installed / "python", "program.py"), cwd=tmp_path)
    assert re.search(
        r'Revealed type is "(builtins\.)?list\[attendant\.service\.api\.results\.Output\]"', done.stdout
    ), done.stdout
    assert 'program.py:4: error: No overload variant of "generate"' in done.stdout
    assert "Found 1 error in 1 file" in done.stdout


def test_nothing_but_one_name_is_on_the_top_level(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert {name.split("/")[0].partition("-")[0] for name in archive.namelist()} == {
            "attendant",
            DISTRIBUTION.replace("-", "_"),
        }


# Somebody else's project, with names that ours had on the top level once: its files, and what it imports of them.
PROJECTS = {
    "service/": ({"service/__init__.py": "WHOSE = 'theirs'"}, "from service import WHOSE"),
    "service.py": ({"service.py": "WHOSE = 'theirs'"}, "from service import WHOSE"),
    "export/": ({"export/__init__.py": "WHOSE = 'theirs'"}, "from export import WHOSE"),
    "export.py": ({"export.py": "WHOSE = 'theirs'"}, "from export import WHOSE"),
    "model/": ({"model/__init__.py": "", "model/net.py": "WHOSE = 'theirs'"}, "from model.net import WHOSE"),
    "model/ without __init__": ({"model/net.py": "WHOSE = 'theirs'"}, "from model.net import WHOSE"),
    "model.py": ({"model.py": "WHOSE = 'theirs'"}, "from model import WHOSE"),
}
PROGRAM = "from attendant import Model\nwith Model() as model: TEXT = model.generate('attendant').text\n"
ANSWER = "AH0 T EH1 N D AH0 N T"


@pytest.fixture(params=PROJECTS)
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Its directory, with a program and a test that use both its own package and ours."""
    files, own = PROJECTS[request.param]
    test = f"{own}\n{PROGRAM}def test_both(): assert (WHOSE, TEXT) == ('theirs', '{ANSWER}')\n"
    both = {"program.py": f"{own}\n{PROGRAM}print(WHOSE, TEXT)\n", "test_both.py": test}
    for name, text in {**files, **both}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def pytest_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pytest, apart from the environment that has what serving needs and nothing else."""
    directory = tmp_path_factory.mktemp("pytest")
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target", directory)
    succeed(*pip, f"pytest=={pytest.__version__}", cwd=directory)
    return directory


def test_a_project_keeps_its_own_packages_and_has_ours(installed: Path, project: Path) -> None:
    assert succeed(installed / "python", "program.py", cwd=project) == f"theirs {ANSWER}\n"


def test_the_commands_work_beside_a_project_s_own_packages(installed: Path, project: Path) -> None:
    assert succeed(installed / "attendant", "generate", "attendant", cwd=project) == f"{ANSWER}\n"
    assert succeed(installed / "python", "-m", "attendant", "generate", "attendant", cwd=project) == f"{ANSWER}\n"


def test_pytest_works_beside_a_project_s_own_packages(installed: Path, project: Path, pytest_directory: Path) -> None:
    code = f"import sys; sys.path.append({str(pytest_directory)!r}); import pytest; sys.exit(pytest.main(['-q']))"
    assert "1 passed" in succeed(installed / "python", "-P", "-c", code, cwd=project)


def test_a_plain_install_works_in_a_checkout(installed: Path) -> None:
    """There `import attendant` finds the folder `attendant/`, and `model`, `export` and `service` beside it."""
    code = "import attendant; from attendant.service import api; print(attendant.__file__, api.__file__)\n"
    found = succeed(installed / "python", "-c", code, cwd=ROOT).split()
    assert found == [str(ROOT / "attendant" / "__init__.py"), str(ROOT / "service" / "api" / "__init__.py")]
    assert succeed(installed / "python", "-c", f"{PROGRAM}print(TEXT)", cwd=ROOT) == f"{ANSWER}\n"
