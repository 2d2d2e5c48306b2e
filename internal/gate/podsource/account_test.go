package podsource_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// podWith is a pod with a service account.
func podWith(name, uid, account string, secrets ...string) *corev1.Pod {
	p := pod(name, uid, app, secrets...)
	p.Spec.ServiceAccountName = account
	return p
}

func (w *world) account(name, uid string) tracker.Secret {
	w.Helper()
	s, ok := tracker.OfAccount(w.key, "team-a", name, uid)
	if !ok {
		w.Fatalf("%s %s is not an account", name, uid)
	}
	return s
}

func (w *world) accountRequests() int { return w.api.requests("/serviceaccounts/builder") }

func TestAccountComesBeforeThePullSecrets(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.put(secret("pull", "s1", "repo.test"))
		w.api.account("team-a/builder", "u-1")
		w.api.change("ADDED", podWith("web", "p1", "builder", "pull"))
		w.api.change("ADDED", podWith("none", "p2", "absent", "pull"))
		w.api.change("ADDED", pod("old", "p3", app, "pull"))
		w.start()
		cred := w.cred("pull", "s1", "repo.test")
		w.wantCredentials("p1", app, true, cred)
		if n := w.accountRequests(); n != 0 {
			t.Errorf("%d requests for an account that is not needed", n)
		}
		w.accounts.Store(true)
		w.wantCredentials("p1", app, true, w.account("builder", "u-1"), cred)
		w.wantCredentials("p1", "busybox", true, w.account("builder", "u-1"))
		w.wantCredentials("p2", app, true, cred)
		w.wantCredentials("p3", app, true, cred)
		if n := w.accountRequests(); n != 1 {
			t.Errorf("%d requests for one account; want 1", n)
		}
		if n := w.failed(podsource.Missing); n == 0 {
			t.Error("the absent account is not counted")
		}
		w.api.change("DELETED", podWith("web", "p1", "builder", "pull"))
		w.api.change("DELETED", podWith("none", "p2", "absent", "pull"))
		w.api.change("DELETED", pod("old", "p3", app, "pull"))
		w.pass(time.Minute)
		if _, n := w.source.Size(); n != 0 {
			t.Errorf("%d Secrets and accounts are kept without pods", n)
		}
	})
}

// A pod that arrives may be of a recreated account: what was read before counts for no pod until it is read again.
func TestRecreatedAccountIsReadAgainForANewPod(t *testing.T) {
	inWorld(t, func(w *world) {
		w.accounts.Store(true)
		w.api.account("team-a/builder", "u-1")
		w.api.change("ADDED", podWith("web", "p1", "builder"))
		w.start()
		w.wantCredentials("p1", app, true, w.account("builder", "u-1"))
		w.api.account("team-a/builder", "u-2")
		w.wantCredentials("p1", app, true, w.account("builder", "u-1")) // for up to ten seconds, for pods from before
		w.pass(11 * time.Second)
		w.wantCredentials("p1", app, true, w.account("builder", "u-2"))

		w.api.account("team-a/builder", "u-3")
		w.api.change("ADDED", podWith("new", "p2", "builder"))
		w.pass(0)
		w.wantCredentials("p2", app, true, w.account("builder", "u-3"))

		w.api.account("team-a/builder", "u-4")
		w.api.refusing(func(r *http.Request) int {
			if strings.Contains(r.URL.Path, "/serviceaccounts/") {
				return 503
			}
			return 0
		})
		w.api.change("ADDED", podWith("newer", "p3", "builder"))
		w.pass(0)
		for _, uid := range []string{"p3", "p2"} {
			w.wantCredentials(uid, app, true)
		}
		w.pass(time.Minute)
		w.wantCredentials("p3", app, true)
		w.api.refusing(func(*http.Request) int { return 0 })
		w.pass(time.Minute)
		w.wantCredentials("p3", app, true, w.account("builder", "u-4"))

		w.api.account("team-a/builder", "")
		w.pass(11 * time.Second)
		w.wantCredentials("p3", app, true)
	})
}

// An identity without the permission, such as a kubelet's at an API server before 1.33, knows no account.
func TestAccountThatMayNotBeReadIsNotKnown(t *testing.T) {
	inWorld(t, func(w *world) {
		w.accounts.Store(true)
		w.api.put(secret("pull", "s1", "repo.test"))
		w.api.account("team-a/builder", "u-1")
		w.api.refusing(func(r *http.Request) int {
			if strings.Contains(r.URL.Path, "/serviceaccounts/") {
				return 403
			}
			return 0
		})
		w.api.change("ADDED", podWith("web", "p1", "builder", "pull"))
		w.start()
		for range 3 {
			w.wantCredentials("p1", app, true, w.cred("pull", "s1", "repo.test"))
			w.pass(time.Minute)
		}
		if w.failed(podsource.Forbidden) == 0 {
			t.Error("the refusal is not counted")
		}
		if n := w.accountRequests(); n > 20 {
			t.Errorf("%d requests in three minutes; want a back-off", n)
		}
		began := time.Now()
		for i := range 40 {
			w.api.change("ADDED", podWith(fmt.Sprint("web-", i), fmt.Sprint("new-", i), fmt.Sprint("builder-", i), "pull"))
			w.pass(0)
			w.wantCredentials(fmt.Sprint("new-", i), app, true, w.cred("pull", "s1", "repo.test"))
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("pods of 40 accounts that may not be read waited %v; want no wait", took)
		}
	})
}

// A tenant can name a pull secret like an account.
func TestSecretNamedLikeAnAccountIsNone(t *testing.T) {
	inWorld(t, func(w *world) {
		w.accounts.Store(true)
		w.api.account("team-a/builder", "u-1")
		w.api.put(secret("builder", "s1", "repo.test"))
		w.api.change("ADDED", pod("web", "p1", app, "serviceaccount/builder", "builder"))
		w.start()
		w.wantCredentials("p1", app, false, w.cred("builder", "s1", "repo.test"))
		if n := w.accountRequests(); n != 0 {
			t.Errorf("%d requests for an account", n)
		}
	})
}
