package offline_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/records/offline"
	"github.com/pullgate/pullgate/internal/testkit"
)

const (
	app = "repo.test/team/app"
	id1 = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	id2 = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

func noon() time.Time { return time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC) }

func newStore(t *testing.T) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "records.db")
	fill(t, path)
	return path
}

// fill makes a closed store with one value of each kind.
func fill(t *testing.T, path string) {
	t.Helper()
	s, _, err := records.Open(path, records.Options{Now: noon()})
	testkit.Must(t, err)
	_, err = s.MarkPreloaded(records.Scan{
		Pairs: []records.Pair{{ImageID: id2, Repository: app}}, Origin: "start", Now: noon(), First: true,
	})
	intent, _, beginErr := s.BeginListed(app+":v1", app, noon(), map[string]struct{}{id2: {}})
	proved := records.Result{
		Pair: records.Pair{ImageID: id1, Repository: app}, Credential: "a11ce", At: noon(),
		Secrets: []records.SecretRef{{UID: "7b0a7a3c", Namespace: "team", Name: "pull"}},
	}
	endorsed := records.Endorsement{
		Pair: proved.Pair, Requirement: "v1:team", Digest: "sha256:d1",
		Signers: []string{"key <team>"}, At: noon(),
	}
	err = errors.Join(err, beginErr, s.Prove(intent, proved), s.SetKeyFingerprint("f00d"),
		s.Endorse([]records.Endorsement{endorsed}, nil))
	_, _, beginErr = s.BeginListed("repo.test/lost:\u202ev1\u009b", "repo.test/lost", noon(), nil)
	testkit.Must(t, errors.Join(err, beginErr, s.Close()))
}

// change changes the file of a closed store directly.
func change(t *testing.T, path string, f func(*bolt.Tx) error) {
	t.Helper()
	db := testkit.Value(bolt.Open(path, 0o600, &bolt.Options{Timeout: 10 * time.Second}))(t)
	testkit.Must(t, errors.Join(db.Update(f), db.Close()))
}

func damageValue(tx *bolt.Tx) error {
	return tx.Bucket([]byte("records")).Put([]byte(id1+"\x00"+app), []byte("damaged"))
}

func edit(t *testing.T, path string, f func([]byte) []byte) {
	t.Helper()
	content := testkit.Value(os.ReadFile(path))(t)
	testkit.Must(t, os.WriteFile(path, f(content), 0o600))
}

// state returns the visible state of a file and of the files in its directory.
func state(t *testing.T, path string) string {
	t.Helper()
	entries := testkit.Value(os.ReadDir(filepath.Dir(path)))(t)
	var b strings.Builder
	for _, e := range entries {
		info := testkit.Value(e.Info())(t)
		_, _ = fmt.Fprintln(&b, info.Name(), info.Mode(), info.Size(), info.ModTime())
		if info.Mode().IsRegular() {
			content := testkit.Value(os.ReadFile(filepath.Join(filepath.Dir(path), e.Name())))(t)
			b.Write(content)
		}
	}
	return b.String()
}

