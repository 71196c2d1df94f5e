# SPDX-License-Identifier: Apache-2.0
"""The kubelet's device plugin contract as a test suite that runs against any plugin's command line."""
