# SPDX-License-Identifier: Apache-2.0
"""The settings of `run`: NVIDIA's `version: v1` file, environment and flags. Only parsing."""
