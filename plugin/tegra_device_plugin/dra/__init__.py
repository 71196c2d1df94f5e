# SPDX-License-Identifier: Apache-2.0
"""The DRA driver: publishes the GPU in a ResourceSlice, and prepares ResourceClaims for containers.

Pure functions: devices, claims. The kubelet's calls: driver_sockets, preparing. Files: claimstore,
claim_specs. The API server: slices, api_server.
"""