func TestCheckReportsDamageAndChangesNothing(t *testing.T) {
	inTx := func(f func(*bolt.Tx) error) func(string) error {
		return func(path string) error { change(t, path, f); return nil }
	}
	inFile := func(f func([]byte) []byte) func(string) error {
		return func(path string) error { edit(t, path, f); return nil }
	}
	put := func(key, value string) func(string) error {
		return inTx(func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte(key), []byte(value)) })
	}
	replaced := func(by func(path string) error) func(string) error {
		return func(path string) error { return errors.Join(os.Rename(path, path+".real"), by(path)) }
	}
	noMarks := inTx(func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("marks")) })
	for name, tc := range map[string]struct {
		damage  func(path string) error
		where   string // of the first problem, "" for none
		what    string // of the problem or the error
		wantErr error
	}{
		"sound":       {damage: inFile(func(b []byte) []byte { return b })},
		"value":       {inTx(damageValue), "records " + id1 + " " + app, "wrong checksum", nil},
		"bucket":      {noMarks, records.WhereTree, "bucket marks is missing", nil},
		"unknown key": {put("distrusu", "x"), "meta distrusu", "unknown key", nil},
		"pages":       {inFile(func(b []byte) []byte { clear(b[2*4096:]); return b }), records.WhereTree, "page", nil},
		"cut":         {inFile(func(b []byte) []byte { return b[:3*4096] }), records.WhereTree, "shorter", nil},
		"empty":       {inFile(func([]byte) []byte { return nil }), records.WhereTree, "too short", nil},
		"text": {
			inFile(func([]byte) []byte { return bytes.Repeat([]byte("no store\n"), 9999) }), records.WhereTree,
			"not a bbolt file", nil,
		},
		"newer":     {put("format", "7"), "", "format 7, this version reads up to 3", records.ErrNewerFormat},
		"absent":    {os.Remove, "", "no such file", os.ErrNotExist},
		"link":      {replaced(func(p string) error { return os.Symlink(p+".real", p) }), "", "is a symbolic link", nil},
		"directory": {replaced(func(p string) error { return os.Mkdir(p, 0o700) }), "", "not a regular file", nil},
		"pipe":      {replaced(func(p string) error { return syscall.Mkfifo(p, 0o600) }), "", "not a regular file", nil},
	} {
		t.Run(name, func(t *testing.T) {
			path := newStore(t)
			testkit.Must(t, tc.damage(path))
			before := state(t, path)
			v, err := offline.Check(t.Context(), path)
			refused := tc.where == "" && tc.what != ""
			switch {
			case refused:
				if err == nil || !strings.Contains(err.Error(), tc.what) || tc.wantErr != nil && !errors.Is(err, tc.wantErr) {
					t.Errorf("Check = %+v, %v; want … %s …", v, err, tc.what)
				}
			case err != nil:
				t.Errorf("Check = %v; want nil", err)
			case tc.where == "":
				testkit.Equal(t, "Verification", v, records.Verification{Values: 7})
			case len(v.Problems) == 0 || v.Problems[0].Where != tc.where || !strings.Contains(v.Problems[0].What, tc.what):
				t.Errorf("Problems = %q; want %s: … %s …", v.Problems, tc.where, tc.what)
			}
			if _, err := offline.Dump(t.Context(), path, io.Discard); (err != nil) != refused {
				t.Errorf("Dump = %v; want what Check returned", err)
			}
			if sound := !refused && tc.where != records.WhereTree; !sound {
				_, err := offline.Compact(t.Context(), path)
				if err == nil || !refused && !errors.Is(err, offline.ErrDamaged) || tc.wantErr != nil &&
					!errors.Is(err, tc.wantErr) {
					t.Errorf("Compact = %v; want it refused", err)
				}
			}
			if after := state(t, path); after != before {
				t.Errorf("the file is %.300s; was %.300s", after, before)
			}
		})
	}
}

// Check reports what would make a daemon set the file aside.
func TestCheckFindsWhatOpenFinds(t *testing.T) {
	original, used := newStore(t), 0
	content := testkit.Value(os.ReadFile(original))(t)
	change(t, original, func(tx *bolt.Tx) error { used = int(tx.Size()); return nil })
	// Damage in unused pages at the end of the file has no effect; two of those pages are enough.
	content = content[:used+2*os.Getpagesize()]
	step := 31
	if testing.Short() {
		step *= 10
	}
	// A sample of the bytes may miss every page in use; then the next sample is taken, until each byte was in one.
	first, found := rand.IntN(step), 0
	for n := 0; n < step && found == 0; n++ {
		found = damageEach(t, content, (first+n)%step, step)
	}
	if found == 0 {
		t.Error("no damage was set aside")
	}
}

// damageEach damages one byte of a store at a time, and returns how often Open set the file aside. Check must find a
// problem each time.
func damageEach(t *testing.T, content []byte, first, step int) (found int) {
	t.Helper()
	t.Logf("damages every %d-th byte from byte %d on", step, first)
	for at := first; at < len(content); at += step {
		damaged := bytes.Clone(content)
		damaged[at] ^= 0x24
		path := filepath.Join(t.TempDir(), "records.db")
		testkit.Must(t, os.WriteFile(path, damaged, 0o600))
		v, checkErr := offline.Check(t.Context(), path)
		s, report, err := records.Open(path, records.Options{Now: noon()})
		if err == nil {
			err = s.Close()
		}
		if err != nil || checkErr != nil {
			t.Fatalf("byte %d: Check = %v, Open = %v; want nil", at, checkErr, err)
		}
		if report.SetAside != "" {
			if found++; len(v.Problems) == 0 {
				t.Errorf("byte %d: Check finds nothing; Open: %s", at, report.Damage)
			}
		}
	}
	return found
}

const day = `"2026-05-04T12:00:00Z"`

const dumped = `{"v":1,"bucket":"endorsements","key":"` + id1 + ` repo.test/team/app v1:team","value":` +
	`{"pair":{"imageID":"` + id1 + `","repository":"repo.test/team/app"},"requirement":"v1:team",` +
	`"digest":"sha256:d1","signers":["key \u003cteam\u003e"],"at":` + day + `}}
{"v":1,"bucket":"intents","key":"repo.test/lost 2","value":{"id":2,"name":"repo.test/lost:\u202ev1\u009b",` +
	`"repository":"repo.test/lost","begun":` + day + `}}
{"v":1,"bucket":"marks","key":"` + id2 + ` repo.test/team/app","value":{"pair":{"imageID":"` + id2 + `",` +
	`"repository":"repo.test/team/app"},"set":` + day + `,"origin":"start"}}
{"v":1,"bucket":"meta","key":"format","value":2}
{"v":1,"bucket":"meta","key":"key","value":"f00d"}
{"v":1,"bucket":"meta","key":"scanned","value":` + day + `}
{"v":1,"bucket":"records","key":"` + id1 + ` repo.test/team/app",RECORD}
`

