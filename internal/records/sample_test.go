package records_test

import (
	"math/rand/v2"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
)

// sampling reports whether a sweep runs only some of its cases: with -short, and under the race detector. A sweep has a
// single goroutine, and `make race` runs all its cases without the detector.
func sampling() bool { return testing.Short() || testkit.Raced }

// sample returns a function that selects the cases of a sweep that run: one in ten if it is sampled, otherwise all.
func sample(t *testing.T) func() bool {
	t.Helper()
	if !sampling() {
		return func() bool { return true }
	}
	seed := rand.Uint64()
	t.Logf("runs one case in ten; seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	return func() bool { return random.IntN(10) == 0 }
}

// seeds returns how many random runs a test makes: n, or three if they are sampled.
func seeds(n int) int {
	if sampling() {
		return min(n, 3)
	}
	return n
}
