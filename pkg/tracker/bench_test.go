package tracker_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// proofOf returns proof i of a record in a benchmark, as a pull with a pull secret writes it.
func proofOf(i int) records.Proof {
	t := time.Now().Add(-time.Duration(i+1)*time.Second - 123456).Round(0)
	ref := records.SecretRef{
		UID: fmt.Sprintf("7f1d3c52-0000-4000-8000-%012d", i), Namespace: fmt.Sprintf("team-%d", i),
		Name: "registry",
	}
	return records.Proof{
		Credential:  credential.ID(fmt.Sprintf("%016x%048x", uint64(i)*0x9e3779b97f4a7c15, i)),
		Secrets:     []records.SecretRef{ref},
		FirstProved: t, LastProved: t, LastUsed: t, Namespace: ref.Namespace,
	}
}

// writeRecords writes records into the file of a closed store, in one transaction and in the form that the package
// records documents.
func writeRecords(b *testing.B, path string, all []records.Record) {
	b.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	testkit.Must(b, err)
	err = db.Update(func(tx *bolt.Tx) error {
		for _, r := range all {
			payload, err := json.Marshal(r)
			if err != nil {
				return err
			}
			key, sum := []byte(r.Pair.ImageID+"\x00"+r.Pair.Repository), crc32.New(crc32.MakeTable(crc32.Castagnoli))
			for _, part := range [][]byte{[]byte("records"), key, payload} {
				_, _ = sum.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
				_, _ = sum.Write(part)
			}
			if err := tx.Bucket([]byte("records")).Put(key, append(sum.Sum(nil), payload...)); err != nil {
				return err
			}
		}
		return nil
	})
	testkit.Must(b, db.Close())
	testkit.Must(b, err)
}

// newJudge returns a tracker on a store with images, each with a record of a number of proofs, and a request for each
// image by the Secret of the last proof.
func newJudge(b *testing.B, images, proofs int, o tracker.Options) (*tracker.Tracker, *records.Store,
	[]tracker.Request,
) {
	b.Helper()
	var all []records.Record
	var requests []tracker.Request
	for i := range images {
		img := tracker.NewImage(fmt.Sprintf("sha256:%064x", i+1), app+":1")
		r := records.Record{Pair: records.Pair{ImageID: img.ID, Repository: app}, Created: time.Now(), LastUsed: time.Now()}
		for j := range proofs {
			r.Proofs = append(r.Proofs, proofOf(j))
		}
		all = append(all, r)
		last := r.Proofs[proofs-1]
		requests = append(requests, tracker.Request{
			Pod: tracker.Pod{UID: "pod", Namespace: last.Namespace}, Name: imageref.New(app + ":1"), Image: img,
			Secrets: []tracker.Secret{{Credential: last.Credential, Ref: last.Secrets[0]}},
		})
	}
	path := filepath.Join(b.TempDir(), "records.db")
	store, _, err := records.Open(path, records.Options{})
	testkit.Must(b, err)
	testkit.Must(b, store.Close())
	writeRecords(b, path, all)
	if store, _, err = records.Open(path, records.Options{}); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := store.Close(); err != nil {
			b.Error(err)
		}
	})
	o.Log = klog.Background().V(99)
	return tracker.New(store, credential.NewKey(), &fakeRuntime{}, o), store, requests
}

// judge makes one judgement, and reports whether it allows.
func judge(t *tracker.Tracker, r tracker.Request) bool {
	return t.Check(context.Background(), r).Verdict == policy.Allow
}

// benchmarkWarm judges a pair that was judged before: by a grant of the pod, and by a proof with a limited validity.
func benchmarkWarm(b *testing.B, run func(b *testing.B, t *tracker.Tracker, r tracker.Request)) {
	b.Helper()
	for _, proofs := range []int{1, 100} {
		b.Run(fmt.Sprintf("granted/proofs=%d", proofs), func(b *testing.B) {
			t, _, r := newJudge(b, 1, proofs, tracker.Options{})
			if !judge(t, r[0]) {
				b.Fatal("denied")
			}
			r[0].Secrets = nil
			run(b, t, r[0])
		})
		b.Run(fmt.Sprintf("proved/proofs=%d", proofs), func(b *testing.B) {
			t, _, r := newJudge(b, 1, proofs, tracker.Options{Rules: tracker.Rules{Validity: time.Hour}})
			if !judge(t, r[0]) {
				b.Fatal("denied")
			}
			run(b, t, r[0])
		})
	}
}

func BenchmarkCheckWarm(b *testing.B) {
	benchmarkWarm(b, func(b *testing.B, t *tracker.Tracker, r tracker.Request) {
		b.Helper()
		b.ReportAllocs()
		for b.Loop() {
			if !judge(t, r) {
				b.Fatal("denied")
			}
		}
	})
}

func BenchmarkCheckParallel64(b *testing.B) {
	benchmarkWarm(b, func(b *testing.B, t *tracker.Tracker, r tracker.Request) {
		b.Helper()
		b.ReportAllocs()
		b.SetParallelism(max(1, 64/runtime.GOMAXPROCS(0)))
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if !judge(t, r) {
					b.Error("denied")
				}
			}
		})
	})
}

// BenchmarkCheckCold100 judges 500 pairs with 100 proofs each, after a write: nothing that is in memory counts. It
// reports the time of one.
func BenchmarkCheckCold100(b *testing.B) {
	t, store, all := newJudge(b, 500, 100, tracker.Options{})
	n := 0
	for b.Loop() {
		b.StopTimer()
		testkit.Must(b, store.SetKeyFingerprint("f"))
		b.StartTimer()
		for _, r := range all {
			if !judge(t, r) {
				b.Fatal("denied")
			}
			n++
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/judgement")
}
