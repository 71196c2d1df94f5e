# SPDX-License-Identifier: Apache-2.0
"""A board gets its inventory name."""

from pathlib import Path

import pytest

from tests.unit.roles.loading import load
from tests.unit.roles.playing import play_text

module = load("k3s/filter_plugins/k3s.py")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1 localhost\n127.0.1.1 jetson\n", "127.0.0.1 localhost\n127.0.1.1\tcamera\n"),
        ("127.0.1.1 jetson cam.site # mine\n::1 ip6\n", "127.0.1.1\tcamera cam.site # mine\n::1 ip6\n"),
        ("127.0.1.1\tjetson camera\n", "127.0.1.1\tcamera\n"),
        ("127.0.0.1 localhost\n10.0.0.1 nas\n", "127.0.0.1 localhost\n127.0.1.1\tcamera\n10.0.0.1 nas\n"),
        ("", "127.0.1.1\tcamera\n"),
    ],
)
def test_hosts_file_has_the_new_name_and_keeps_the_owners(text: str, expected: str) -> None:
    assert module.hosts(text, "jetson", "camera") == expected
    assert module.hosts(expected, "jetson", "camera") == expected


HOSTNAME = """\
- hosts: server
  gather_facts: false
  vars: {preflight_node: camera, jetson: {hostname: jetson}}
  tasks:
    - ansible.builtin.set_fact: {jetson: "{{ jetson }}", cacheable: true}
    - ansible.builtin.import_role: {name: k3s, tasks_from: hostname.yml}
"""


def test_check_mode_shows_the_name_that_a_board_would_get(tmp_path: Path) -> None:
    program = tmp_path / "hostnamectl"
    program.write_text("#!/bin/sh\necho jetson\n")
    program.chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin:/usr/sbin:/sbin"
    run = play_text(tmp_path, HOSTNAME, "--check", "--diff", PATH=path)
    for shown in ("+127.0.1.1 camera", "-hostname = jetson", "+hostname = camera", "changed=2"):
        assert shown in run.said
