# SPDX-License-Identifier: Apache-2.0
"""The inventories of the documents are ones that Ansible reads, and say what their remarks say."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs import markdown

BOARD_AND_ADDRESS = re.compile(r"^# (jetson-\d+) is (\S+)$", re.MULTILINE)


INVENTORIES = {
    f"{document.name}-{number}": block.text
    for document in map(markdown.read, markdown.paths())
    for number, block in enumerate(document.blocks)
    if block.language == "ini" and "[k3s_cluster:children]" in block.text
}


def ansible(program: str, *arguments: str) -> str:
    command = [str(Path(sys.executable).with_name(program)), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "[WARNING]" not in ran.stderr
    return ran.stdout


@pytest.mark.parametrize("text", INVENTORIES.values(), ids=INVENTORIES)
def test_inventory_has_its_boards_at_their_addresses(tmp_path: Path, text: str) -> None:
    given = tmp_path / "inventory"
    given.write_text(text)
    listed = json.loads(ansible("ansible-inventory", "-i", str(given), "--list"))
    servers, agents = (listed.get(group, {}).get("hosts", []) for group in ("server", "agent"))
    # A cluster that exists already has its servers elsewhere.
    assert len(servers) % 2 or "existing_server" in text or "k3s_existing_kubeconfig" in text
    assert not set(servers) & set(agents)
    for board, address in BOARD_AND_ADDRESS.findall(text):
        shown = ansible("ansible", "-i", str(given), board, "-m", "debug", "-a", "var=ansible_host")
        assert address in shown.replace('"', " ").split()
