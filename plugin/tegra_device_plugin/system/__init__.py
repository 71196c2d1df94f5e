# SPDX-License-Identifier: Apache-2.0
"""Files below a host root, waiting, watching, logging, Kubernetes' quantities and names."""
