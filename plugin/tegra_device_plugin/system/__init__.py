# SPDX-License-Identifier: Apache-2.0
"""What the other rooms stand on: files below a host root, waiting, watching, logging."""
