# SPDX-License-Identifier: Apache-2.0
"""The plugin with one observation an hour: a change within a minute is the effect of an event."""

import sys

from tegra_device_plugin import cli
from tegra_device_plugin.kubelet import registrar

if __name__ == "__main__":
    registrar.OBSERVE_SECONDS = 3600
    sys.exit(cli.main())
