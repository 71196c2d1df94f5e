# SPDX-License-Identifier: Apache-2.0
"""Only `dra` pays for the API server's client: memory is scarce on boards."""

import json
import subprocess
import sys

import pytest

ONLY_DRA = {"lightkube", "httpx2", "msgspec", "anyio", "tegra_device_plugin.dra.driver"}

# A command line that is refused after the command's imports, or before its sockets.
PROGRAM = """
import json, sys
from tegra_device_plugin import cli
code = cli.main(sys.argv[1:])
print(json.dumps([code, sorted(name for name, module in sys.modules.items() if module)]))
"""


def modules_of(*arguments: str) -> tuple[int, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *arguments], capture_output=True, text=True, check=True, timeout=60
    )
    code, names = json.loads(done.stdout)
    return code, set(names)


@pytest.mark.parametrize("command", ["run", "agent"])
def test_the_others_load_none_of_it_and_no_tls(command: str) -> None:
    code, names = modules_of(command, "--log-level=loud")
    assert code == 2
    assert "asyncio" in names
    assert not (ONLY_DRA | {"ssl", "_ssl"}) & names


def test_dra_registers_before_it_loads_the_client() -> None:
    code, names = modules_of("dra", "--log-level=loud", "--node-name=a")
    assert code == 2
    assert ONLY_DRA & names == {"tegra_device_plugin.dra.driver"}
