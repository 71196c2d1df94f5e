// SPDX-License-Identifier: Apache-2.0

package main

import "os"

// A release wraps K3s in a program that starts its clients by their names. Here K3s is one program, so `k3s kubectl` is
// what `kubectl` is.
func init() {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "crictl", "ctr", "kubectl":
			os.Args = os.Args[1:]
		}
	}
}
