package podsource_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2/textlogger"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/policies/restriction"
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
		good.Data[corev1.DockerConfigJsonKey] = []byte(`{"auths":{"repo.test/` + canary + `":{"username":"u","password":"` + canary + `"}}}`)
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
		for _, form := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary)), base64.StdEncoding.EncodeToString(good.Data[corev1.DockerConfigJsonKey])[:80]} {
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
			if got, err := w.byUID(fmt.Sprintf("us%d", i)).Credentials(w.Context(), imageref.New(app)); err != nil || len(got) != 1 {
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

// BenchmarkHeapOf500Pods reports the memory for a node with 500 pods: the final heap, and the maximum. policies is
// small with policies that use every field.
func BenchmarkHeapOf500Pods(b *testing.B) {
	small := func(name, uid string) *corev1.Secret { return secret(name, uid, "repo.test", "other.test") }
	var all []string
	for _, f := range restriction.Fields() {
		all = append(all, f.Path)
	}
	for _, c := range []struct {
		name   string
		like   func(name, uid string) *corev1.Secret
		fields []string
	}{
		{"small", small, nil},
		{"policies", small, all},
		{"1MiB", func(name, uid string) *corev1.Secret { return large(name, uid, 1) }, nil},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				heapOf500Pods(b, c.like, c.fields)
			}
		})
	}
}

// heapOf500Pods has a server that only returns stored bytes, so that only the source is measured.
func heapOf500Pods(b *testing.B, like func(name, uid string) *corev1.Secret, fields []string) {
	b.Helper()
	list, one := answersOf500Pods(like)
	api := newAPIServer()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.Contains(r.URL.Path, "/secrets/"):
			_, _ = w.Write(one)
		case r.URL.Query().Get("watch") == "":
			_, _ = w.Write(list)
		default:
			api.watch(w, r)
		}
	}))
	defer server.Close()
	base := heap()
	most, stays := measure(b, server.URL, fields)
	api.hangUp()
	b.ReportMetric((float64(most)-float64(base))/(1<<20), "MiB-most")
	b.ReportMetric((float64(stays)-float64(base))/(1<<20), "MiB-stays")
}

// answersOf500Pods returns a list of pods, and one Secret that is the answer for every name.
func answersOf500Pods(like func(name, uid string) *corev1.Secret) (list, secret []byte) {
	api := newAPIServer()
	for i := range 500 {
		p := pod(fmt.Sprintf("p%d", i), fmt.Sprintf("u%d", i), app, fmt.Sprintf("s%d", i))
		p.Annotations["kubectl.kubernetes.io/last-applied-configuration"] = strings.Repeat("x", 4000)
		for v := range 6 {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: fmt.Sprintf("volume-%d", v), VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}})
		}
		for range 3 {
			c := corev1.Container{Name: "c", Image: app, ImagePullPolicy: "Always"}
			for e := range 30 {
				c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", e), Value: strings.Repeat("y", 40)})
			}
			for v := range 6 {
				c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: fmt.Sprintf("volume-%d", v), MountPath: fmt.Sprintf("/mnt/%d", v)})
			}
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		api.change("ADDED", p)
	}
	api.put(like("any", "any"))
	stored := func(f func(w http.ResponseWriter)) []byte {
		r := httptest.NewRecorder()
		f(r)
		return r.Body.Bytes()
	}
	return stored(api.list), stored(func(w http.ResponseWriter) { api.secret(w, "team-a/any") })
}

func heap() uint64 {
	runtime.GC()
	runtime.GC() // the content of a pool survives one collection
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// measure runs a source until it has read everything and returns the maximum and the final size of the heap.
func measure(b *testing.B, url string, fields []string) (most, stays uint64) {
	b.Helper()
	s, err := podsource.New(podsource.Options{Kubeconfig: kubeconfig(b, url, nil), NodeName: "node-1", Key: credential.NewKey()})
	if err != nil {
		b.Fatal(err)
	}
	s.KeepFields(fields)
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var m runtime.MemStats
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		runtime.ReadMemStats(&m)
		most = max(most, m.HeapAlloc)
		if _, n := s.Size(); n == 500 && s.Idle() {
			break
		}
	}
	stays = heap()
	cancel()
	if err := <-done; err != nil {
		b.Errorf("Run = %v; want nil", err)
	}
	return most, stays
}
