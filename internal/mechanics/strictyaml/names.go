package strictyaml

import (
	"reflect"
	"strings"
)

// nameOf returns the name of a field in documents, "" if it has none.
func nameOf(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// Nearest returns the name that differs from a mistyped one by at most two letters, ignoring case, "" if there is none.
func Nearest(mistyped string, names []string) (near string) {
	least := 3
	for _, name := range names {
		if d := distance(strings.ToLower(mistyped), strings.ToLower(name)); d < least && d < len(name)/2 {
			near, least = name, d
		}
	}
	return near
}

// distance returns how many letters must be added, removed or replaced to convert a to b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
