package restriction

import (
	"errors"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// Parse reads one policy. YAML of the policy, parsed again, is the same policy.
func Parse(data []byte) (*PodRestriction, error) {
	p, _, errs := parse(newDecoder(), newInterned(), data)
	return &p, errors.Join(strictyaml.WithLines(data, errs)...)
}
