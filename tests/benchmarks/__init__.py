# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.benchmarks`: how fast and small the plugin is; `...many_nodes`: what many nodes cost."""
