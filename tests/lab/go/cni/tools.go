// SPDX-License-Identifier: Apache-2.0

//go:build tools

// The CNI plugins that K3s' flannel needs.
package tools

import (
	_ "github.com/containernetworking/plugins/plugins/ipam/host-local"
	_ "github.com/containernetworking/plugins/plugins/main/bridge"
	_ "github.com/containernetworking/plugins/plugins/main/loopback"
	_ "github.com/containernetworking/plugins/plugins/meta/bandwidth"
	_ "github.com/containernetworking/plugins/plugins/meta/portmap"
	_ "jetson-k3s/lab/flannel/plugins/meta/flannel"
)
