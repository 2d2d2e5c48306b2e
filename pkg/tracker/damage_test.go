package tracker_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// setting returns the number in an environment variable.
func setting(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	text, ok := os.LookupEnv(name)
	if !ok {
		return otherwise
	}
	n := testkit.Value(strconv.ParseUint(text, 10, 64))(t)
	return n
}

// A byte of the store is changed, in a key or anywhere, and pullgated starts and scans twice. PULLGATE_FLIPS is how
// often, PULLGATE_FLIP_SEED repeats a run.
func TestFlippedByteOfTheStoreOpensNoImage(t *testing.T) {
	flips, seed := setting(t, "PULLGATE_FLIPS", 2000), setting(t, "PULLGATE_FLIP_SEED", rand.Uint64())
	if testing.Short() || testkit.Raced {
		flips = min(flips, 30)
	}
	t.Logf("%d flips, PULLGATE_FLIP_SEED=%d", flips, seed)
	// so that the times in the store, and with them its layout, are those of the seed
	synctest.Test(t, func(t *testing.T) {
		content, images, private := filledStore(t)
		used := len(bytes.TrimRight(content, "\x00"))
		var keys []int // the places of keys, in pages in use and in earlier versions of pages
		for _, img := range images {
			key := []byte(img.ID + "\x00")
			for at := bytes.Index(content, key); at >= 0; {
				for i := range key {
					keys = append(keys, at+i)
				}
				next := bytes.Index(content[at+1:], key)
				if next < 0 {
					break
				}
				at += 1 + next
			}
		}
		random := rand.New(rand.NewPCG(seed, 0))
		outcomes := map[string]int{}
		for n := range flips {
			at := random.IntN(used)
			if random.IntN(2) == 0 {
				at = keys[random.IntN(len(keys))]
			}
			by := byte(1) << random.IntN(8)
			if random.IntN(4) == 0 {
				by = byte(1 + random.IntN(255))
			}
			damaged := bytes.Clone(content)
			damaged[at] ^= by
			outcomes[openFlipped(t, damaged, images, private, fmt.Sprintf("flip %d, byte %d by %#x", n, at, by))]++
			if t.Failed() {
				return
			}
		}
		t.Log(outcomes)
	})
}

// filledStore returns the file of a store with several levels of pages, the images of the runtime, and those that no
// stranger may use.
func filledStore(t *testing.T) (content []byte, images, private []tracker.Image) {
	t.Helper()
	w := newWorld(t, tracker.Options{})
	img := func(kind string, n int) tracker.Image {
		name := fmt.Sprintf("repo.test/%s/app%d:1", kind, n)
		i := image(fmt.Sprintf("sha256:%064x", uint64(n*31+len(kind)+1)*0x9e3779b97f4a7c15), name)
		images = append(images, i)
		w.runtime.set(images...)
		return i
	}
	for n := range 8 {
		img("preloaded", n)
	}
	w.sync()
	for n := range 40 {
		i := img("private", n)
		w.pulled(pod("owner"), i.Names[0].String(), i.ID, fmt.Sprintf("password %d", n))
		private = append(private, i)
	}
	for n := range 8 {
		name := fmt.Sprintf("repo.test/lost/app%d:1", n)
		testkit.Must(t, w.begin(name).Lost())
		private = append(private, img("lost", n))
	}
	// What only the time of a revocation, or a record without proofs, keeps from being used.
	w.revokes(records.Revocation{Repository: "repo.test/private/app7"})
	w.sync()
	w.want(w.check(pod("stranger"), images[0].Names[0].String(), images[0]), policy.Allow, policy.Preloaded)
	w.close()
	content = testkit.Value(os.ReadFile(w.path))(t)
	w.open()
	return content, images, private
}

// openFlipped starts a tracker on a damaged store, lets it scan twice, and returns how the start went.
func openFlipped(t *testing.T, damaged []byte, images, private []tracker.Image, what string) (outcome string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "records.db")
	testkit.Must(t, os.WriteFile(path, damaged, 0o600))
	panicked := func(value any, stack []byte) { t.Errorf("%s: panic %v\n%s", what, value, stack) }
	s, report, err := records.Open(path, records.Options{Now: time.Now(), KeyExists: true, OnPanic: panicked})
	if errors.Is(err, records.ErrNewerFormat) {
		return "newer format"
	}
	testkit.Must(t, err)
	defer func() {
		testkit.Must(t, s.Close())
		file := testkit.Value(os.Open(path))(t)
		defer func() { _ = file.Close() }()
		if v, err := records.VerifyFile(t.Context(), file); err != nil || len(v.Problems) > 0 {
			t.Errorf("%s: the store has problems %v after two scans, %v", what, v.Problems, err)
		}
	}()
	runtime := &fakeRuntime{images: images}
	trk := tracker.New(s, credential.NewKey(), runtime, tracker.Options{Log: klog.Background().V(99)})
	for range 2 {
		if err := trk.Sync(t.Context()); err != nil {
			t.Errorf("%s: Sync = %v", what, err)
		}
	}
	for n, img := range private {
		v := trk.Check(t.Context(), tracker.Request{Pod: pod(fmt.Sprint("stranger", n)), Name: img.Names[0], Image: img})
		if v.Allowed() {
			t.Errorf("%s: %s is allowed by %s; Open reported %+v", what, img.Names[0], v.Reason, report)
		}
	}
	switch {
	case report.Created:
		return "set aside"
	case report.Damage != "":
		return "values removed"
	}
	return "sound"
}
