# SPDX-License-Identifier: Apache-2.0
"""Measure a plugin and the memory limit, and count refused pods: `python -m tests.benchmarks[...]`."""
