# SPDX-License-Identifier: Apache-2.0
"""`python3 -m tegra_device_plugin`: the same as the console script `tegra-device-plugin`."""

import os
import signal
import sys

# The kernel drops a SIGTERM that the first process of a container does not handle. Imports take
# seconds on a board. An exception would be lost where Python ignores them, such as in the callback of a
# weak reference, of which imports have many.
signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))

from tegra_device_plugin.cli import main  # noqa: E402  # after the handler

if __name__ == "__main__":
    sys.exit(main())
