# SPDX-License-Identifier: Apache-2.0
"""Parts of the documents that are generated."""
