# SPDX-License-Identifier: Apache-2.0
"""`python3 -m tegra_device_plugin`: the same as the console script `tegra-device-plugin`."""

import sys

from tegra_device_plugin.cli import main

if __name__ == "__main__":
    sys.exit(main())
