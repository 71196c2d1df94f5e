# SPDX-License-Identifier: Apache-2.0
"""Which deviceQuery image a board gets, by the role's own variables in Ansible's own templating."""

import json
import subprocess
import sys
from pathlib import Path

from tests.unit.roles.conftest import ROLES

PLAYBOOK = """\
- hosts: all
  connection: local
  gather_facts: false
  vars_files: ["{role}/defaults/main.yml", "{role}/vars/main.yml"]
  tasks:
    - ansible.builtin.set_fact:
        cacheable: true
        jetson: {{arch: aarch64, l4t: "{{{{ l4t }}}}"}}
    - ansible.builtin.set_fact:
        preflight_bundle_info: "{{{{ bundle }}}}"
    - ansible.builtin.copy:
        dest: "{answers}/{{{{ inventory_hostname }}}}"
        content: "{{{{ __gpu_verify_archive }}}} {{{{ __gpu_verify_image }}}}"
"""
BUNDLE = {
    "versions": {"device_query_image": "device-query:any"},
    "files": {
        "device-query-arm64.tar.gz": {"images": {"device-query:any": "sha256:1"}},
        "device-query-l4t32-arm64.tar.gz": {"images": {"device-query:r32": "sha256:2"}},
    },
}
# Board: its variables, and the archive and image that it gets.
BOARDS = {
    "nano": ("l4t=32.7.1", "device-query-l4t32-arm64.tar.gz device-query:r32"),
    "orin": ("l4t=36.4.3", "device-query-arm64.tar.gz device-query:any"),
    "own": ("l4t=36.4.3 gpu_verify_image=mine:1", "device-query-arm64.tar.gz mine:1"),
}


def test_image_is_the_one_for_the_boards_l4t_line_unless_named(tmp_path: Path) -> None:
    playbook, inventory = tmp_path / "play.yml", tmp_path / "inventory"
    playbook.write_text(PLAYBOOK.format(role=ROLES / "gpu_verify", answers=tmp_path))
    inventory.write_text("".join(f"{name} {variables}\n" for name, (variables, _) in BOARDS.items()))
    given = json.dumps({"bundle": BUNDLE, "ansible_python_interpreter": sys.executable})
    ansible = str(Path(sys.executable).with_name("ansible-playbook"))
    command = [ansible, f"--inventory={inventory}", str(playbook)]
    subprocess.run([*command, f"--extra-vars={given}"], check=True, capture_output=True)
    for name, (_, chosen) in BOARDS.items():
        assert (tmp_path / name).read_text() == chosen
