# SPDX-License-Identifier: Apache-2.0
"""Times in RFC 3339 format, as reports and Kubernetes have them.

`now` runs on boards, too, therefore Python 3.6 compatible.
"""

import datetime
import re


def now() -> str:
    """The time in UTC with milliseconds."""
    return datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def moment(text: str) -> datetime.datetime:
    """The time that a text names. ValueError if it names none. On the controller: needs Python 3.7."""
    # Python before 3.11 does not read the Z.
    return datetime.datetime.fromisoformat(re.sub("Z$", "+00:00", text))  # noqa: TID251
