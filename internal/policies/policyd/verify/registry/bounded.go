package registry

import "fmt"

// maxParts bounds how many objects and elements a document has, because each takes far more memory than its text.
const maxParts = 20_000

// Bounded returns ErrTooLarge for a JSON document with very many parts. It must be called before a document of a
// registry is decoded.
func Bounded(data []byte) error {
	parts := 0
	for _, c := range data {
		if c == '{' || c == '[' || c == ',' {
			parts++
		}
	}
	if parts > maxParts {
		return fmt.Errorf("%w: a document has more than %d parts", ErrTooLarge, maxParts)
	}
	return nil
}
