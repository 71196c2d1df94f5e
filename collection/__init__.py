# SPDX-License-Identifier: Apache-2.0
"""The playbooks and roles as an Ansible collection: `python -m collection.build` makes it."""
