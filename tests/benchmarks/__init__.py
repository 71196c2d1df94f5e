# SPDX-License-Identifier: Apache-2.0
"""Measure what a plugin costs (`python -m tests.benchmarks`), and count refused pods (`... .boots`)."""
