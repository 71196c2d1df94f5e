# SPDX-License-Identifier: Apache-2.0
"""How YAML is read everywhere: safely, and by libyaml where PyYAML has it, which is ten times faster."""

import yaml

# PyYAML's wheels have libyaml on every platform the image is built for.
Loader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
