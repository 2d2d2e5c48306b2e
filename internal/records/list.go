package records

import (
	"errors"
	"slices"

	bolt "go.etcd.io/bbolt"
)

// Intents returns every intent, ordered by repository. For an intent that cannot be read it returns the fields that the key
// contains, and includes its error in err.
func (s *Store) Intents() (all []Intent, err error) {
	err = s.file.View(func(tx *bolt.Tx) error {
		var unreadable error
		for k, v := range each(tx, bucketIntents, nil) {
			var in Intent
			if err := decode(bucketIntents, k, v, &in); err != nil {
				unreadable = errors.Join(unreadable, err)
				in = intentOf(k)
			}
			all = append(all, in)
		}
		return unreadable
	})
	return all, err
}

// Pulling reports whether one of the repositories has an intent.
func (s *Store) Pulling(repositories []string) (bool, error) {
	return read(s, "look for pull intents", func(tx *bolt.Tx) (bool, error) {
		return slices.ContainsFunc(repositories, func(r string) bool { return countIntents(tx, r) > 0 }), nil
	})
}
