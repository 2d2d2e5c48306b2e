// Package tools pins critest, which is a test of a package without other files, so that the tool directive cannot name
// it.
package tools

import (
	_ "sigs.k8s.io/cri-tools/pkg/benchmark"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)
