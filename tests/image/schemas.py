# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' own schemas of its objects."""

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]  # has no stubs


def check(manifests: Iterable[dict[str, Any]], versions: Sequence[str]) -> None:
    """Compare manifests with the schemas, strictly: a key that is not in them is an error."""
    for manifest in manifests:
        for version in versions:
            # The validation writes into what it is given.
            kubernetes_validate.validate(copy.deepcopy(manifest), version, strict=True)
