package podsource_test

import (
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/tracker"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Shows: 001-38
func TestTheRightsOfAKubeletAreEnough(t *testing.T) {
	t.Parallel()
	onEach(t, func(w *world) {
		own := w.secret("own", "own")
		w.secret("others", "others")
		before := w.pod("before", "own")
		elsewhere := w.create(pod(w.name, "elsewhere", "elsewhere", "others"))
		w.start()
		w.learns(before, own)

		// The authorizer allows the Secrets of a pod shortly after its creation, and the source reads them then.
		second := w.secret("second", "second")
		w.learns(w.pod("after", "second", "own"), second, own)
		if _, known := w.source.ByUID(elsewhere); known {
			w.Error("the pod of another node is known")
		}

		// Without these the test would show nothing.
		api := w.asNode().CoreV1()
		testkit.Value(api.Secrets(w.name).Get(w.Context(), "own", metav1.GetOptions{}))(w)
		_, err := api.Secrets(w.name).Get(w.Context(), "others", metav1.GetOptions{})
		w.forbidden("get of a Secret that pods of another node name", err)
		_, err = api.Secrets("").List(w.Context(), metav1.ListOptions{})
		w.forbidden("list of all Secrets", err)
		_, err = api.Secrets(w.name).List(w.Context(), metav1.ListOptions{})
		w.forbidden("list of the Secrets of a namespace", err)
		if w.cluster.Release() != kubernetes130 {
			_, err = api.Pods("").List(w.Context(), metav1.ListOptions{FieldSelector: "spec.nodeName=elsewhere"})
			w.forbidden("list of another node's pods", err)
			_, err = api.Pods("").List(w.Context(), metav1.ListOptions{})
			w.forbidden("list of all pods", err)
		}
	})
}

func (w *world) forbidden(what string, err error) {
	w.Helper()
	if !apierrors.IsForbidden(err) {
		w.Errorf("%s = %v; want forbidden", what, err)
	}
}

func TestSecretsOfPodsThatComeTogetherAreAllRead(t *testing.T) {
	t.Parallel()
	w := begin(t, kubernetes137)
	w.start()
	w.until("synced", w.source.Synced)
	pods := map[string]tracker.Secret{}
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		c := w.secret(name, name)
		pods[w.pod(name, name)] = c // at once: the authorizer does not know of it yet
	}
	for uid, c := range pods {
		w.learns(uid, c)
	}
}
