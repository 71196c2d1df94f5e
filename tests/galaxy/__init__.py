# SPDX-License-Identifier: Apache-2.0
"""The playbooks and roles as an installed collection."""
