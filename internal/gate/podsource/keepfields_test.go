package podsource_test

import (
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
)

// Policies can use other fields while the source runs. It lists the pods again, and knows them all the time.
func TestFieldsThatChangeAreReadAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		p := pod("web", "u1", app)
		p.Spec.RestartPolicy, p.Spec.DNSPolicy = "Always", "Default"
		w.api.change("ADDED", p)
		w.source.KeepFields([]string{"spec.spec.restartPolicy"})
		w.start()
		view := func() admission.Pod {
			view, _, ok := w.source.View(w.Context(), "u1")
			if !ok {
				w.Fatal("the pod has no view")
			}
			return view
		}
		if v := view(); v.RestartPolicy != admission.Set("Always") || v.DNSPolicy.State() != admission.StateUnknown {
			w.Errorf("view %+v; want the restart policy alone", v)
		}
		w.source.KeepFields([]string{"spec.spec.dnsPolicy"})
		if v := view(); v.DNSPolicy.State() != admission.StateUnknown {
			w.Errorf("view %+v before the pods are listed again; want no DNS policy", v)
		}
		w.pass(100 * time.Millisecond)
		if v := view(); v.DNSPolicy != admission.Set("Default") || v.RestartPolicy.State() != admission.StateUnknown {
			w.Errorf("view %+v; want the DNS policy alone", v)
		}
		if !w.source.Synced() {
			w.Error("the source is not synced")
		}
		w.source.KeepFields(nil)
		w.pass(100 * time.Millisecond)
		if _, _, ok := w.source.View(w.Context(), "u1"); ok {
			w.Error("the view is kept without policies")
		}
	})
}
