# SPDX-License-Identifier: Apache-2.0
"""Snapshots of boards. The other files are links to those of the collection, whose modules run on boards."""
