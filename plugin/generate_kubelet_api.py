#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generate the committed messages of the kubelet's APIs (needs grpcio-tools, see the dev dependencies).

Only messages are generated: the few RPCs are written by hand, where they are served or called.
"""

import sys
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped] # ships no types

PLUGIN = Path(__file__).resolve().parent
PROTOS = sorted(map(str, PLUGIN.glob("tegra_device_plugin/*/*.proto")))


def main() -> int:
    """Run protoc; return its exit code."""
    code: int = protoc.main(
        ["protoc", f"-I{PLUGIN}", f"--python_out={PLUGIN}", f"--pyi_out={PLUGIN}", *PROTOS]
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
