# SPDX-License-Identifier: Apache-2.0
"""Do the tests notice when the plugin's code is wrong: `python -m tests.mutation`."""
