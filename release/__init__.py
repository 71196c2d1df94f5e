# SPDX-License-Identifier: Apache-2.0
"""Cut a release: `python -m release VERSION` sets the version, builds everything, commits and tags."""
