package podsource_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
)

const canary = "cAnary-Of-The-Mine"

// locked is a buffer for several goroutines.
type locked struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *locked) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// client-go would log every answer at this verbosity.
func TestNothingOfASecretIsLogged(t *testing.T) {
	inWorld(t, func(w *world) {
		out := &locked{}
		good, bad := secret("good", "s1"), secret("bad", "s2")
		good.Data[corev1.DockerConfigJsonKey] = []byte(`{"auths":{"repo.test/` + canary + `":{"username":"u","password":"` +
			canary + `"}}}`)
		bad.Data[corev1.DockerConfigJsonKey] = []byte(`{"auths":{"repo.test":{"password":["` + canary + `"]}}}`)
		w.api.put(good)
		w.api.put(bad)
		w.api.change("ADDED", pod("web", "u1", app, "good", "bad", "none", "broken"))
		w.log = textlogger.NewLogger(textlogger.NewConfig(textlogger.Verbosity(10), textlogger.Output(out)))
		w.api.broken = `{"kind":"Secret","apiVersion":"v1","data":["` + canary + `"]` + canary
		w.start()
		w.pass(time.Minute)
		_, _ = w.byUID("u1").Credentials(w.Context(), imageref.New(app))
		text := out.String()
		for _, form := range []string{
			canary, base64.StdEncoding.EncodeToString([]byte(canary)),
			base64.StdEncoding.EncodeToString(good.Data[corev1.DockerConfigJsonKey])[:80],
		} {
			if strings.Contains(text, form) {
				t.Errorf("the log shows %s:\n%s", form, text)
			}
		}
		if !strings.Contains(text, "Skipping a pull secret") || !strings.Contains(text, "Pull secret missing") {
			t.Errorf("the log does not describe the errors of the Secrets:\n%s", text)
		}
		if n := strings.Count(text, "Skipping a pull secret"); n != 1 {
			t.Errorf("a malformed Secret is logged %d times; want once", n)
		}
	})
}

func TestAMalformedSecretIsLoggedOnceForEachOfItsVersions(t *testing.T) {
	inWorld(t, func(w *world) {
		out := &locked{}
		w.log = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(out)))
		bad := secret("bad", "s1")
		bad.Data[corev1.DockerConfigJsonKey] = []byte(`{`)
		w.api.put(bad)
		w.api.change("ADDED", pod("web", "u1", app, "bad"))
		w.start()
		for range 3 {
			w.pass(time.Minute)
			w.wantCredentials("u1", app, false)
		}
		w.api.put(bad)
		w.pass(time.Minute)
		w.wantCredentials("u1", app, false)
		w.pass(0)
		if n := strings.Count(out.String(), "Skipping a pull secret"); n != 2 {
			t.Errorf("logged %d times; want 2, there were two versions:\n%s", n, out.String())
		}
		if n := w.failed(podsource.Malformed); n != 5 {
			t.Errorf("counted %d times; want 5, as often as it was read", n)
		}
	})
}

// smallerBy is the factor by which some tests reduce the bound of the stored Secrets, and the size of large Secrets:
// reading megabytes of them repeatedly takes minutes under the race detector.
const smallerBy = 64

// large is a pull secret of about a megabyte with the maximum number of entries, made smaller by a factor.
func large(name, uid string, by int) *corev1.Secret {
	var b bytes.Buffer
	b.WriteString(`{"auths":{"repo.test":{"auth":"dTpw"}`)
	pad := strings.Repeat("x", 200)
	for i := range credential.MaxEntries/by - 1 {
		fmt.Fprintf(&b, `,"r%d.test/%s/%s":{"auth":"dTpw"}`, i, name, pad)
	}
	b.WriteString(`}}`)
	s := secret(name, uid)
	s.Data[corev1.DockerConfigJsonKey] = b.Bytes()
	return s
}

func TestSecretsTogetherAreBounded(t *testing.T) {
	inWorld(t, func(w *world) {
		const n = 10
		by := 1
		if testkit.Raced || testing.Short() {
			by = smallerBy
		}
		most := podsource.MaxHeld / by
		w.source.HoldAtMost(most)
		for i := range n {
			name := fmt.Sprintf("s%d", i)
			w.api.put(large(name, name, by))
			w.api.change("ADDED", pod("p"+name, "u"+name, app, name))
		}
		w.start()
		if bytes, secrets := w.source.Size(); bytes > most || bytes < most/2 || secrets != n {
			t.Errorf("%d Secrets take %d bytes; want %d, of at most %d", secrets, bytes, n, most)
		}
		// An evicted Secret is read again when it is needed.
		for i := range n {
			if got, err := w.byUID(fmt.Sprintf("us%d", i)).Credentials(w.Context(), imageref.New(app)); err != nil ||
				len(got) != 1 {
				t.Errorf("pod %d: %d credentials, %v; want 1, nil", i, len(got), err)
			}
		}
		if bytes, _ := w.source.Size(); bytes > most {
			t.Errorf("Secrets take %d bytes; want at most %d", bytes, most)
		}
	})
}

// To be run under the race detector.
func TestSourceIsSafeForConcurrentUse(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start()
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for i := range 50 {
					name := fmt.Sprintf("%d-%d", g, i%5)
					w.api.put(secret("s"+name, fmt.Sprint(i), "repo.test"))
					w.api.change("ADDED", pod(name, fmt.Sprintf("u%s-%d", name, i), app, "s"+name, "shared"))
					found, _ := w.source.Candidates(map[string]string{"app": name}, imageref.New(app))
					for _, uid := range found {
						_, _ = w.source.Secrets(w.Context(), uid, imageref.New(app))
					}
					if rand.N(3) == 0 {
						w.api.change("DELETED", pod(name, "", app))
					}
				}
			})
		}
		wg.Wait()
		for g := range 4 {
			for i := range 5 {
				w.api.change("DELETED", pod(fmt.Sprintf("%d-%d", g, i), "", app))
			}
		}
		w.pass(time.Minute)
		if bytes, n := w.source.Size(); bytes != 0 || n != 0 {
			t.Errorf("%d Secrets of %d bytes are left of pods that are gone; want none", n, bytes)
		}
	})
}
