# SPDX-License-Identifier: Apache-2.0
"""Texts of a board as they may be shown: without the secrets in them.

Runs on the board, therefore Python 3.6 compatible.
"""

import re

HIDDEN = "(hidden)"
# K3s' flags and keys whose value is a secret, not the path of one (pkg/cli/cmds), and their variables.
KEYS = (
    "agent-token",
    "cluster-secret",
    "datastore-endpoint",
    "etcd-s3-access-key",
    "etcd-s3-secret-key",
    "etcd-s3-session-token",
    "token",
    "vpn-auth",
)
VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    *("K3S_" + key.upper().replace("-", "_") for key in KEYS),
)
VALUE = r"""(?!-)(?:"[^"]*"|'[^']*'|[^\s'"]+)"""

# As in a unit, whose words may be quoted and stand on lines of their own.
FLAG = re.compile(r"""((?<![\w-])(?:--(?:{})|-t)(?:=|['"]?[\s\\]+))({})""".format("|".join(KEYS), VALUE))
VARIABLE = re.compile(r"(\b(?:{})=)({})".format("|".join(VARIABLES), VALUE))
KEY = re.compile(r"""^(\s*["']?(?:{})["']?\s*:[ \t]*)\S.*$""".format("|".join(KEYS)), re.MULTILINE)
ADDRESS = re.compile(r"""(://[^/\s:@'"]*:)[^@\s'"]+(?=@)""")


def without_secrets(text):
    """The text with `(hidden)` in place of each secret value; its lines stay."""
    for pattern in (FLAG, VARIABLE, KEY, ADDRESS):
        text = pattern.sub(r"\1" + HIDDEN, text)
    return text
