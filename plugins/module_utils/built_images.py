# SPDX-License-Identifier: Apache-2.0
"""The plugin's images in `dist` of a checkout: which are current. Runs on the controller, without Ansible."""

import os
from typing import List

BUILT = ("tegra-device-plugin-arm64.tar.gz", "tegra-device-plugin-amd64.tar.gz")
# As images/arm64/build.py has them, in a checkout.
SOURCES = ("images/arm64", "plugin/gpu_limit", "plugin/tegra_device_plugin")


def newest_source(checkout: str) -> float:
    """Modification time of the newest file that the plugin's image is built from, in Unix seconds."""
    paths = [os.path.join(checkout, "pyproject.toml")]
    for source in SOURCES:
        for directory, _, names in os.walk(os.path.join(checkout, source)):
            if not directory.endswith("__pycache__"):
                sources = [name for name in names if not name.endswith((".md", ".pyi"))]
                paths += [os.path.join(directory, name) for name in sources]
    return max([os.path.getmtime(path) for path in paths if os.path.isfile(path)] + [0])


def current(path: str) -> List[str]:
    """Names of the images in `path`, the `dist` of a checkout, that are not older than their sources."""
    newest = newest_source(os.path.dirname(path))
    present = [name for name in BUILT if os.path.exists(os.path.join(path, name))]
    return [name for name in present if os.path.getmtime(os.path.join(path, name)) >= newest]
