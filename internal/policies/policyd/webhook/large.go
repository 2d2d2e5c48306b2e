package webhook

import (
	"context"
	"sync"
)

// Limits of what a body can cost. A value of a few bytes, such as null in a list of containers, takes a kilobyte once
// it is decoded.
const (
	// maxValues bounds the JSON values of a body, which can have an object twice: before and after an update.
	maxValues = 100_000
	// largeBody and largeValues are the most of a body that is not large.
	largeBody   = 256 << 10
	largeValues = 4000
	// maxReading is how many large bodies are held at the same time, and maxDecoding how many of them are decoded.
	maxReading  = 8
	maxDecoding = 1
)

// Why a body is denied without being decoded. An error would leave the answer to the failure policy, and the user
// chooses the size.
const (
	tooLarge = "is too large to be judged"
	tooLate  = "is large, and was not judged in time because of others that are large"
)

// values returns how many values a JSON text has, at least. It uses no memory.
func values(text []byte) (n int) {
	quoted := false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ',' || c == '{' || c == '['):
			n++
		}
	}
	return n
}

// enter waits for a free place. leave gives it back; it may be called several times. ok is false if ctx ends before.
func enter(ctx context.Context, places chan struct{}) (leave func(), ok bool) {
	select {
	case places <- struct{}{}:
		return sync.OnceFunc(func() { <-places }), true
	case <-ctx.Done():
		return func() {}, false
	}
}
