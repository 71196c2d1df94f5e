# SPDX-License-Identifier: Apache-2.0
"""Only commands with API credentials pay for the API server's client: memory is scarce on boards."""

import json
import subprocess
import sys

import pytest

OTHERS_LACK = {
    *("lightkube", "httpx2", "msgspec", "anyio"),
    *("tegra_device_plugin.dra.driver", "tegra_device_plugin.throttling"),
}

# The command line is rejected after the command's imports.
PROGRAM = """
import json, sys
from tegra_device_plugin import cli
code = cli.main([sys.argv[1], "--log-level=loud"])
print(json.dumps([code, sorted(name for name, module in sys.modules.items() if module)]))
"""


@pytest.mark.parametrize("command", ["run", "agent"])
def test_other_commands_import_none_of_it_and_no_tls(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, command], capture_output=True, text=True, check=True, timeout=60
    )
    code, names = json.loads(done.stdout)
    assert code == 2
    assert "asyncio" in names
    assert not (OTHERS_LACK | {"ssl", "_ssl"}) & set(names)
