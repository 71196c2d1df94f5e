# SPDX-License-Identifier: Apache-2.0
"""The plugin's catalogue of JetPacks: as Python that runs on boards, and as Markdown."""

from collections.abc import Mapping

from tegra_device_plugin.board import catalogue

from tools.docs.markdown import item

HEAD = '''\
# SPDX-License-Identifier: Apache-2.0
"""JetPack by L4T release. Written by `python -m tools.docs` from the device plugin's catalogue.json."""

JETPACK = {
'''


def module(jetpack: Mapping[str, str]) -> str:
    """The whole module."""
    entries = [f'    {catalogue.version(release)}: "{name}",\n' for release, name in jetpack.items()]
    return HEAD + "".join(entries) + "}\n"


def listed(jetpack: Mapping[str, str]) -> str:
    """One item per minor release of JetPack, the newest first: its patches, with their releases of L4T."""
    by_jetpack: dict[str, list[str]] = {}
    for l4t, name in jetpack.items():
        by_jetpack.setdefault(name, []).append(l4t)
    by_minor: dict[str, list[str]] = {}
    for name, releases_of_l4t in reversed(by_jetpack.items()):
        by_minor.setdefault(name[:3], []).append(f"{name} ({', '.join(releases_of_l4t)})")
    return "\n".join(item(", ".join(names)) for names in by_minor.values())
