# SPDX-License-Identifier: Apache-2.0
"""What the plugin counts while it runs."""

from dataclasses import dataclass


@dataclass
class Counters:
    """Totals since the start of the process."""

    allocations: int = 0
    refused_allocations: int = 0
    registrations: int = 0
    failed_registrations: int = 0
    config_reloads: int = 0
    refused_config_reloads: int = 0
