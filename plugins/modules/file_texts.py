#!/usr/bin/python
# SPDX-License-Identifier: Apache-2.0
"""Read several small files in one round trip. Changes nothing.

Runs on the board, therefore Python 3.6 compatible.
"""

import os
from typing import Dict

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: file_texts
short_description: The texts of several small files in one round trip
description:
  - A file that does not exist is no error, and one that cannot be read is named.
  - The texts are in the result. A task that reads secrets needs C(no_log).
options:
  files: {type: dict, required: true, description: Paths by a name of the caller's.}
"""

RETURN = r"""
texts: {type: dict, description: 'By these names. A file that does not exist has none.'}
unread: {type: dict, description: 'By these names why a file could not be read.'}
"""

# Far above a certificate or a token, far below what a result should have.
LARGEST = 1 << 20


def main() -> None:
    """Ansible's entry point."""
    module = AnsibleModule(
        argument_spec={"files": {"type": "dict", "required": True}}, supports_check_mode=True
    )
    texts: Dict[str, str] = {}
    unread: Dict[str, str] = {}
    for name, path in module.params["files"].items():
        try:
            with open(path, encoding="utf-8", errors="replace") as stream:
                if os.fstat(stream.fileno()).st_size > LARGEST:
                    unread[name] = "larger than {} bytes".format(LARGEST)
                    continue
                texts[name] = stream.read()
        except FileNotFoundError:
            pass
        except OSError as error:
            unread[name] = str(error.strerror)
    module.exit_json(changed=False, texts=texts, unread=unread)


if __name__ == "__main__":
    main()
