# SPDX-License-Identifier: Apache-2.0
"""Measure a plugin, its memory limit and site.yml, count refused pods: `python -m tests.benchmarks[...]`."""

import sys

from tools.cache import CHECKOUT

# As for pytest: the collection of this checkout.
sys.path.append(str(CHECKOUT / ".collections"))
