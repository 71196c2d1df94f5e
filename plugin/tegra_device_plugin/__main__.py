# SPDX-License-Identifier: Apache-2.0
"""`python3 -m tegra_device_plugin`: the same as the console script `tegra-device-plugin`."""

import gc
import sys

from tegra_device_plugin.signals import Signals


def main() -> int:
    signals = Signals()  # before the other imports
    gc.disable()  # until the command is imported: a module is never garbage
    from tegra_device_plugin import cli  # noqa: PLC0415 - see above

    return cli.main(sys.argv[1:], signals)


if __name__ == "__main__":
    sys.exit(main())
