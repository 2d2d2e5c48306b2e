package credential_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

func mustBeAlone(t *testing.T, path string) {
	t.Helper()
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 1 || files[0].Name() != filepath.Base(path) {
		t.Errorf("beside the key there is %v, %v; want nothing", files, err)
	}
}

func TestCreateKeyWritesWhatLoadKeyReads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.key")
	created := testkit.Value(credential.CreateKey(path))(t)
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 || info.Size() != 65 {
		t.Errorf("key file: mode %v, %d bytes, %v; want -rw-------, 65", info.Mode(), info.Size(), err)
	}
	mustBeAlone(t, path)
	loaded, err := credential.LoadKey(path)
	c := credential.New(credential.Login{Username: "user", Password: "pass"})
	if err != nil || loaded.Fingerprint() != created.Fingerprint() || loaded.ID(c) != created.ID(c) {
		t.Errorf("LoadKey = another key than the one created, %v", err)
	}
}

func TestCreateKeyReplacesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.key")
	testkit.Must(t, os.WriteFile(path, []byte("garbage"), 0o600))
	if _, err := credential.CreateKey(path); !errors.Is(err, fs.ErrExist) {
		t.Errorf("CreateKey over a file = %v; want fs.ErrExist", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "garbage" {
		t.Errorf("the file now contains %q, %v; want the old content", got, err)
	}
	mustBeAlone(t, path)
}

func TestCreateKeyOfManyOneWins(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.key")
	const many = 16
	var keys [many]credential.Key
	var errs [many]error
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range many {
		wg.Go(func() {
			<-begin
			keys[i], errs[i] = credential.CreateKey(path)
		})
	}
	close(begin)
	wg.Wait()
	loaded := testkit.Value(credential.LoadKey(path))(t)
	won := 0
	for i, err := range errs {
		switch {
		case err == nil:
			won++
			if keys[i].Fingerprint() != loaded.Fingerprint() {
				t.Error("the winner's key is not the one on disk")
			}
		case !errors.Is(err, fs.ErrExist):
			t.Errorf("CreateKey = %v; want fs.ErrExist", err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d created the key; want 1", won, many)
	}
	mustBeAlone(t, path)
}

func TestCreateKeyWithoutADirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "absent", "node.key")
	if _, err := credential.CreateKey(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CreateKey = %v; want fs.ErrNotExist", err)
	}
}

func TestLoadKeyRefuses(t *testing.T) {
	good := strings.Repeat("0123456789abcdef", 4)
	for name, content := range map[string]string{
		"empty":            "",
		"one newline":      "\n",
		"short":            good[:62] + "\n",
		"odd":              good[:63] + "\n",
		"long":             good + "00\n",
		"twice":            good + "\n" + good + "\n",
		"twice in one":     good + good,
		"very long":        strings.Repeat(good, 1000),
		"text after it":    good + "\n#",
		"two newlines":     good + "\n\n",
		"carriage return":  good + "\r\n",
		"space before":     " " + good,
		"not hexadecimal":  strings.Repeat("g", 64),
		"raw bytes":        strings.Repeat("\x00", 32),
		"garbage":          canary,
		"zeros after loss": strings.Repeat("\x00", 65),
	} {
		path := filepath.Join(t.TempDir(), "node.key")
		testkit.Must(t, os.WriteFile(path, []byte(content), 0o600))
		_, err := credential.LoadKey(path)
		if !errors.Is(err, credential.ErrDamagedKey) || errors.Is(err, fs.ErrNotExist) ||
			!strings.Contains(err.Error(), path) {
			t.Errorf("%s: LoadKey = %v; want ErrDamagedKey with the path", name, err)
		} else if strings.Contains(err.Error(), good[:62]) || strings.Contains(err.Error(), canary) {
			t.Errorf("%s: the error of LoadKey contains the content of the file: %v", name, err)
		}
	}
	for _, content := range []string{good, good + "\n"} {
		path := filepath.Join(t.TempDir(), "node.key")
		testkit.Must(t, os.WriteFile(path, []byte(content), 0o600))
		if _, err := credential.LoadKey(path); err != nil {
			t.Errorf("LoadKey of %q = %v; want nil", content, err)
		}
	}
}

func TestLoadKeyDistinguishesAbsentFromUnreadable(t *testing.T) {
	dir := t.TempDir()
	if _, err := credential.LoadKey(filepath.Join(dir, "absent")); !errors.Is(err, fs.ErrNotExist) ||
		errors.Is(err, credential.ErrDamagedKey) {
		t.Errorf("LoadKey of a missing file = %v; want fs.ErrNotExist", err)
	}
	// If a caller took this for a missing key, it would make a new one.
	_, err := credential.LoadKey(dir)
	if !errors.Is(err, syscall.EISDIR) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, credential.ErrDamagedKey) ||
		!strings.Contains(err.Error(), dir) {
		t.Errorf("LoadKey of a directory = %v; want EISDIR with the path", err)
	}
}

