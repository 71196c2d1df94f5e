# SPDX-License-Identifier: Apache-2.0
"""What the builds and the tests share: running commands, Debian's packages, a Docker engine, a cache."""
