# SPDX-License-Identifier: Apache-2.0
"""Which plays of site.yml have work on any board of a run. The others end before their first task on a board.

A play is for all boards or for none: Ansible ends a playbook when all boards of a play have failed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ansible.module_utils.parsing.convert_bool import boolean
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils import (
    board_variables,
    host_kinds,
    plugin_image,
    user_images,
)
from ansible_collections.jetson_k3s.cluster.plugins.plugin_utils.board_variables import Hostvars, Variables


def builds(hosts: Iterable[str], hostvars: Hostvars) -> bool:
    """Whether the plugin's image is built, or wheels of jetson-stats are downloaded to this computer.

    Of both there is one for all boards, in the bundle or in dist/ of the checkout. A setting of the first
    board is that of all (role preflight).
    """
    boards = host_kinds.boards_of(hosts, hostvars)
    if not boards:
        return False
    first = hostvars[boards[0]]
    bundle, image = first["preflight_bundle_info"], first.get("gpu_device_plugin_image", "")
    archs = [facts["arch"] for facts in board_variables.facts_of(boards, hostvars).values()]
    unbuilt = plugin_image.unbuilt(image, bundle, archs)
    return bool(unbuilt) or plugin_image.lacks_wheels(bundle, boards, hostvars)


def supplies(variables: Variables) -> bool:
    """Whether a host builds the plugin's image, or has or had to do with a registry of the site."""
    if boolean(variables.get("gpu_device_plugin_build_on_board", False), strict=False):
        return True
    supply: dict[str, Any] = variables["ansible_facts"]["jetson"]["image_supply"]
    return bool(variables.get("image_supply_host") or supply["installed"] or supply["trusted"])


def any_supplies(hosts: Iterable[str], hostvars: Hostvars) -> bool:
    """Whether images go to a board in another way than from this computer or a registry of the owner's."""
    return any(supplies(hostvars[host]) for host in hosts)


def loads(variables: Variables) -> bool:
    """Whether a host gets images of the user (role user_images), or has those of a former run."""
    facts = variables.get("ansible_facts", {}).get("jetson", {})
    return bool(variables.get("bundle_images")) or user_images.keeps(facts)


def any_loads(hosts: Iterable[str], hostvars: Hostvars) -> bool:
    """Whether role user_images has work on a host."""
    return any(loads(hostvars[host]) for host in hosts)


def any_changes(hosts: Iterable[str], hostvars: Hostvars) -> bool:
    """Whether role k3s has work on a board, or Docker there waits for a restart."""
    found = (hostvars[host] for host in hosts)
    return any(one.get("k3s_work") or one.get("nvidia_docker_restart_waits") for one in found)


FILTERS = {
    "site_builds": builds,
    "site_changes": any_changes,
    "site_loads": any_loads,
    "site_supplies": any_supplies,
}
