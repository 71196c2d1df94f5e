# SPDX-License-Identifier: Apache-2.0
"""Interfaces of OSMO and Jumpstarter, as far as the examples use them, as JSON schemas.

Sources: OSMO, docs/deployment_guide/advanced_config/pool.rst and pod_template.rst; Jumpstarter,
python/packages/jumpstarter/jumpstarter/config/exporter.py. Read in November 2026. Neither is published as a
JSON schema.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
NAMES: Schema = {"type": "array", "items": TEXT}


def closed(required: tuple[str, ...] = (), **properties: Schema) -> Schema:
    """An object with these keys and no others."""
    return {
        "type": "object", "properties": properties, "required": list(required), "additionalProperties": False
    }  # fmt: skip


def by_name(schema: Schema) -> Schema:
    """An object whose keys are names."""
    return {"type": "object", "additionalProperties": schema}


PLATFORM = closed(
    description=TEXT,
    host_network_allowed={"type": "boolean"},
    privileged_allowed={"type": "boolean"},
    default_variables={"type": "object"},
    resource_validations=NAMES,
    override_pod_template=NAMES,
    allowed_mounts=NAMES,
)
POOL = closed(
    ("backend", "platforms"),
    description=TEXT,
    backend=TEXT,
    default_platform=TEXT,
    common_default_variables={"type": "object"},
    common_resource_validations=NAMES,
    common_pod_template=NAMES,
    platforms=by_name(PLATFORM),
)
OSMO = closed(
    ("services",),
    services=closed(
        ("configs",),
        configs=closed(
            ("enabled", "pools"),
            enabled={"const": True},
            podTemplates=by_name({"type": "object", "required": ["spec"]}),
            pools=by_name(POOL),
        ),
    ),
)
HOOK = closed(
    ("script",),
    exec=TEXT,
    script=TEXT,
    timeout={"type": "integer", "minimum": 1},
    onFailure={"enum": ["warn", "endLease", "exit"]},
)
JUMPSTARTER = closed(
    ("apiVersion", "kind", "metadata"),
    apiVersion={"const": "jumpstarter.dev/v1alpha1"},
    kind={"const": "ExporterConfig"},
    metadata=closed(("name",), namespace=TEXT, name=TEXT),
    export={"type": "object"},
    hooks=closed(beforeLease=HOOK, afterLease=HOOK),
)
