# SPDX-License-Identifier: Apache-2.0
"""The published schema of a board's report."""

import json
from typing import Any

import jsonschema

from tools.cache import CHECKOUT

SCHEMA = CHECKOUT / "roles/gpu_report/files/verify-report.schema.json"


def validate(report: Any) -> None:
    """Compare a report with the published schema; AssertionError with each mistake and where it is."""
    schema = json.loads(SCHEMA.read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    errors = jsonschema.Draft202012Validator(schema).iter_errors(report)
    mistakes = [f"{error.json_path}: {error.message}" for error in errors]
    if mistakes:
        raise AssertionError(f"a report does not fit {SCHEMA.name}: {mistakes}")
