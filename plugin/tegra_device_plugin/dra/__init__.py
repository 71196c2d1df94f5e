# SPDX-License-Identifier: Apache-2.0
"""The DRA driver: publishes the GPU in a ResourceSlice, and prepares ResourceClaims for containers.

Pure: devices of the slice (devices), claims (claims, specs). With input and output: the kubelet
(registration, server, preparing), files (claimstore), the API server (slices, api).
"""
