# SPDX-License-Identifier: Apache-2.0
"""A taint on the node while the board is throttled.

Pure functions: taints. The sensors: throttle_sensors. The API server: node_taint.
"""
