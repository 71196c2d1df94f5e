#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Generate the committed v1beta1 messages from api.proto (needs grpcio-tools, see the dev dependencies).

Only messages are generated: the few RPC handlers are written by hand in server.py and registration.py.
"""

import sys
from pathlib import Path

from grpc_tools import protoc  # type: ignore[import-untyped] # ships no types

PLUGIN = Path(__file__).resolve().parent
PROTO = "tegra_device_plugin/kubelet/api.proto"


def main() -> int:
    """Run protoc; return its exit code."""
    code: int = protoc.main(
        ["protoc", f"-I{PLUGIN}", f"--python_out={PLUGIN}", f"--pyi_out={PLUGIN}", str(PLUGIN / PROTO)]
    )
    return code


if __name__ == "__main__":
    sys.exit(main())
