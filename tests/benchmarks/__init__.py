# SPDX-License-Identifier: Apache-2.0
"""Measure a plugin, its memory limit and site.yml, count refused pods: `python -m tests.benchmarks[...]`."""
