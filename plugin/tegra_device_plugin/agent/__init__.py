# SPDX-License-Identifier: Apache-2.0
"""The node agent, off by default: divides the GPU's time by weights, and watches the pods' GPU memory."""
