package nodecreds_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/gate/nodecreds"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	app    = "repo.test/team/app"
	canary = "cAnary-Of-The-Mine"
)

// config is a docker configuration with one user.
func config(registry, password string) string {
	return fmt.Sprintf(`{"auths":{%q:{"username":"u","password":%q}}}`, registry, password)
}

func put(tb testing.TB, path, content string) {
	tb.Helper()
	testkit.Must(tb, os.WriteFile(path+".new", []byte(content), 0o600), os.Rename(path+".new", path)) // a reader may run
}

// node is credentials that are kept up to date in a bubble, with their log.
type node struct {
	*testing.T
	path  string // of the file that survives a restart
	creds *nodecreds.Credentials
	key   credential.Key
	log   bytes.Buffer
}

func inNode(t *testing.T, files []string, f func(n *node)) {
	t.Helper()
	inNodeWith(t, filepath.Join(t.TempDir(), "saved.json"), credential.NewKey(), files, f)
}

// inNodeWith is inNode for a node that has run before.
func inNodeWith(t *testing.T, path string, key credential.Key, files []string, f func(n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &node{T: t, path: path, key: key}
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(),
			textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(10), textlogger.Output(&n.log)))))
		n.creds = nodecreds.New(ctx, n.path, files, n.key)
		done := make(chan error, 1)
		go func() { done <- n.creds.Run(ctx) }()
		f(n)
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v; want nil", err)
		}
		if strings.Contains(n.log.String(), canary) || strings.Contains(n.log.String(),
			base64.StdEncoding.EncodeToString([]byte(canary))) {
			t.Errorf("the log shows what is in the file:\n%s", n.log.String())
		}
	})
}

// later waits until a change is seen.
func (n *node) later() {
	time.Sleep(4 * time.Second) // in the bubble: the clock moves when all goroutines are blocked
	synctest.Wait()
}

func (n *node) want(repository, password string, want bool) {
	n.Helper()
	if got := n.creds.Offers(repository, n.id(password)); got != want {
		n.Errorf("Offers(%s, the ID of %q) = %v; want %v", repository, password, got, want)
	}
}

func (n *node) id(password string) credential.ID {
	return n.key.ID(credential.New(credential.Login{Username: "u", Password: password}))
}

func (n *node) logged(what string, times int) {
	n.Helper()
	if got := strings.Count(n.log.String(), what); got != times {
		n.Errorf("%q is logged %d times; want %d:\n%s", what, got, times, n.log.String())
	}
}

func TestOffersTheCredentialsOfTheFiles(t *testing.T) {
	dir := t.TempDir()
	one, two, old := filepath.Join(dir, "config.json"), filepath.Join(dir, "two.json"), filepath.Join(dir, ".dockercfg")
	put(t, one, config("repo.test", "a"))
	put(t, two, config("*.test/team", "b"))
	put(t, old, `{"https://index.docker.io/v1/":{"username":"u","password":"c"}}`)
	inNode(t, []string{one, filepath.Join(dir, "absent"), two, old}, func(n *node) {
		n.want(app, "a", true)
		n.want(app, "b", true)
		n.want(app, "c", false)
		n.want("repo.test/other", "b", false)
		n.want("other.test/app", "a", false)
		n.want("docker.io/library/busybox", "c", true)
		if n.creds.Offers(app, "") {
			t.Error("an anonymous credential is offered")
		}
		n.logged("Node credentials absent", 1)
		n.later()
		n.logged("Node credentials absent", 1)
		n.logged("Node credentials read", 3)
	})
}

func TestCredentialsOfARemovedFileAreDropped(t *testing.T) {
	for name, change := range map[string]func(n *node, path string){
		"removed":         func(n *node, path string) { testkit.Must(n, os.Remove(path)) },
		"emptied":         func(n *node, path string) { put(n, path, "") },
		"cut off":         func(n *node, path string) { put(n, path, config("repo.test", canary)[:50]) },
		"malformed":       func(n *node, path string) { put(n, path, `{"auths":{"repo.test":{"auth":"`+canary+`"}}}`) },
		"too large":       func(n *node, path string) { put(n, path, strings.Repeat(" ", 2<<20)) },
		"without entries": func(n *node, path string) { put(n, path, "{}") },
		"a directory":     func(n *node, path string) { testkit.Must(n, os.Remove(path), os.Mkdir(path, 0o700)) },
		"a named pipe":    func(n *node, path string) { testkit.Must(n, os.Remove(path), syscall.Mkfifo(path, 0o600)) },
		"a loop":          func(n *node, path string) { testkit.Must(n, os.Remove(path), os.Symlink(path, path)) },
		"below a file": func(n *node, path string) {
			testkit.Must(n, os.RemoveAll(filepath.Dir(path)))
			put(n, filepath.Dir(path), "")
		},
		"of another secret": func(n *node, path string) { put(n, path, config("repo.test", "b")) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "dir", "config.json")
			testkit.Must(t, os.Mkdir(filepath.Dir(path), 0o700))
			put(t, path, config("repo.test", "a"))
			inNode(t, []string{path}, func(n *node) {
				n.want(app, "a", true)
				change(n, path)
				n.later()
				n.want(app, "a", false)
				n.want(app, "b", name == "of another secret")
				before := n.log.Len()
				n.later()
				if n.log.Len() != before {
					t.Errorf("logged more than once:\n%s", n.log.String())
				}
				testkit.Must(t, os.RemoveAll(filepath.Dir(path)), os.Mkdir(filepath.Dir(path), 0o700))
				put(t, path, config("repo.test", "a"))
				n.later()
				n.want(app, "a", true)
			})
		})
	}
}

