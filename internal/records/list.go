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

// Images returns the facts about the image IDs beginning with from, ordered by image ID: at most limit of them.
func (s *Store) Images(from string, limit int) ([]ImageFacts, error) {
	return read(s, "list images of the store", func(f *facts) (all []ImageFacts, err error) {
		var last ImageFacts
		for p, e := range f.all() {
			if p.ImageID < from || e.record == nil && e.mark == nil {
				continue
			}
			if p.ImageID != last.ImageID {
				if last.ImageID != "" {
					all = append(all, last)
				}
				if last = (ImageFacts{ImageID: p.ImageID}); len(all) == limit {
					return all, nil
				}
			}
			if e.record != nil {
				last.Records = append(last.Records, *e.record)
			}
			if e.mark != nil {
				last.Marks = append(last.Marks, *e.mark)
			}
		}
		if last.ImageID != "" {
			all = append(all, last)
		}
		return all, nil
	})
}

// A Keyed is a value with its key. A list continues after that key.
type Keyed[T any] struct {
	Key   string
	Value T
}

// MarksAfter returns the marks after a key, ordered by image ID and repository: at most limit of them. "" is before all
// keys.
func (s *Store) MarksAfter(key string, limit int) ([]Keyed[Mark], error) {
	return page(s, key, limit, func(t *facts, add func(key []byte, m Mark)) {
		for p, e := range t.all() {
			if e.mark != nil {
				add(p.key(), *e.mark)
			}
		}
	})
}

// IntentsAfter returns the intents after a key, ordered by repository and ID: at most limit of them. The key of a
// repository is before all its intents.
func (s *Store) IntentsAfter(key string, limit int) ([]Keyed[Intent], error) {
	return page(s, key, limit, func(t *facts, add func(key []byte, in Intent)) {
		for _, all := range t.intents {
			for _, in := range all {
				add(in.key(), in)
			}
		}
	})
}

// EndorsementsAfter returns the endorsements after a key, ordered by image ID, repository and requirement: at most
// limit of them.
func (s *Store) EndorsementsAfter(key string, limit int) ([]Keyed[Endorsement], error) {
	return page(s, key, limit, func(t *facts, add func(key []byte, e Endorsement)) {
		for _, e := range t.all() {
			for _, one := range e.endorsements {
				add(one.key(), one)
			}
		}
	})
}

func page[T any](
	s *Store, after string, limit int, each func(t *facts, add func(key []byte, v T)),
) ([]Keyed[T], error) {
	return read(s, "list the store", func(t *facts) (all []Keyed[T], err error) {
		each(t, func(key []byte, v T) {
			if string(key) > after {
				all = append(all, Keyed[T]{Key: string(key), Value: v})
			}
		})
		slices.SortFunc(all, func(a, b Keyed[T]) int { return strings.Compare(a.Key, b.Key) })
		return all[:min(limit, len(all))], nil
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
	return read(s, fmt.Sprintf("look up %s of %s", p.ImageID, p.Repository), func(t *facts) (Details, error) {
		d := Details{Facts: t.lookup(p)}
		for _, e := range t.images[p.ImageID] {
			if e.repository == p.Repository {
				continue
			}
			if e.rival() {
				d.RecordedAs = append(d.RecordedAs, e.repository)
			}
			if t.otherMark(&e) {
				d.MarkedAs = append(d.MarkedAs, e.repository)
			}
		}
		return d, nil
	})
}

// After returns the first image ID that can follow imageID, for use with Images.
func After(imageID string) string { return imageID + "\x01" }

// Intents returns every intent, ordered by repository.
func (s *Store) Intents() ([]Intent, error) {
	return read(s, "read pull intents", func(t *facts) (all []Intent, err error) {
		for _, of := range t.intents {
			all = append(all, of...)
		}
		slices.SortFunc(all, func(a, b Intent) int {
			return cmp.Or(strings.Compare(a.Repository, b.Repository), cmp.Compare(a.ID, b.ID))
		})
		return all, nil
	})
}

// Pulling reports whether one of the repositories has an intent.
func (s *Store) Pulling(repositories []string) (bool, error) {
	return read(s, "look for pull intents", func(t *facts) (bool, error) {
		return slices.ContainsFunc(repositories, func(r string) bool { return len(t.intents[r]) > 0 }), nil
	})
}
