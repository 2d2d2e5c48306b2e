package reviews_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"

	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

const app = "repo.test/app:1"

// 50 pods with one image cost one request, also at the same time. What a pod has beside its image and its annotations
// for backends makes no difference.
func TestFiftyPods(t *testing.T) {
	t.Parallel()
	b := reviewbackend.New(t)
	w := start(t, func(w *world) { w.file(w.policies, "main", b, "defaultAllow: false") }, "", app)
	pods := make([]*criproxytest.Pod, 50)
	for i := range pods {
		pods[i] = w.kubelet.Pod("a")
		pods[i].Config.Annotations["example.test/number"] = fmt.Sprint(i)
	}
	var creations sync.WaitGroup
	for _, p := range pods {
		creations.Go(func() {
			if denial := w.create(p, app); denial != "" {
				t.Error(denial)
			}
		})
	}
	creations.Wait()
	if n := len(b.Requests()); n != 1 {
		t.Errorf("50 pods with one image: %d requests; want 1", n)
	}
}

// A denial that is corrected at the backend takes effect after 30 s, without a change of anything else.
func TestCorrectedDenial(t *testing.T) {
	t.Parallel()
	const lifetime, late = 30 * time.Second, 3 * time.Second
	b := reviewbackend.New(t)
	b.Set(app, reviewbackend.Answer{Deny: true, Reason: "not scanned"})
	w := start(t, func(w *world) { w.file(w.policies, "main", b, "defaultAllow: false") }, "", app)
	p := w.kubelet.Pod("a")
	if denial := w.create(p, app); !strings.Contains(denial, "not scanned") {
		t.Fatalf("%q; want it denied", denial)
	}
	began := time.Now()
	b.Set(app, reviewbackend.Answer{})
	for ; ; time.Sleep(250 * time.Millisecond) {
		denial := w.create(w.kubelet.Pod("a"), app) // each of another pod, as with a controller
		took := time.Since(began)
		if denial == "" {
			t.Logf("corrected after %v", took)
			break
		}
		if took > lifetime+late {
			t.Fatalf("%v after the correction: %s", took, denial)
		}
	}
	if n := len(b.Requests()); n != 2 {
		t.Errorf("%d requests; want 2, all other denials from the cache", n)
	}
}

// While pullgate-policyd has other policy files than pullgated, containers are denied, whatever the files of the
// backends say: it has answered, so that nothing fails open. When they are the same again, it recovers.
func TestOtherPolicies(t *testing.T) {
	t.Parallel()
	b := reviewbackend.New(t)
	b.Set("repo.test/bad:1", reviewbackend.Answer{Deny: true, Reason: "not scanned"})
	other := t.TempDir()
	extra := filepath.Join(other, "extra.yaml")
	w := start(t, func(w *world) {
		for value, fields := range map[string]string{"true": "defaultAllow: true", "false": "defaultAllow: false", "absent": ""} {
			w.file(w.policies, "main-"+value, b, fields, value)
			w.file(other, "main-"+value, b, fields, value)
		}
		restriction := "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: extra}\nspec: {spec: {}}\n"
		w.must(os.WriteFile(extra, []byte(restriction), 0o644))
	}, other, app, "repo.test/bad:1")
	for _, value := range []string{"false", "true", "absent"} {
		denial := w.create(w.kubelet.Pod(value), app)
		if !regexp.MustCompile(`main-` + value + `.*other policy files`).MatchString(denial) {
			t.Errorf("other policy files, defaultAllow %s: %q; want it denied", value, denial)
		}
	}
	if got := w.failedOpen(); got != 0 {
		t.Errorf("pullgate_admission_failed_open_total = %v; want 0", got)
	}
	if n := len(b.Requests()); n != 0 {
		t.Errorf("%d requests with other policy files; want none", n)
	}
	w.must(os.Remove(extra)) // without a signal
	for _, value := range []string{"false", "true", "absent"} {
		if denial := w.create(w.kubelet.Pod(value), app); denial != "" {
			t.Errorf("the same policy files, defaultAllow %s: %s", value, denial)
		}
		if denial := w.create(w.kubelet.Pod(value), "repo.test/bad:1"); !strings.Contains(denial, "not scanned") {
			t.Errorf("the same policy files, defaultAllow %s: %q; want the denial of the backend", value, denial)
		}
	}
}
