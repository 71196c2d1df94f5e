# SPDX-License-Identifier: Apache-2.0
"""Reads from the running agent which containers have the GPU and do not use it."""

from __future__ import annotations

import re
from http.client import HTTPConnection, HTTPException

from tegra_device_plugin.telemetry.exposition import UNUSED

DEADLINE = 5.0
# Names in Kubernetes have no character that the format escapes.
_SAMPLE = re.compile(
    rf'^{UNUSED}{{namespace="(?P<namespace>[^"]*)",pod="(?P<pod>[^"]*)",container="(?P<container>[^"]*)"}} '
    r"(?P<seconds>[0-9]+)$",
    re.MULTILINE,
)


def read(address: tuple[str, int]) -> dict[tuple[str, str, str], int]:
    """Give seconds by namespace, pod and container. Raises OSError if no agent answers."""
    host, port = address
    connection = HTTPConnection(host or "localhost", port, timeout=DEADLINE)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except HTTPException as error:
        raise OSError(f"no answer of HTTP: {error!r}") from error
    finally:
        connection.close()
    return {
        (one["namespace"], one["pod"], one["container"]): int(one["seconds"])
        for one in _SAMPLE.finditer(text)
    }