func FuzzLoadKey(f *testing.F) {
	good := strings.Repeat("0123456789abcdef", 4)
	for _, s := range []string{"", "\n", good, good + "\n", good + "0", strings.ToUpper(good), good[:63]} {
		f.Add([]byte(s))
	}
	path := filepath.Join(f.TempDir(), "node.key")
	f.Fuzz(func(t *testing.T, content []byte) {
		testkit.Must(t, os.WriteFile(path, content, 0o600))
		k, err := credential.LoadKey(path)
		digits := bytes.TrimSuffix(content, []byte("\n"))
		valid := len(digits) == 64 && len(bytes.Trim(digits, "0123456789abcdefABCDEF")) == 0
		if valid != (err == nil) || err != nil && !errors.Is(err, credential.ErrDamagedKey) {
			t.Errorf("LoadKey of %q = %v; want a key: %v", content, err, valid)
		}
		if err == nil && len(k.Fingerprint()) != 64 {
			t.Errorf("fingerprint %q", k.Fingerprint())
		}
	})
}

// The IDs of a namespace and of a service account differ from that of every credential, whatever a tenant makes.
func TestNamespaceIDIsThatOfNoCredential(t *testing.T) {
	key := credential.NewKey()
	testkit.Equal(t, "ID of no namespace", key.NamespaceID(""), "")
	ids := map[credential.ID]string{credential.ID(key.Fingerprint()): "fingerprint"}
	see := func(what string, id credential.ID) {
		t.Helper()
		if other, known := ids[id]; known {
			t.Errorf("the ID of %s is that of %s", what, other)
		}
		ids[id] = what
	}
	of := func(text string) {
		see("user name "+text, key.ID(credential.New(credential.Login{Username: text})))
		see("token "+text, key.ID(credential.New(credential.Login{RegistryToken: text})))
		see("password "+text, key.ID(credential.New(credential.Login{Password: text})))
		see("auth "+text, key.ID(credential.New(credential.Login{Auth: text})))
	}
	for _, namespace := range []string{"a", "team-a", "team-b"} {
		see("namespace "+namespace, key.NamespaceID(namespace))
		if credential.NewKey().NamespaceID(namespace) == key.NamespaceID(namespace) {
			t.Errorf("the ID of namespace %s is the same under two keys", namespace)
		}
		of("credentials of the runtime for namespace " + namespace)
	}
	for _, a := range [][3]string{
		{"a", "b", "u1"}, {"a", "b", "u2"}, {"a", "c", "u1"}, {"b", "b", "u1"}, {"a", "b.u1", "u1"},
	} {
		see(fmt.Sprint(a), key.AccountID(a[0], a[1], a[2]))
		of("service account " + a[0] + "/" + a[1] + " " + a[2])
		if credential.NewKey().AccountID(a[0], a[1], a[2]) == key.AccountID(a[0], a[1], a[2]) {
			t.Errorf("the ID of %v is the same under two keys", a)
		}
		for i := range a {
			part := a
			part[i] = ""
			testkit.Equal(t, fmt.Sprint("ID of ", part), key.AccountID(part[0], part[1], part[2]), "")
		}
	}
}
