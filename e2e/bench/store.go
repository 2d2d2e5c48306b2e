package main

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	bolt "go.etcd.io/bbolt"
)

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
		return strings.TrimSuffix(image, ":1")
	}
	return fmt.Sprintf("repo.test/team-%d/app-%d", n%50, n)
}

// writeStore writes a store in format 1: a record that is public for image 0, and one with credentials for each of the
// others. Through pullgated every credential would take two synced transactions.
func writeStore(path string, size storeSize) (err error) {
	const batch = 200 // records in a transaction
	db := host.Must(bolt.Open(path, 0o600, &bolt.Options{NoSync: true, NoGrowSync: true}))
	db.AllocSize = 1 << 20 // as pullgated's
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range []string{"meta", "intents", "records", "marks"} {
			if _, err := tx.CreateBucket([]byte(name)); err != nil {
				return err
			}
		}
		format := tx.Bucket([]byte("meta")).Put([]byte("format"), []byte("1"))
		return errors.Join(format, put(tx, "meta", "scanned", time.Now()))
	})
	for n := 0; n <= size.images && err == nil; n += batch {
		err = db.Update(func(tx *bolt.Tx) error {
			for i := n; i < min(n+batch, size.images+1); i++ {
				if err := put(tx, "records", imageID(i)+"\x00"+repository(i), record(i, size.credentials)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return errors.Join(err, db.Sync(), db.Close())
}

// put writes a value with the checksum of its place and content.
func put(tx *bolt.Tx, bucket, key string, v any) error {
	payload := host.Must(json.Marshal(v))
	sum := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	for _, part := range [][]byte{[]byte(bucket), []byte(key), payload} {
		_, _ = sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		_, _ = sum.Write(part)
	}
	return tx.Bucket([]byte(bucket)).Put([]byte(key), append(sum.Sum(nil), payload...))
}

func record(n, credentials int) map[string]any {
	at := time.Now().Add(-time.Hour)
	r := map[string]any{
		"pair": map[string]string{"imageID": imageID(n), "repository": repository(n)}, "created": at, "lastUsed": at,
	}
	if n == 0 {
		r["open"] = true
		return r
	}
	var proofs []map[string]any
	for i := range credentials {
		namespace := fmt.Sprintf("team-%d", i)
		proofs = append(proofs, map[string]any{
			"credential": fmt.Sprintf("%032x%032x", n, i), "namespace": namespace,
			"secrets": []map[string]string{{
				"uid": fmt.Sprintf("%08x-0000-4000-8000-%012x", n, i), "namespace": namespace, "name": "registry-credentials",
			}},
			"firstProved": at, "lastProved": at, "lastUsed": at,
		})
	}
	r["proofs"] = proofs
	return r
}
