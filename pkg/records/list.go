package records

import (
	"errors"

	bolt "go.etcd.io/bbolt"
)

// Records calls f for every record, in the order of image ID and repository. One that cannot be read
// is passed over and its error is in the one that is returned; an error of f ends the walk.
func (s *Store) Records(f func(Record) error) error { return each(s, bucketRecords, f) }

// Marks calls f for every mark, as Records does.
func (s *Store) Marks(f func(Mark) error) error { return each(s, bucketMarks, f) }

// Intents returns every intent by its repository. One that cannot be read is still returned, with what
// its key tells, and its error is in the one that is returned.
func (s *Store) Intents() (all []Intent, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		all = nil
		var unreadable error
		err := tx.Bucket([]byte(bucketIntents)).ForEach(func(k, v []byte) error {
			var in Intent
			if err := decode(bucketIntents, k, v, &in); err != nil {
				unreadable = errors.Join(unreadable, err)
				in = intentOf(k)
			}
			all = append(all, in)
			return nil
		})
		return errors.Join(err, unreadable)
	})
	return all, err
}

// Pulling reports whether one of the repositories has an intent.
func (s *Store) Pulling(repositories []string) (pulling bool, err error) {
	err = s.view(func(tx *bolt.Tx) error {
		for _, r := range repositories {
			pulling = pulling || countIntents(tx, r) > 0
		}
		return nil
	})
	return pulling, err
}

func each[T any](s *Store, bucket string, f func(T) error) error {
	return s.view(func(tx *bolt.Tx) error {
		var unreadable error
		err := tx.Bucket([]byte(bucket)).ForEach(func(k, v []byte) error {
			var value T
			if err := decode(bucket, k, v, &value); err != nil {
				unreadable = errors.Join(unreadable, err)
				return nil
			}
			return f(value)
		})
		return errors.Join(err, unreadable)
	})
}