func TestDumpWritesEveryValueInALine(t *testing.T) {
	const sound = `"value":{"pair":{"imageID":"` + id1 +
		`","repository":"repo.test/team/app"},"created":"2026-05-04T12:00:00Z",` +
		`"lastUsed":` + day + `,"proofs":[{"credential":"a11ce","secrets":[{"uid":"7b0a7a3c","namespace":"team",` +
		`"name":"pull"}],"firstProved":` + day + `,"lastProved":` + day + `,"lastUsed":` + day + `}],"unlisted":true}`
	const unreadable = `"unreadable":"records: stored value unreadable: bucket records: wrong checksum of 7 bytes"`
	for _, tc := range []struct {
		name   string
		damage bool
		record string
		want   int
	}{{"sound", false, sound, 0}, {"unreadable", true, unreadable, 1}} {
		t.Run(tc.name, func(t *testing.T) {
			path := newStore(t)
			if tc.damage {
				change(t, path, damageValue)
			}
			var got bytes.Buffer
			v, err := offline.Dump(t.Context(), path, &got)
			if err != nil || v.Values != 7 || len(v.Problems) != tc.want {
				t.Errorf("Dump = %+v, %v; want 7 values, %d problems", v, err, tc.want)
			}
			testkit.Equal(t, "lines", got.String(), strings.Replace(dumped, "RECORD", tc.record, 1))
		})
	}
}

func TestDumpReportsDamageAndPrintsTheRest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "records.db")
	s, _, err := records.Open(path, records.Options{Now: noon()})
	testkit.Must(t, err)
	for n := range 300 {
		_, _, err := s.BeginListed("n", fmt.Sprintf("repo.test/%03d/%0100d", n, 0), noon(), nil)
		testkit.Must(t, err)
	}
	testkit.Must(t, s.Close())
	edit(t, path, func(b []byte) []byte { // one page with values in it
		at := bytes.LastIndex(b, []byte("repo.test/150/")) &^ 4095
		clear(b[at : at+4096])
		return b
	})
	var got bytes.Buffer
	v, err := offline.Dump(t.Context(), path, &got)
	lines := strings.Split(strings.TrimSpace(got.String()), "\n")
	if err != nil || len(v.Problems) != 1 || v.Values < 100 || v.Values == 301 || len(lines) != v.Values+1 {
		t.Errorf("Dump = %d values, %q, %v in %d lines; want one problem and a part of 301 values", v.Values, v.Problems, err,
			len(lines))
	}
	if !strings.Contains(got.String(), `{"v":1,"damage":"page `) {
		t.Errorf("no line reports the damage:\n%.500s", got.String())
	}
}

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, syscall.ENOSPC }

func TestDumpReportsAWriteError(t *testing.T) {
	if _, err := offline.Dump(t.Context(), newStore(t), fullDisk{}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("Dump = %v; want ENOSPC", err)
	}
}

func TestEveryCallEndsWithItsContext(t *testing.T) {
	path := newStore(t)
	before := state(t, path)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for name, call := range calls() {
		if err := call(ctx, path); !errors.Is(err, context.Canceled) {
			t.Errorf("%s = %v; want Canceled", name, err)
		}
	}
	if after := state(t, path); after != before {
		t.Error("something has changed")
	}
}

func calls() map[string]func(ctx context.Context, path string) error {
	return map[string]func(ctx context.Context, path string) error{
		"Check": func(ctx context.Context, path string) error { _, err := offline.Check(ctx, path); return err },
		"Dump": func(ctx context.Context, path string) error {
			_, err := offline.Dump(ctx, path, io.Discard)
			return err
		},
		"Compact": func(ctx context.Context, path string) error { _, err := offline.Compact(ctx, path); return err },
	}
}

func TestStoreThatADaemonHasOpenIsInUse(t *testing.T) {
	path := newStore(t)
	s, _, err := records.Open(path, records.Options{})
	testkit.Must(t, err)
	before := state(t, path)
	began := time.Now()
	var wg sync.WaitGroup // each waits for the lock, as long as the others
	for name, call := range calls() {
		wg.Go(func() {
			if err := call(t.Context(), path); !errors.Is(err, records.ErrInUse) {
				t.Errorf("%s = %v; want ErrInUse", name, err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("the three calls took %v; want 2 s", took)
	}
	if after := state(t, path); after != before {
		t.Error("something has changed")
	}
	testkit.Must(t, s.Close())
	for name, call := range calls() {
		if err := call(t.Context(), path); err != nil {
			t.Errorf("%s once it is closed = %v; want nil", name, err)
		}
	}
}
