package records

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// An ImageFacts contains everything that the store has about one image ID.
type ImageFacts struct {
	ImageID string
	Records []Record // by repository
	Marks   []Mark   // by repository
}

// Images returns the facts about every image ID with a record or a mark, ordered by image ID.
func (s *Store) Images() ([]ImageFacts, error) {
	return read(s, "list images of the store", func(f *facts) (all []ImageFacts) {
		for p, e := range f.all() {
			if e.record == nil && e.mark == nil {
				continue
			}
			if n := len(all); n == 0 || all[n-1].ImageID != p.ImageID {
				all = append(all, ImageFacts{ImageID: p.ImageID})
			}
			last := &all[len(all)-1]
			if e.record != nil {
				last.Records = append(last.Records, *e.record)
			}
			if e.mark != nil {
				last.Marks = append(last.Marks, *e.mark)
			}
		}
		return all
	})
}

// Details is Facts with the repositories that are only counted there, read in one snapshot.
type Details struct {
	Facts
	RecordedAs []string // the repositories behind OtherRecords
	MarkedAs   []string // the repositories behind OtherMarks
}

// Describe returns all facts about a pair. The error is that of Lookup.
func (s *Store) Describe(p Pair) (Details, error) {
	return read(s, fmt.Sprintf("look up %s of %s", p.ImageID, p.Repository), func(t *facts) Details {
		d := Details{Facts: t.lookup(p)}
		for _, e := range t.images[p.ImageID] {
			if e.repository == p.Repository {
				continue
			}
			if t.rival(&e) {
				d.RecordedAs = append(d.RecordedAs, e.repository)
			}
			if t.otherMark(&e) {
				d.MarkedAs = append(d.MarkedAs, e.repository)
			}
		}
		return d
	})
}

// Intents returns every intent, ordered by repository and ID.
func (s *Store) Intents() ([]Intent, error) {
	return read(s, "read pull intents", func(t *facts) (all []Intent) {
		for _, of := range t.intents {
			all = append(all, of...)
		}
		slices.SortFunc(all, func(a, b Intent) int {
			return cmp.Or(strings.Compare(a.Repository, b.Repository), cmp.Compare(a.ID, b.ID))
		})
		return all
	})
}

// Pulling reports whether one of the repositories has an intent.
func (s *Store) Pulling(repositories []string) (bool, error) {
	return read(s, "look for pull intents", func(t *facts) bool {
		return slices.ContainsFunc(repositories, func(r string) bool { return len(t.intents[r]) > 0 })
	})
}
