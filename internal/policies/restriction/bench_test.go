package restriction_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/restriction"
)

// The budget is 200 ms for 1,000 policies.
func BenchmarkLoad(b *testing.B) {
	preset, err := restriction.Preset("restricted")
	must(b, err)
	files := make([]restriction.File, 1000)
	for i := range files {
		text := strings.Replace(string(preset), "name: restricted", fmt.Sprintf("name: restricted-%d", i), 1)
		files[i] = restriction.File{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(text)}
	}
	for b.Loop() {
		load(b, files...)
	}
}
