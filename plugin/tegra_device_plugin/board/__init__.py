# SPDX-License-Identifier: Apache-2.0
"""Board, GPU and health, read from files below a host root."""
