# SPDX-License-Identifier: Apache-2.0
"""The plugin with no other packages than pyproject.toml declares: with the extra `dra`, and without it."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.docs import CHECKOUT

PROJECT = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
DECLARED = PROJECT["dependencies"]
EXTRA = PROJECT["optional-dependencies"]["dra"]
IMPORT_ALL = """
import importlib, json, pkgutil, tegra_device_plugin
failed = {}
for module in pkgutil.walk_packages(tegra_device_plugin.__path__, "tegra_device_plugin."):
    if not module.name.endswith(".__main__"):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            failed[module.name] = error.name
print(json.dumps(failed))
"""


def distributions(declared: Sequence[str], environment: dict[str, str]) -> Iterator[str]:
    """Names of the packages that pip installs for these requirements."""
    for text in declared:
        requirement = Requirement(text)
        if requirement.marker and not requirement.marker.evaluate(environment):
            continue
        yield requirement.name
        needed = distribution(requirement.name).requires or []
        for extra in ("", *requirement.extras):
            yield from distributions(needed, {"extra": extra})


def installed(directory: Path, declared: Sequence[str]) -> Path:
    """Fill a directory as `pip install --target` does, by links to this environment."""
    directory.mkdir()
    (directory / "tegra_device_plugin").symlink_to(CHECKOUT / "plugin/tegra_device_plugin")
    for name in set(distributions(declared, {"extra": ""})):
        found = distribution(name)
        for top in {file.parts[0] for file in found.files or []} - {".."}:
            if not (directory / top).exists():
                (directory / top).symlink_to(Path(str(found.locate_file(top))))
    return directory


def python(directory: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with these packages alone (-S: without those of the environment)."""
    command = [sys.executable, "-S", *arguments]
    given = {"PYTHONPATH": str(directory), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, env=given, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("plain") / "packages", DECLARED)


def test_only_what_talks_to_the_api_server_needs_the_extra(plain: Path) -> None:
    failed = json.loads(python(plain, "-c", IMPORT_ALL).stdout)
    own = (
        "tegra_device_plugin.dra.",
        "tegra_device_plugin.throttling.",
        "tegra_device_plugin.system.api_server",
    )
    assert failed["tegra_device_plugin.dra.driver"] in ("httpx2", "lightkube", "msgspec")
    assert {name for name in failed if not name.startswith(own)} == set()


def test_declared_packages_are_enough_for_all_modules(tmp_path: Path) -> None:
    directory = installed(tmp_path / "packages", [*DECLARED, *EXTRA])
    assert json.loads(python(directory, "-c", IMPORT_ALL).stdout) == {}


@pytest.mark.parametrize("command", ["dra", "throttle-taint"])
def test_command_without_its_extra_says_how_to_install_it(plain: Path, command: str) -> None:
    done = python(plain, "-m", "tegra_device_plugin", command)
    assert done.returncode == 1
    assert "pip install 'tegra-device-plugin[dra]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_other_commands_work_without_the_extra(plain: Path) -> None:
    for command in ("run", "agent"):
        done = python(plain, "-m", "tegra_device_plugin", command, "--log-level=loud")
        assert (done.returncode, "--log-level" in done.stderr) == (2, True), done.stderr
