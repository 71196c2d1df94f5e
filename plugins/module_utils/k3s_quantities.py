# SPDX-License-Identifier: Apache-2.0
"""Quantities of extended resources, as Kubernetes' API prints them: 2000 is `2k` there.

Used on a K3s server, therefore Python 3.6 compatible.
"""

import re
from typing import Dict, Optional

# What Kubernetes' own names have (component-helpers, IsNativeResource). Their quantities may be fractions.
NATIVE = "kubernetes.io/"
# apimachinery, pkg/api/resource: the quantity of an extended resource is an integer.
QUANTITY = re.compile("([0-9]+)(?:([kKMGTPE])(i?)|e([0-9]+))?$")


def integer(quantity: str) -> int:
    """The number that a quantity of an extended resource is: such as 4, 2k or 4Gi."""
    found = QUANTITY.match(quantity)
    if found is None:
        raise ValueError("{} is not the quantity of an extended resource".format(quantity))
    number, power, binary, exponent = found.groups()
    factor: int = 10 ** int(exponent or 0)
    if power:
        factor = (1024 if binary else 1000) ** " KMGTPE".index(power.upper())
    return int(number) * factor


def extended(quantities: Optional[Dict[str, str]]) -> Dict[str, int]:
    """Of a resource list the extended ones: those with a domain that is not Kubernetes' own."""
    return {
        name: integer(quantity)
        for name, quantity in (quantities or {}).items()
        if "/" in name and NATIVE not in name
    }
