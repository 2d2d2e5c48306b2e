package admission_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// goroutine returns the name of the running goroutine.
func goroutine() string {
	b := make([]byte, 64)
	name, _, _ := strings.Cut(string(b[:runtime.Stack(b, false)]), " [")
	return name
}

func BenchmarkEvaluate(b *testing.B) {
	one, three := chainOf(always(admit)), chainOf(always(admit), always(admit), always(admit))
	restarted := chainOf(always(deny))
	for i := range 500 {
		for j := range 10 {
			restarted.MarkAdmitted(fmt.Sprintf("uid-%d", i), fmt.Sprintf("c%d", j), "sha256:1")
		}
	}
	restarted.MarkAdmitted("uid-1", "main", "sha256:1")
	exempt := admission.New(admission.Rules{Validators: named(always(deny)), ExemptNamespaces: []string{"team"}}, nil)
	for _, c := range []struct {
		name  string
		chain *admission.Chain
	}{{"off", nil}, {"one", one}, {"three", three}, {"restart", restarted}, {"exempt", exempt}} {
		b.Run(c.name, func(b *testing.B) {
			s := subject()
			ctx := b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if !c.chain.Evaluate(ctx, s).Admitted() {
					b.Fatal("not admitted")
				}
			}
		})
	}
}
