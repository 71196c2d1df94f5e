# SPDX-License-Identifier: Apache-2.0
"""Which K3s the boards get: decided here, and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def wanted_versions(bundle: Mapping[str, Any], configured: str) -> dict[str, Any]:
    """Versions of what boards get, K3s' as `k3s_version`; {} for a bundle that cannot be read.

    `bundle` is what the module bundle_info has found. Without a bundle it has the release that role bundle
    would take. `configured` is k3s_version of the inventory, '' for none. A bundle has one K3s.
    """
    versions = dict(bundle["versions"])
    return versions if bundle["indexed"] or not configured else {**versions, "k3s_version": configured}


def wanted_version(bundle: Mapping[str, Any], configured: str) -> str:
    """The version of K3s that boards get."""
    return str(wanted_versions(bundle, configured)["k3s_version"])


FILTERS = {"k3s_wanted_version": wanted_version}
