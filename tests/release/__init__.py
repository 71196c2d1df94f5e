# SPDX-License-Identifier: Apache-2.0
"""Cutting a release, in checkouts of its own."""
