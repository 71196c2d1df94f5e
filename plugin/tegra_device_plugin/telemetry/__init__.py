# SPDX-License-Identifier: Apache-2.0
"""Metrics, health pages and the telemetry of the jtop service. Read-only."""
