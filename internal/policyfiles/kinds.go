package policyfiles

import (
	"github.com/pullgate/pullgate/internal/imagepolicy"
	"github.com/pullgate/pullgate/pkg/admission/files"
	"github.com/pullgate/pullgate/pkg/admission/restrict"
)

// Kinds returns the kinds of policy files.
func Kinds() []files.Kind { return []files.Kind{restrict.Files(), imagepolicy.Files()} }
