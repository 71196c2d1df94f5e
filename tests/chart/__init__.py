# SPDX-License-Identifier: Apache-2.0
"""The Helm chart, linted and rendered by the real Helm, beside the plain manifests."""
