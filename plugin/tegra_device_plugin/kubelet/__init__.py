# SPDX-License-Identifier: Apache-2.0
"""The kubelet's side of the plugin: device plugin API v1beta1 over unix sockets."""
