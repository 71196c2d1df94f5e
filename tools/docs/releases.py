# SPDX-License-Identifier: Apache-2.0
"""The roles' table of JetPacks: the plugin's catalogue, as Python that runs on boards."""

from collections.abc import Mapping

from tegra_device_plugin.board import catalogue

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""JetPack by L4T release. Written by `python -m tools.docs` from the device plugin's catalogue.json."""

JETPACK = {
'''


def render(jetpack: Mapping[str, str]) -> str:
    """The whole module."""
    entries = [f'    {catalogue.version(release)}: "{name}",\n' for release, name in jetpack.items()]
    return HEAD + "".join(entries) + "}\n"
