# SPDX-License-Identifier: Apache-2.0
"""The project's address, for links in findings and reports. Runs on boards, so Python 3.6 compatible."""

# `make identity` writes the address here. It is empty as long as the project has none.
ADDRESS = ""


def page(path: str) -> str:
    """Where to read a page of the handbook: its address, without one its path in the checkout.

    `path` is relative to the checkout, with the heading, such as docs/offline.md#keys-of-package-sources.
    """
    return "{}/blob/main/{}".format(ADDRESS, path) if ADDRESS else path
