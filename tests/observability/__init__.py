# SPDX-License-Identifier: Apache-2.0
"""Dashboard and alerts against the metrics that exist."""
