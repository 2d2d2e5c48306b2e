package testkit

import (
	"cmp"
	"slices"
)

// Median returns the median of values, at least one, of an even number the upper one. It sorts them.
func Median[T cmp.Ordered](all []T) T {
	slices.Sort(all)
	return all[len(all)/2]
}
