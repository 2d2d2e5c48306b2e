package boltfile_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	bolt "go.etcd.io/bbolt"

	"github.com/pullgate/pullgate/internal/records/internal/boltfile"
	"github.com/pullgate/pullgate/internal/testkit"
)

// write makes a file with one transaction for each of the functions.
func write(tb testing.TB, changes ...func(tx *bolt.Tx) error) []byte {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "file.db")
	db := testkit.Value(bolt.Open(path, 0o600, nil))(tb)
	for _, change := range changes {
		if err := db.Update(change); err != nil {
			tb.Error(err)
		}
	}
	if err := db.Close(); err != nil {
		tb.Error(err)
	}
	content := testkit.Value(os.ReadFile(path))(tb)
	return content
}

// fill puts n values into a bucket.
func fill(bucket string, n int, value string) func(tx *bolt.Tx) error {
	return func(tx *bolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(bucket))
		for i := 0; i < n && err == nil; i++ {
			err = b.Put(fmt.Appendf(nil, "key %04d", i), []byte(value))
		}
		return errors.Join(err, b.SetSequence(uint64(n)))
	}
}

func nested(tx *bolt.Tx) error {
	outer, err := tx.CreateBucketIfNotExists([]byte("outer"))
	if err != nil {
		return err
	}
	inner, err := outer.CreateBucketIfNotExists([]byte("inner"))
	if err != nil {
		return err
	}
	return errors.Join(outer.Put([]byte("a"), []byte("1")), inner.Put([]byte("b"), []byte("2")))
}

// read returns the content of a file, one line for each value, and the damaged parts.
func read(content []byte) (lines, damage []string) {
	err := boltfile.Walk(bytes.NewReader(content), boltfile.Visitor{
		Bucket: func(name string, sequence uint64) error {
			lines = append(lines, fmt.Sprintf("%s: %d", name, sequence))
			return nil
		},
		Value: func(bucket string, key, value []byte) error {
			lines = append(lines, fmt.Sprintf("%s: %q %q", bucket, key, value))
			return nil
		},
		Damage: func(err error) error { damage = append(damage, err.Error()); return nil },
	})
	if err != nil {
		damage = append(damage, "ended: "+err.Error())
	}
	return lines, damage
}

// openCopy opens a copy of a file with bbolt, to read it.
func openCopy(tb testing.TB, content []byte) *bolt.DB {
	tb.Helper()
	path := filepath.Join(tb.TempDir(), "copy.db")
	testkit.Must(tb, os.WriteFile(path, content, 0o600))
	db := testkit.Value(bolt.Open(path, 0o600, &bolt.Options{ReadOnly: true}))(tb)
	return db
}

// byBolt returns what bbolt reads from a file, in the form of read.
func byBolt(tb testing.TB, content []byte) (lines []string) {
	tb.Helper()
	db := openCopy(tb, content)
	var walk func(name string, b *bolt.Bucket) error
	walk = func(name string, b *bolt.Bucket) error {
		lines = append(lines, fmt.Sprintf("%s: %d", name, b.Sequence()))
		return b.ForEach(func(k, v []byte) error {
			if v == nil {
				return walk(name+"/"+string(k), b.Bucket(k))
			}
			lines = append(lines, fmt.Sprintf("%s: %q %q", name, k, v))
			return nil
		})
	}
	err := db.View(func(tx *bolt.Tx) error {
		return tx.ForEach(func(name []byte, b *bolt.Bucket) error { return walk(string(name), b) })
	})
	if err := errors.Join(err, db.Close()); err != nil {
		tb.Error(err)
	}
	return lines
}

func TestWalkFindsWhatBoltFinds(t *testing.T) {
	drop := func(tx *bolt.Tx) error {
		b := tx.Bucket([]byte("many"))
		for i := 0; i < 900; i += 2 {
			if err := b.Delete(fmt.Appendf(nil, "key %04d", i)); err != nil {
				return err
			}
		}
		return nil
	}
	empty := func(tx *bolt.Tx) error {
		c := tx.Bucket([]byte("many")).Cursor()
		for k, _ := c.First(); k != nil; k, _ = c.First() {
			if err := c.Delete(); err != nil {
				return err
			}
		}
		return nil
	}
	for name, content := range map[string][]byte{
		"empty":              write(t),
		"an empty bucket":    write(t, fill("none", 0, "")),
		"emptied":            write(t, fill("many", 1000, strings.Repeat("v", 50)), empty, fill("late", 9, "v")),
		"one value":          write(t, fill("one", 1, "v")),
		"several levels":     write(t, fill("many", 3000, strings.Repeat("v", 100)), fill("few", 3, "")),
		"values of pages":    write(t, fill("long", 5, strings.Repeat("v", 100_000))),
		"buckets in buckets": write(t, nested, nested),
		"holes":              write(t, fill("many", 1000, strings.Repeat("v", 50)), drop, fill("late", 9, "v")),
	} {
		t.Run(name, func(t *testing.T) {
			lines, damage := read(content)
			if diff := cmp.Diff(byBolt(t, content), lines); diff != "" || damage != nil {
				t.Errorf("damage %q; lines (-bbolt +Walk):\n%s", damage, diff)
			}
		})
	}
}

