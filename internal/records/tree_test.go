package records_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
)

// A flipped bit in the head of a page or of its elements can lead bbolt to any place.
func TestFlippedBitOfAPageOpensNothing(t *testing.T) {
	all, path := fill(t), newPath(t)
	size, bits := os.Getpagesize(), 8*48
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	selected := sample(t)
	for page := range len(all.content) / size {
		for bit := range bits {
			if random.IntN(30) > 0 || !selected() {
				continue
			}
			damaged := slices.Clone(all.content)
			damaged[page*size+bit/8] ^= 1 << (bit % 8)
			openDamaged(t, path, damaged, all, fmt.Sprintf("seed %d: page %d, bit %d", seed, page, bit))
		}
	}
}

// moveKey gives a value another key, like a bit that flips in a key.
func moveKey(t *testing.T, path, bucket string, from, to []byte) {
	t.Helper()
	inFile(t, path, func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte(bucket))
		value := slices.Clone(b.Get(from))
		return errors.Join(b.Delete(from), b.Put(to, value))
	})
}

func TestFlippedBitOfAKeyLetsNothingBeMarked(t *testing.T) {
	p := pair(id1, app)
	for bucket, write := range map[string]func(s *records.Store){
		"records": func(s *records.Store) { prove(t, s, records.Result{Pair: p, Credential: alice}) },
		"intents": func(s *records.Store) { begin(t, s, app) },
	} {
		path := newPath(t)
		s, _ := open(t, path, records.Options{})
		write(s)
		closeStore(t, s)
		content, sound := readFile(t, path), key(p)
		if bucket == "intents" {
			sound = []byte(app + "\x00\x00\x00\x00\x00\x00\x00\x00\x01")
		}
		for bit := 0; bit < 8*len(sound); bit += 5 {
			flipped := slices.Clone(sound)
			flipped[bit/8] ^= 1 << (bit % 8)
			moveKey(t, path, bucket, sound, flipped)
			s, report, err := records.Open(path, records.Options{})
			testkit.Must(t, err)
			if got := mark(t, s, p); got != nil || report.Created || report.Distrust == nil {
				t.Errorf("bit %d of the key in %s: MarkPreloaded = %v, Report = %+v; want none, and the store in distrust", bit,
					bucket, got, report)
			}
			closeStore(t, s)
			writeFile(t, path, content)
		}
	}
}

func TestFlippedBitOfAMetaKeyIsDamage(t *testing.T) {
	for bit := range 8 * len("distrust") {
		path := newPath(t)
		s, _ := open(t, path, records.Options{KeyExists: true})
		closeStore(t, s)
		flipped := []byte("distrust")
		flipped[bit/8] ^= 1 << (bit % 8)
		moveKey(t, path, "meta", []byte("distrust"), flipped)
		if _, report := open(t, path, records.Options{}); report.Distrust == nil {
			t.Errorf("bit %d: Report = %+v; want distrust", bit, report)
		}
	}
}

func TestSoundStoreIsNeverSetAside(t *testing.T) {
	path := newPath(t)
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range seeds(12) {
		s, report, err := records.Open(path, records.Options{Now: noon()})
		if err != nil || report.SetAside != "" || report.Created != (round == 0) {
			t.Fatalf("seed %d: round %d: Open = %+v, %v; want the store", seed, round, report, err)
		}
		// Thousands of marks, values of many pages, and free pages between them.
		var pairs []records.Pair
		for range 1 + random.IntN(2000) {
			pairs = append(pairs, pair(fmt.Sprintf("sha256:%d", random.IntN(3000)), fmt.Sprintf("%0*d", 1+random.IntN(300), 7)))
		}
		mark(t, s, pairs...)
		for n := range 8 {
			prove(t, s, records.Result{
				Pair: pairs[random.IntN(len(pairs))], Credential: alice,
				Secrets: make([]records.SecretRef, random.IntN(1000)), At: at(n),
			})
		}
		present := map[string]struct{}{"none": {}}
		for _, p := range pairs[:random.IntN(len(pairs))] {
			present[p.ImageID] = struct{}{}
		}
		if round%3 > 0 {
			if _, err := s.Prune(pruning(present, s.Written())); err != nil {
				t.Errorf("seed %d: Prune = %v", seed, err)
			}
		}
		closeStore(t, s)
		checkFile(t, path)
	}
}
