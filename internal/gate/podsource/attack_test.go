package podsource_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A tenant deletes its pod while a GET of a Secret that does not exist yet is in progress, then creates the Secret and
// the pod again. The late answer to the first GET must not be used as the answer to the second.
func TestLateAnswerDoesNotReplaceANewerOne(t *testing.T) {
	inWorld(t, func(w *world) {
		var gets atomic.Int32
		late := make(chan struct{})
		w.start()
		w.api.refusing(func(r *http.Request) int {
			switch {
			case !strings.Contains(r.URL.Path, "/secrets/"):
			case gets.Add(1) == 1:
				<-late
				return http.StatusNotFound
			default:
				time.Sleep(time.Second)
			}
			return 0
		})
		first := pod("web", "u1", app, "pull")
		w.api.change("ADDED", first)
		synctest.Wait()
		w.api.change("DELETED", first)
		w.api.put(secret("pull", "s2", "repo.test"))
		w.api.change("ADDED", pod("web", "u2", app, "pull"))
		synctest.Wait()
		close(late)
		synctest.Wait()
		w.wantCredentials("u2", app, true, w.cred("pull", "s2", "repo.test"))
	})
}
