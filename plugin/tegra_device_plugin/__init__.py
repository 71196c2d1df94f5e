# SPDX-License-Identifier: Apache-2.0
"""Kubernetes device plugin for the integrated GPU of NVIDIA Jetson boards."""
