# SPDX-License-Identifier: Apache-2.0
"""Which board and GPU this is and how it is: read from files below a host root."""
