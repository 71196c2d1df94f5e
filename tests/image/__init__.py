# SPDX-License-Identifier: Apache-2.0
"""The plugin's container image: its archives, what is in it, and how it behaves on both architectures."""