// Under the race detector the sweeps run one case in so many: they have a single goroutine, and `make race` runs all
// cases without it.
const sampled = 10

func TestWalkGoesOnBesideDamage(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	content := write(t, fill("many", 3000, strings.Repeat("v", 100)))
	whole, _ := read(content)
	known := map[string]struct{}{}
	for _, line := range whole {
		known[line] = struct{}{}
	}
	size, less, every := os.Getpagesize(), 0, 1
	if testkit.Raced {
		every = sampled
	}
	for page := 2; page < len(content)/size; page += every {
		damaged := slices.Clone(content)
		clear(damaged[page*size : (page+1)*size])
		lines, damage := read(damaged)
		for _, line := range lines {
			if _, ok := known[line]; !ok {
				t.Fatalf("page %d: Walk finds %s, which was not there", page, line)
			}
		}
		if len(lines) < len(whole) {
			if less++; len(damage) == 0 {
				t.Errorf("page %d: Walk finds %d lines of %d, and no damage", page, len(lines), len(whole))
			}
			if leaf := content[page*size+8] == 2; leaf && len(lines) > 0 && len(lines) < len(whole)*9/10 {
				t.Errorf("page %d: Walk finds %d lines of %d; want all but those of a page", page, len(lines), len(whole))
			}
		}
	}
	if less < 50/every {
		t.Errorf("%d pages were missed; want those of several levels", less)
	}
}

func TestDamageThatBoltWouldFollow(t *testing.T) {
	content := write(t, func(tx *bolt.Tx) error {
		return errors.Join(fill("many", 3000, strings.Repeat("v", 100))(tx), fill("few", 4, "w")(tx))
	})
	size := os.Getpagesize()
	// inline is the page of the bucket few; it is part of the value that names the bucket.
	inline := func(b []byte) []byte {
		return b[bytes.LastIndex(b, []byte("few"))+len("few")+16:]
	}
	var branch, leaf, list int // the last one of each kind that has elements
	for page := 2; page < len(content)/size; page++ {
		switch kind, count := content[page*size+8], content[page*size+10]; {
		case kind == 1:
			branch = page
		case kind == 2 && count > 10 && !bytes.Contains(content[page*size:(page+1)*size], []byte("key 2999")):
			leaf = page
		case kind == 16:
			list = page
		}
	}
	number := func(page, at int, n uint64) func([]byte) {
		return func(b []byte) { binary.NativeEndian.PutUint64(b[page*size+at:], n) }
	}
	// key is the n-th key of the leaf, with keys before and after it.
	key := func(b []byte, n int) []byte {
		at := leaf*size + 16 + 16*n
		at += int(binary.NativeEndian.Uint32(b[at+4:]))
		return b[at : at+len("key 0000")]
	}
	last := int(content[leaf*size+10]) - 1
	for name, tc := range map[string]struct {
		damage func([]byte)
		want   string
	}{
		"a key below those before it": {func(b []byte) { key(b, 2)[0] = 'a' }, "key 2 is out of order"},
		"a key twice":                 {func(b []byte) { copy(key(b, 2), key(b, 1)) }, "key 2 is out of order"},
		"a key below its page":        {func(b []byte) { key(b, 0)[0] = 'a' }, "key 0 is out of order"},
		"a first key not that of the branch page": {func(b []byte) {
			at := branch*size + 2*16 // its second element
			at += int(binary.NativeEndian.Uint32(b[at:]))
			b[at+len("key 000")]-- // still above the keys of the first child
		}, "key 0 is out of order"},
		"a key above its page": {func(b []byte) { key(b, last)[0] = 'z' }, fmt.Sprintf("key %d is out of order", last)},
		"a page freed twice": {func(b []byte) {
			copy(b[list*size+16:list*size+24], b[list*size+24:list*size+32])
		}, "referenced twice"},
		"circle":                 {number(branch, 16+8, uint64(branch)), "referenced twice"},
		"out of the file":        {number(branch, 16+8, 1<<40), "out of bounds"},
		"a meta page as a child": {number(branch, 16+8, 1), "out of bounds"},
		"a free list as a child": {number(branch, 16+8, uint64(list)), "referenced twice"},
		"two children changed over": {func(b []byte) {
			first, second := b[branch*size+16+8:branch*size+16+16], b[branch*size+32+8:branch*size+32+16]
			kept := slices.Clone(first)
			copy(first, second)
			copy(second, kept)
		}, "out of order"},
		"another page's ID":  {number(leaf, 0, 3), "wrong head"},
		"four billion pages": {func(b []byte) { binary.NativeEndian.PutUint32(b[leaf*size+12:], 1<<32-1) }, "wrong head"},
		"more elements than room": {
			func(b []byte) { binary.NativeEndian.PutUint16(b[leaf*size+10:], 1<<16-1) },
			"more elements",
		},
		"fewer elements":           {func(b []byte) { b[leaf*size+10]-- }, "misplaced"},
		"no elements":              {func(b []byte) { clear(b[leaf*size+10 : leaf*size+12]) }, "no elements"},
		"no elements of few":       {func(b []byte) { clear(inline(b)[10:12]) }, "no elements"},
		"a huge key":               {func(b []byte) { binary.NativeEndian.PutUint32(b[leaf*size+24:], 1<<31) }, "misplaced"},
		"an unknown kind of value": {func(b []byte) { b[leaf*size+16] = 2 }, "misplaced"},
		"an unknown kind of page":  {func(b []byte) { b[leaf*size+8] = 4 }, "unexpected flags 4"},
		"a free page in use":       {number(list, 16, uint64(leaf)), "twice"},
		"a free page out of it":    {number(list, 16, 1<<50), "out of bounds"},
		"a free list too long":     {func(b []byte) { b[list*size+11] = 0xfe }, "wrong head"},
		"a lost page":              {func(b []byte) { b[list*size+10]-- }, "1 pages are neither used nor free"},
	} {
		t.Run(name, func(t *testing.T) {
			damaged := slices.Clone(content)
			tc.damage(damaged)
			_, damage := read(damaged)
			if !strings.Contains(strings.Join(damage, "\n"), tc.want) {
				t.Fatalf("damage = %q; want … %s …", damage, tc.want)
			}
			if err := boltfile.Walk(bytes.NewReader(damaged), boltfile.Visitor{}); err == nil || err.Error() != damage[0] {
				t.Errorf("Walk without Damage = %v; want the first damage, %s", err, damage[0])
			}
		})
	}
}

