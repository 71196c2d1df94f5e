# SPDX-License-Identifier: Apache-2.0
"""The plugin's CDI specs, read by a real runtime."""
