package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"os"
	"strings"
	"time"

	bolt "go.etcd.io/bbolt"
)

// A storeSize is what a store of pull records contains.
type storeSize struct{ images, credentials int }

func (s storeSize) String() string {
	if s.images == 0 {
		return "none"
	}
	return fmt.Sprintf("%d × %d", s.images, s.credentials)
}

// imageID is the ID of the image with a number, and repository its repository. Image 0 is the one of the pre-checks.
func imageID(n int) string {
	if n == 0 {
		return "sha256:" + strings.Repeat("1", 64)
	}
	return fmt.Sprintf("sha256:%064x", n)
}

func repository(n int) string {
	if n == 0 {
		name, _, _ := strings.Cut(image, ":")
		return name
	}
	return fmt.Sprintf("repo.test/team-%d/app-%d", n%50, n)
}

// storeBatch is the number of records in one transaction.
const storeBatch = 200

// writeStore writes a store in format 1: a record that is open to every pod for image 0, and one with credentials for
// each of the others. Through pullgated every credential would take two synced transactions.
func writeStore(path string, size storeSize) (err error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoGrowSync: true})
	if err != nil {
		return err
	}
	db.AllocSize = 1 << 20 // as pullgated's
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range []string{"meta", "intents", "records", "marks"} {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		if err := put(tx, "meta", "scanned", time.Now()); err != nil {
			return err
		}
		return tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("1"))
	})
	for n := 0; n <= size.images && err == nil; n += storeBatch {
		err = db.Update(func(tx *bolt.Tx) error {
			for i := n; i < min(n+storeBatch, size.images+1); i++ {
				if err := put(tx, "records", imageID(i)+"\x00"+repository(i), recordOf(i, size.credentials)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err == nil {
		err = db.Sync()
	}
	if closeErr := db.Close(); err == nil {
		err = closeErr
	}
	return err
}

// put writes a value with the checksum of its place and content.
func put(tx *bolt.Tx, bucket, key string, v any) error {
	payload, err := json.Marshal(v)
	if err != nil {
		return err
	}
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for _, part := range [][]byte{[]byte(bucket), []byte(key), payload} {
		_, _ = sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = sum.Write(part)
	}
	return tx.Bucket([]byte(bucket)).Put([]byte(key), append(sum.Sum(nil), payload...))
}

type record struct {
	Pair struct {
		ImageID    string `json:"imageID"`
		Repository string `json:"repository"`
	} `json:"pair"`
	Open     bool      `json:"open,omitempty"`
	Created  time.Time `json:"created"`
	LastUsed time.Time `json:"lastUsed,omitzero"`
	Proofs   []proof   `json:"proofs,omitempty"`
}

type proof struct {
	Credential  string    `json:"credential"`
	Secrets     []secret  `json:"secrets"`
	FirstProved time.Time `json:"firstProved"`
	LastProved  time.Time `json:"lastProved"`
	LastUsed    time.Time `json:"lastUsed"`
	Namespace   string    `json:"namespace"`
}

type secret struct {
	UID       string `json:"uid"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func recordOf(n, credentials int) record {
	at := time.Now().Add(-time.Hour)
	r := record{Open: n == 0, Created: at, LastUsed: at}
	r.Pair.ImageID, r.Pair.Repository = imageID(n), repository(n)
	if n == 0 {
		return r
	}
	for i := range credentials {
		namespace := fmt.Sprintf("team-%d", i)
		r.Proofs = append(r.Proofs, proof{
			Credential:  fmt.Sprintf("%032x%032x", n, i),
			Secrets:     []secret{{UID: fmt.Sprintf("%08x-0000-4000-8000-%012x", n, i), Namespace: namespace, Name: "registry-credentials"}},
			FirstProved: at, LastProved: at, LastUsed: at, Namespace: namespace,
		})
	}
	return r
}

// megabytes returns the size of a file.
func megabytes(path string) (float64, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return float64(info.Size()) / 1e6, nil
}
