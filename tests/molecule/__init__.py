# SPDX-License-Identifier: Apache-2.0
"""Molecule scenarios of the playbooks, on virtual boards and on real ones."""
