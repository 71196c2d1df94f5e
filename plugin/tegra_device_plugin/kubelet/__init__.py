# SPDX-License-Identifier: Apache-2.0
"""The kubelet's device plugin API v1beta1 over unix sockets: serve it, and stay registered."""
