# SPDX-License-Identifier: Apache-2.0
"""Write the parts of documents that are made from data, and the roles' JetPacks."""

import sys

from tools.cache import CHECKOUT
from tools.docs import generated


def main() -> int:
    """Write what is not current, and say so."""
    for path, text in generated().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            sys.stdout.write(f"written: {path.relative_to(CHECKOUT)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
