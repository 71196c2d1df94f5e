# SPDX-License-Identifier: Apache-2.0
"""What others can read: counters, Prometheus, health pages, the jtop service. Decides nothing."""

JTOP_SOCKET = "run/jtop.sock"  # below the host's root; jetson-stats fixes it
