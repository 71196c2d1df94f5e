# SPDX-License-Identifier: Apache-2.0
"""How fast and how small the plugin is: `python -m tests.benchmarks`; how fast site.yml is: `...provisioning`."""