// Open relies on it, and does without bbolt's check.
func TestWalkFindsAllDamageThatBoltsCheckFinds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	drop := func(tx *bolt.Tx) error { return tx.DeleteBucket([]byte("dropped")) }
	content := write(t, fill("dropped", 200, "v"), fill("many", 400, strings.Repeat("v", 50)),
		fill("long", 3, strings.Repeat("v", 9000)), nested, drop, fill("few", 3, ""))
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	size := os.Getpagesize()
	// Numbers of 2, 4 or 8 bytes in the head of a page, or in one of its first elements.
	number := func() (at, n int) {
		n = 2 << random.IntN(3)
		return random.IntN(len(content)/size)*size + random.IntN(200/n)*n, n
	}
	sound, files := 0, 2000
	if testkit.Raced {
		files /= sampled
	}
	for range files {
		damaged := slices.Clone(content)
		for range 1 + random.IntN(2) {
			at, n := number()
			switch random.IntN(3) {
			case 0:
				damaged[at] ^= 1 << random.IntN(8)
			case 1:
				from, _ := number()
				copy(damaged[at:at+n], damaged[from:])
			case 2: // two of them change places
				from, _ := number()
				a, b := slices.Clone(damaged[at:at+n]), slices.Clone(damaged[from:from+n])
				copy(damaged[at:], b)
				copy(damaged[from:], a)
			}
		}
		if bytes.Equal(damaged, content) {
			continue
		}
		if _, damage := read(damaged); damage != nil {
			continue // bbolt's check might not survive it
		}
		sound++
		testkit.Must(t, checkByBolt(t, damaged))
	}
	if sound < files/20 {
		t.Errorf("%d of the files were sound to Walk; want more to compare", sound)
	}
}

func checkByBolt(tb testing.TB, content []byte) (err error) {
	tb.Helper()
	db := openCopy(tb, content)
	err = db.View(func(tx *bolt.Tx) error {
		var err error
		for problem := range tx.Check() {
			err = errors.Join(err, problem)
		}
		return err
	})
	return errors.Join(err, db.Close())
}

