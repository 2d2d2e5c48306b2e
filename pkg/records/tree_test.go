package records_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
)

// A bit of a page's head, or of the heads of its elements, leads bbolt anywhere.
func TestFlippedBitOfAPageOpensNothing(t *testing.T) {
	all, path := fill(t), newPath(t)
	size, bits := os.Getpagesize(), 8*48
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for page := range len(all.content) / size {
		for bit := range bits {
			if random.IntN(40) > 0 {
				continue
			}
			damaged := slices.Clone(all.content)
			damaged[page*size+bit/8] ^= 1 << (bit % 8)
			openDamaged(t, path, damaged, all, fmt.Sprintf("seed %d: page %d, bit %d", seed, page, bit))
		}
	}
}
