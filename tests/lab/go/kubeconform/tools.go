// SPDX-License-Identifier: Apache-2.0

//go:build tools

// The Prometheus Operator's module is here for its CustomResourceDefinitions, which are files of it.
package tools

import _ "github.com/prometheus-operator/prometheus-operator/pkg/versionutil"
