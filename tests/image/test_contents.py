# SPDX-License-Identifier: Apache-2.0
"""The image from inside: nothing is missing that the plugin or its libraries load, and nothing can harm."""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from images.arm64.context import PACKAGE
from release import version
from tests.image.conftest import Loaded

pytestmark = [pytest.mark.lab, pytest.mark.acceptance]

LOAD_ALL = """
import ctypes, json, pathlib
failed = {}
for place in ("/usr", "/lib", "/opt"):
    for path in sorted(pathlib.Path(place).rglob("*.so*")):
        if path.is_file():
            try:
                ctypes.CDLL(str(path))
            except OSError as error:
                failed[str(path)] = str(error)
print(json.dumps(failed))
"""

# In a child each, as some modules change the process or wait for input; a fork costs no interpreter start.
IMPORT_ALL = """
import importlib, json, os, pathlib
names = set(json.load(open("/names.json")))
for path in pathlib.Path("/opt/tegra-device-plugin").rglob("*"):
    if path.suffix in (".py", ".pyc", ".so") and "__pycache__" not in path.parts:
        parts = [*path.relative_to("/opt/tegra-device-plugin").parts[:-1], path.name.split(".")[0]]
        if all(part.isidentifier() for part in parts):
            names.add(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
failed = {}
for name in sorted(names):
    if name.endswith("__main__"):
        continue
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        sink = os.open("/dev/null", os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(sink, number)
        try:
            importlib.import_module(name)
        except BaseException as error:
            os.write(writing, f"{type(error).__name__}: {error}".encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    if os.waitpid(child, 0)[1]:
        said = "died"
    if said:
        failed[name] = said
print(json.dumps({"failed": failed, "count": len(names)}))
"""

# Modules that cannot be imported first, wherever they are.
NOT_ALONE = {
    "grpc._simple_stubs": "part of grpc.experimental, which it imports",
    "truststore._macos": "of macOS",
    "truststore._windows": "of Windows",
}
# What the libraries import somewhere and the image does not have, with the reason.
ABSENT = {
    "grpc_health": "another distribution, for those who install it",
    "grpc_reflection": "another distribution, for those who install it",
    "grpc_tools": "another distribution: compiles .proto files at run time",
    "google.protobuf.json": "only in the sources of protobuf's own tests",
    "google_benchmark": "for protobuf's benchmarks",
    "numpy": "for protobuf's support of its types, if they are there",
    "unittest": "for protobuf's tests, and for lightkube's documentation",
    "h2": "HTTP/2, which is not used",
    "wsproto": "WebSockets, which are not used",
    "socksio": "SOCKS proxies, if it is there",
    "jinja2": "for lightkube's templates, if it is there",
    "brotli": "a compression, if it is there",
    "brotlicffi": "the same",
    "backports": "the same",
    "compression": "the same, of Python 3.14",
    "httpx2_jsfetch": "for browsers",
    **dict.fromkeys(
        ("trio", "outcome", "sniffio", "uvloop", "winloop"), "other event loops, if they are there"
    ),
    **dict.fromkeys(("pytest", "_pytest"), "for anyio's help with tests"),
    **dict.fromkeys(("click", "rich", "pygments"), "for httpx2's command line"),
    **dict.fromkeys(("_interpreters", "_interpqueues", "concurrent.interpreters"), "of Python 3.13 and 3.14"),
    **dict.fromkeys(("annotationlib", "pathlib.types"), "of Python 3.14"),
    **dict.fromkeys(("tomli", "tomli_w", "exceptiongroup"), "of older Pythons, or if it is there"),
    "_typeshed": "only for type checkers",
    "attrs": "for msgspec's support of its classes, if they are there",
    **dict.fromkeys(("requests", "urllib3"), "for who has truststore patch them"),
}


LIBRARIES = (
    *("grpc", "google.protobuf", "yaml"),
    *("lightkube", "httpx2", "httpcore2", "anyio", "h11", "msgspec", "idna", "truststore"),
)


def test_every_shared_library_and_extension_loads(image: Loaded) -> None:
    assert json.loads(image.python(LOAD_ALL)) == {}


def imports(package: Path) -> Iterator[str]:
    """Yield what a package's files import, anywhere in them: in functions and error paths as well."""
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module


def is_known(name: str, why: str) -> bool:
    missing = re.search(r"No module named '([^']+)'", why)
    return name in NOT_ALONE or (
        missing is not None and any(f"{missing[1]}.".startswith(f"{known}.") for known in ABSENT)
    )


def test_modules_of_plugin_and_libraries_import_and_so_does_what_they_import_anywhere(
    image: Loaded, tmp_path: Path
) -> None:
    modules = [sys.modules.get(name) or __import__(name, fromlist=["__file__"]) for name in LIBRARIES]
    packages = [PACKAGE, *(Path(str(module.__file__)).parent for module in modules)]
    names = tmp_path / "names.json"
    names.write_text(json.dumps(sorted({name for package in packages for name in imports(package)})))
    answer = json.loads(image.python(IMPORT_ALL, f"--volume={names}:/names.json:ro"))
    assert answer["count"] > 300
    assert {name: why for name, why in answer["failed"].items() if not is_known(name, why)} == {}


def test_nothing_but_python_can_be_run_and_nothing_is_privileged(image: Loaded) -> None:
    program = """
import json, os, stat
programs, privileged = [], []
for place, _, names in os.walk("/"):
    if place.startswith(("/proc", "/sys", "/dev")):
        continue
    for name in names:
        path = os.path.join(place, name)
        mode = os.lstat(path).st_mode
        if not stat.S_ISREG(mode):
            continue
        if mode & 0o111 and ".so" not in name and open(path, "rb").read(2) in (b"\\x7fE", b"#!"):
            programs.append(path)
        if mode & (stat.S_ISUID | stat.S_ISGID | stat.S_IWOTH):
            privileged.append(path)
print(json.dumps([programs, privileged]))
"""
    programs, privileged = json.loads(image.python(program))
    assert set(programs) - {"/.dockerenv"} == {"/usr/bin/python3.11"}
    assert privileged == []


def test_no_build_tool_and_no_trace_of_the_build_machine_is_left(image: Loaded) -> None:
    program = """
import importlib.util, json, pathlib
tools = ("pip", "setuptools", "ensurepip", "unittest")
gone = [name for name in tools if importlib.util.find_spec(name)]
leaks = [str(path) for path in pathlib.Path("/opt").rglob("*.pyc") if b"/tree/" in path.read_bytes()]
sources = [str(path) for path in pathlib.Path("/usr/lib").rglob("*.py")]
print(json.dumps([gone, leaks, sources]))
"""
    assert json.loads(image.python(program)) == [[], [], []]


def test_version_is_that_of_the_labels(image: Loaded) -> None:
    said = image.run("--version")
    assert said.returncode == 0
    revision = image.label("revision")
    assert len(revision.removesuffix("-dirty")) == 40
    assert said.stdout == f"tegra-device-plugin {version.current()} (revision {revision})\n"
