package gate_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/pullgate/pullgate/internal/testkit"
)

// The model test lets two tenants, a kubelet, an operator, a runtime and the registries do random operations. It checks
// one rule: a pod uses an image only if policy exempts it, or if a credential, a Secret or the service account of the
// pod proved it at the registry. A pod uses an image if it starts a container with the content of the image, or gets
// the answer that the image is on the node. A tenant with a good credential must also get its container after at most
// one pull. In some worlds images must be signed; see modelNotary.
//
//	PULLGATE_MODEL_STEPS  total number of operations (default 20,000, a tenth with -short; `make model` runs a million)
//	PULLGATE_MODEL_SEED   the seed of the first world, from which those of the others follow. By default the worlds of
//	                      failedSeeds come first, and then those of a random seed
//
// A failure prints the seed of its world and the shortest failing sequence of operations that was found.
const (
	modelSteps     = 20_000
	stepsPerWorld  = 200
	shrinkAttempts = 4000
)

// failedSeeds are the seeds of worlds that have failed. Each failure has a test of its own too, because any change of
// the operations changes every world.
var failedSeeds = []uint64{
	5008, 8964, 2709928239, 866321992, 2555126494, 1716792670, 3018250800, 4099369271, 3082547263,
	2890169016, 3677563577, 1971491794, 736465335, 3069571726, 967009364, 3326305801, 2185105125, 49164827, 242934254,
	2667678319, 4289147470, 2732838981, 1476817427,
}

func TestModel(t *testing.T) {
	usual := uint64(modelSteps)
	if testing.Short() {
		usual /= 10
	}
	steps, seed := fromEnv(t, "PULLGATE_MODEL_STEPS", usual), fromEnv(t, "PULLGATE_MODEL_SEED", 0)
	first := failedSeeds
	if seed == 0 {
		seed = uint64(rand.Uint32())
	} else {
		first = nil
	}
	worlds := (steps+stepsPerWorld-1)/stepsPerWorld + uint64(len(first))
	seedOf := func(n uint64) uint64 {
		if n < uint64(len(first)) {
			return first[n]
		}
		return seed + n - uint64(len(first))
	}
	t.Logf("PULLGATE_MODEL_SEED=%d PULLGATE_MODEL_STEPS=%d: %d worlds", seed, steps, worlds)
	dir := testkit.Value(modelDir())(t)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	// The heap is small and there is much garbage.
	t.Cleanup(func(percent int) func() { return func() { debug.SetGCPercent(percent) } }(debug.SetGCPercent(800)))
	var next, failures atomic.Uint64
	var mu sync.Mutex
	counts := map[string]int{}
	t.Run("worlds", func(t *testing.T) {
		for worker := range runtime.GOMAXPROCS(0) {
			t.Run(strconv.Itoa(worker), func(t *testing.T) {
				t.Parallel()
				for n := next.Add(1) - 1; n < worlds && failures.Load() == 0; n = next.Add(1) - 1 {
					s, ops := worldOf(seedOf(n))
					failure, happened := playWorld(t, s, ops, modelPath(dir, worker))
					mu.Lock()
					for k, v := range happened {
						counts[k] += v
					}
					mu.Unlock()
					if failure != "" {
						failures.Add(1)
						t.Errorf("%s", shrunk(t, seedOf(n), s, ops, failure, modelPath(dir, worker)))
					}
				}
			})
		}
	})
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		t.Logf("%8d %s", counts[k], k)
	}
	if t.Failed() || steps < modelSteps {
		return
	}
	for _, k := range []string{
		"container started", "container not created", "pre-check shown", "pre-check hidden or absent", "pull", "pull failed",
		"pull answered with the image on the node", "honest pod", "late call",
		"pull for a service account", "revoked", "handover",
	} {
		if counts[k] < int(steps/2000) {
			t.Errorf("%q happened %d times in %d steps; the model does not test it", k, counts[k], steps)
		}
	}
}

func fromEnv(t *testing.T, name string, value uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return value
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

func worldOf(seed uint64) (setting, []op) {
	r := rand.New(rand.NewPCG(seed, 0))
	s, ops := randomSetting(r), randomOps(r, stepsPerWorld)
	return s, slices.DeleteFunc(ops, func(o op) bool { return slices.Contains(openHoles, o.kind) })
}

// openHoles are the kinds of operations for which the gate is known to fail. The list must be empty.
var openHoles []opKind

// playWorld runs a world from its beginning and returns the failure, "" if there is none.
func playWorld(t *testing.T, s setting, ops []op, path string) (failure string, counts map[string]int) {
	t.Helper()
	synctest.Test(t, func(*testing.T) {
		w := newModelWorld(s, path)
		defer func() {
			counts = w.counts
			if p := recover(); p != nil {
				failure = fmt.Sprintf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		failure = w.run(ops)
	})
	return failure, counts
}

// shrunk describes a failure by the shortest sequence of operations that was found to fail in the same way.
func shrunk(t *testing.T, seed uint64, s setting, ops []op, failure, path string) string {
	t.Helper()
	kind, _, _ := strings.Cut(failure, ":")
	attempts := 0
	fails := func(ops []op) bool {
		attempts++
		got, _ := playWorld(t, s, ops, path)
		again, _, _ := strings.Cut(got, ":")
		if got == "" || again != kind {
			return false
		}
		failure = got
		return true
	}
	ops = shortest(ops, func(ops []op) bool { return attempts < shrinkAttempts && fails(ops) })
	var b strings.Builder
	fmt.Fprintf(&b, "world %d, shrunk to %d operations:\n  %+v\n", seed, len(ops), s)
	for i, o := range ops {
		fmt.Fprintf(&b, "  %2d. %v\n", i+1, o)
	}
	fmt.Fprintf(&b, "%s\nto repeat it: PULLGATE_MODEL_SEED=%d PULLGATE_MODEL_STEPS=%d", failure, seed, stepsPerWorld)
	return b.String()
}

// shortest removes operations, first many at once and then fewer, as long as the rest fails.
func shortest(ops []op, fails func([]op) bool) []op {
	for size := max(1, len(ops)/2); ; size = max(1, size/2) {
		shorter := false
		for at := len(ops) - size; at > -size; at -= size {
			less := slices.Delete(slices.Clone(ops), max(at, 0), max(at, 0)+min(size, size+at))
			if fails(less) {
				ops, shorter = less, true
			}
		}
		if size == 1 && !shorter {
			break
		}
	}
	return ops
}
