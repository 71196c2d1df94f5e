# SPDX-License-Identifier: Apache-2.0
"""The DRA driver: the GPU as a ResourceSlice, and what containers get by ResourceClaims.

Pure: what is published (devices, slices), what a claim means (claims, specs, checkpoint). At the rim: sockets
(server), files (preparing), the API server (publisher, api).
"""