func TestNewestChoosesAsBoltDoes(t *testing.T) {
	content := write(t, fill("first", 1, "v"), fill("second", 1, "v"), fill("third", 1, "v"))
	size := os.Getpagesize()
	newer := 0
	if binary.NativeEndian.Uint64(content[size+64:]) > binary.NativeEndian.Uint64(content[64:]) {
		newer = 1
	}
	for name, tc := range map[string]struct {
		damage []int // meta pages
		want   string
	}{
		"sound":                {nil, "third"},
		"newer one is damaged": {[]int{newer}, "second"},
		"older one is damaged": {[]int{1 - newer}, "third"},
		"both are":             {[]int{0, 1}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			damaged := slices.Clone(content)
			for _, page := range tc.damage {
				damaged[page*size+40] ^= 1
			}
			lines, damage := read(damaged)
			if tc.want == "" {
				if len(lines) > 0 || len(damage) != 1 || !strings.Contains(damage[0], "checksum") {
					t.Errorf("read = %q, %q; want a wrong checksum", lines, damage)
				}
				return
			}
			if diff := cmp.Diff(byBolt(t, damaged), lines); diff != "" {
				t.Errorf("lines (-bbolt +Walk):\n%s", diff)
			}
			if last := lines[len(lines)-1]; !strings.HasPrefix(last, tc.want) {
				t.Errorf("last line = %s; want %s", last, tc.want)
			}
		})
	}
}

func TestNewestOfWhatIsNoBoltFile(t *testing.T) {
	content := write(t)
	for name, tc := range map[string]struct {
		content []byte
		want    string
	}{
		"empty":     {nil, "too short"},
		"text":      {[]byte("no such file\n"), "too short"},
		"long text": {bytes.Repeat([]byte("no such file\n"), 10_000), "not a bbolt file"},
		"zeros":     {make([]byte, 1<<16), "not a bbolt file"},
		"cut":       {content[:60], "too short"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := boltfile.Walk(bytes.NewReader(tc.content), boltfile.Visitor{}); err == nil ||
				!strings.Contains(err.Error(), tc.want) {
				t.Errorf("Walk = %v; want … %s …", err, tc.want)
			}
		})
	}
}

func TestFunctionOfAVisitorEndsTheWalk(t *testing.T) {
	content := bytes.NewReader(write(t, fill("a", 9, "v"), fill("b", 9, "v")))
	enough := errors.New("enough")
	for name, v := range map[string]boltfile.Visitor{
		"Bucket": {Bucket: func(string, uint64) error { return enough }},
		"Value":  {Value: func(string, []byte, []byte) error { return enough }},
	} {
		v.Damage = func(err error) error { t.Errorf("%s: damage: %v", name, err); return nil }
		if err := boltfile.Walk(content, v); !errors.Is(err, enough) {
			t.Errorf("%s: Walk = %v; want its error", name, err)
		}
	}
}

// Every read of a badDisk fails.
type badDisk struct{}

func (badDisk) ReadAt([]byte, int64) (int, error) {
	return 0, &os.PathError{Op: "read", Err: syscall.EIO}
}

// An error of the disk is not damage: a healthy store must not be set aside for it.
func TestFailedReadIsNotDamage(t *testing.T) {
	if err := boltfile.Walk(badDisk{}, boltfile.Visitor{}); !errors.Is(err, syscall.EIO) {
		t.Errorf("Walk of a disk that cannot be read = %v; want EIO", err)
	}
	content, size := write(t, fill("many", 200, "value")), int64(os.Getpagesize())
	for at := range int64(len(content)) {
		if at%512 != 0 {
			continue
		}
		damage := 0
		err := boltfile.Walk(badSector{bytes.NewReader(content), at},
			boltfile.Visitor{Damage: func(error) error { damage++; return nil }})
		if damage > 0 || err != nil && !errors.Is(err, syscall.EIO) || err == nil && at < 2*size && at%size == 0 {
			t.Errorf("Walk with a bad sector at %d = %v, %d damages; want EIO alone", at, err, damage)
		}
	}
}

// A badSector fails the reads of one byte.
type badSector struct {
	io.ReaderAt
	at int64
}

func (b badSector) ReadAt(p []byte, at int64) (int, error) {
	if at <= b.at && b.at < at+int64(len(p)) {
		return badDisk{}.ReadAt(p, at)
	}
	return b.ReaderAt.ReadAt(p, at)
}

func FuzzWalkEnds(f *testing.F) {
	content := write(f, fill("many", 200, "value"), nested)
	size := os.Getpagesize()
	f.Add(uint32(2*size+8), uint32(1))
	f.Add(uint32(3*size+16), uint32(1<<31))
	f.Add(uint32(size), uint32(0))
	f.Fuzz(func(t *testing.T, at, value uint32) {
		damaged := slices.Clone(content)
		binary.NativeEndian.PutUint32(damaged[int(at)%(len(damaged)-4):], value)
		lines, _ := read(damaged)
		if len(lines) > 1000 {
			t.Errorf("Walk finds %d lines; want no more than there are", len(lines))
		}
	})
}
