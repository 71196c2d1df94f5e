# SPDX-License-Identifier: Apache-2.0
"""What others can read: counters, Prometheus, health pages, the jtop service. Decides nothing."""