func TestReplacementsAreSeen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "config.json")
	put(t, path, config("repo.test", "a"))
	inNode(t, []string{path}, func(n *node) {
		// By a rename, with the same size and time.
		info, err := os.Stat(path)
		testkit.Must(t, err)
		put(t, path+".new", config("repo.test", "b"))
		testkit.Must(t, os.Chtimes(path+".new", info.ModTime(), info.ModTime()), os.Rename(path+".new", path))
		n.later()
		n.want(app, "a", false)
		n.want(app, "b", true)
		// In place, with the same size and time.
		put(t, path, config("repo.test", "c"))
		testkit.Must(t, os.Chtimes(path, info.ModTime(), info.ModTime()))
		n.later()
		n.want(app, "b", false)
		n.want(app, "c", true)
	})
	// Like a Secret mounted by Kubernetes: the file is a link into a folder that is a link.
	testkit.Must(t, os.Remove(path), os.Mkdir(filepath.Join(dir, "v1"), 0o700), os.Mkdir(filepath.Join(dir, "v2"), 0o700),
		os.Symlink("v1", filepath.Join(dir, "..data")), os.Symlink("..data/config.json", path))
	put(t, filepath.Join(dir, "v1", "config.json"), config("repo.test", "a"))
	put(t, filepath.Join(dir, "v2", "config.json"), config("repo.test", "b"))
	inNode(t, []string{path}, func(n *node) {
		n.want(app, "a", true)
		testkit.Must(t, os.Symlink("v2", filepath.Join(dir, "..tmp")),
			os.Rename(filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data")))
		n.later()
		n.want(app, "a", false)
		n.want(app, "b", true)
	})
}

func TestReportsOfAProviderEnd(t *testing.T) {
	inNode(t, nil, func(n *node) {
		n.add([]string{"*.test/team", "other.test"}, n.id("a"), time.Now().Add(time.Hour))
		n.add([]string{"repo.test"}, n.id("b"), time.Now())
		n.add([]string{"repo.test"}, n.id("c"), time.Time{})
		n.add(nil, n.id("d"), time.Now().Add(time.Hour))
		n.add([]string{"%zz"}, n.id("d"), time.Now().Add(time.Hour))
		n.add([]string{"repo.test"}, "", time.Now().Add(time.Hour))
		n.want(app, "a", true)
		n.want("other.test/x", "a", true)
		n.want("repo.test/x", "a", false)
		n.want(app, "b", false)
		n.want(app, "c", false)
		n.want(app, "d", false)
		time.Sleep(time.Hour - time.Second)
		n.want(app, "a", true)
		n.add([]string{"other.test", "*.test/team", "other.test"}, n.id("a"), time.Now().Add(time.Minute))
		n.add([]string{"*.test/team", "other.test"}, n.id("a"), time.Now().Add(time.Second))
		time.Sleep(time.Minute - time.Second)
		n.want(app, "a", true)
		time.Sleep(time.Second)
		n.want(app, "a", false)
	})
}

func TestAddReportsNews(t *testing.T) {
	inNode(t, nil, func(n *node) {
		hour := func() time.Time { return time.Now().Add(time.Hour) }
		n.news(n.add([]string{"a.test", "b.test"}, n.id("a"), hour()), true)
		n.news(n.add([]string{"b.test", "a.test"}, n.id("a"), hour()), false)
		n.news(n.add([]string{"a.test"}, n.id("a"), hour()), true)
		n.news(n.add([]string{"a.test", "b.test"}, n.id("b"), hour()), true)
		n.news(n.add([]string{"a.test"}, n.id("c"), time.Now()), false)
		n.news(n.add(nil, n.id("c"), hour()), false)
		n.news(n.add([]string{"a.test"}, "", hour()), false)
		time.Sleep(time.Hour)
		n.news(n.add([]string{"a.test"}, n.id("a"), hour()), true)
	})
}

func (n *node) add(patterns []string, id credential.ID, expiry time.Time) bool {
	n.Helper()
	return testkit.Value(n.creds.Add(patterns, id, expiry))(n)
}

func (n *node) news(got, want bool) {
	n.Helper()
	if got != want {
		n.Errorf("Add = %v; want %v", got, want)
	}
}

func TestReportsAreBounded(t *testing.T) {
	inNode(t, nil, func(n *node) {
		for i := range 3000 {
			n.add([]string{"repo.test"}, n.id(fmt.Sprint(i)), time.Now().Add(time.Hour+time.Duration(i)*time.Second))
		}
		kept := 0
		for i := range 3000 {
			if n.creds.Offers(app, n.id(fmt.Sprint(i))) {
				kept++
			}
		}
		if kept != 1000 {
			t.Errorf("%d reports are kept; want 1000", kept)
		}
		n.want(app, "2999", true)
		n.want(app, "1999", false)
		many := make([]string, 100000)
		for i := range many {
			many[i] = fmt.Sprintf("r%06d.test", i)
		}
		n.add(many, n.id("many"), time.Now().Add(24*time.Hour))
		n.want("r000000.test/x", "many", true)
		n.want("r099999.test/x", "many", false)
	})
}

// To be run under the race detector.
func TestCredentialsAreSafeForConcurrentUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	inNode(t, []string{path}, func(n *node) {
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := range 50 {
					n.add([]string{"repo.test"}, n.id(fmt.Sprint(g, i)), time.Now().Add(time.Hour))
					n.creds.Offers(app, n.id("a"))
					if g == 0 {
						put(t, path, config("repo.test", fmt.Sprint(i)))
					}
					time.Sleep(time.Second)
				}
			})
		}
		wg.Wait()
		n.later()
		n.want(app, "49", true)
		n.want(app, "48", false)
	})
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
