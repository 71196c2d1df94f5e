# SPDX-License-Identifier: Apache-2.0
"""The real jtop service, unmodified, on simulated boards."""
