package podsource_test

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/pkg/imageref"
)

func TestPodsMatchesByPresentAnnotationsAndImage(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, p := range []*corev1.Pod{
			pod("a", "u1", app), pod("b", "u2", app), pod("c", "u3", app),
			pod("d", "u4", "repo.test/other"), pod("m", "u5", app), pod("n", "u6", app),
		} {
			p.Annotations = map[string]string{"k": "v", "config.kubernetes.io/x": ""}
			switch p.Name {
			case "b": // a tenant that sets the kubelet's annotations
				p.Annotations[podindex.SeenAnnotation], p.Annotations[podindex.SourceAnnotation] = "x", "file"
			case "c":
				p.Annotations["k"] = "w"
			case "m":
				p.Annotations[corev1.MirrorPodAnnotationKey] = "hash"
			case "n":
				p.Annotations = nil
			}
			w.api.change("ADDED", p)
		}
		w.start()
		if found, _ := w.source.Candidates(nil, imageref.New(app)); len(found) != 5 {
			t.Errorf("Candidates = %v at the start; want all five: what they had before is not known", found)
		}
		w.pass(time.Minute)
		asks := func(extra ...string) map[string]string {
			m := map[string]string{
				"k": "v", "config.kubernetes.io/x": "", podindex.SeenAnnotation: "2026-01-01T00:00:00.1Z",
				podindex.SourceAnnotation: "api",
			}
			for i := 0; i < len(extra); i += 2 {
				m[extra[i]] = extra[i+1]
			}
			return m
		}
		for name, tc := range map[string]struct {
			annotations map[string]string
			image       string
			want        []string
		}{
			"equal":                    {asks(), app, []string{"u1", "u2"}},
			"as the kubelet sends it":  {asks(), "repo.test/other:latest", []string{"u4"}},
			"one more":                 {asks("new", ""), app, []string{}},
			"another value":            {asks("k", "w"), app, []string{"u3"}},
			"another image":            {asks(), "repo.test/team/app:v2", []string{}},
			"a hash is a tenant's own": {asks("kubernetes.io/config.hash", "h"), app, []string{}},
			"none": {
				map[string]string{podindex.SeenAnnotation: "x", podindex.SourceAnnotation: "api"}, app, []string{"u6"},
			},
			"moved between key, value": {map[string]string{"k": "vconfig.kubernetes.io/x"}, app, []string{}},
		} {
			found, ok := w.source.Candidates(tc.annotations, imageref.New(tc.image))
			if !slices.Equal(found, tc.want) || !ok {
				t.Errorf("%s: %q, ok %v; want %q", name, found, ok, tc.want)
			}
		}
		if _, ok := w.source.ByUID("u5"); ok {
			t.Error("a mirror pod is known; no kubelet runs it")
		}
		if found, ok := w.source.Candidates(asks(), imageref.New("no image")); ok || found != nil {
			t.Errorf("Pods of no image = %v, %v; want nothing known", found, ok)
		}
		// A tenant edits its pod so that it equals another one: from then on both are found.
		p := pod("c", "u3", app)
		p.Annotations = map[string]string{"k": "v", "config.kubernetes.io/x": ""}
		w.api.change("MODIFIED", p)
		w.pass(0)
		if found, _ := w.source.Candidates(asks(), imageref.New(app)); len(found) != 3 {
			t.Errorf("Candidates = %v after a third became equal; want three", found)
		}
		// Its kubelet may not have the change yet, so this pod may be the one that asks.
		if found, _ := w.source.Candidates(asks("k", "w"), imageref.New(app)); !slices.Equal(found, []string{"u3"}) {
			t.Errorf("Candidates = %v of what it had before; want it", found)
		}
		w.pass(time.Minute)
		if found, _ := w.source.Candidates(asks("k", "w"), imageref.New(app)); len(found) != 0 {
			t.Errorf("Candidates = %v of what it had a minute ago; want none", found)
		}
		// The same for its image.
		p.Spec.Containers[0].Image = "repo.test/next"
		w.api.change("MODIFIED", p)
		w.pass(0)
		if found, _ := w.source.Candidates(asks(), imageref.New(app)); len(found) != 3 {
			t.Errorf("Candidates = %v of the image that it had before; want it too", found)
		}
		// A pod that is new to the node had no other state before.
		w.api.change("ADDED", pod("new", "u7", "repo.test/new"))
		w.pass(0)
		if found, _ := w.source.Candidates(asks("k", "w"), imageref.New(app)); !slices.Equal(found, []string{"u3"}) {
			t.Errorf("Candidates = %v; want none that is new and uses another image", found)
		}
	})
}

func TestAwaitWaitsForAPodThatTheKubeletKnowsFirst(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start()
		began := time.Now()
		if _, ok := w.source.Await(w.Context(), "u1"); ok || time.Since(began) != time.Second {
			t.Errorf("a pod that never comes is known: %v, after %v; want false after a second", ok, time.Since(began))
		}
		time.AfterFunc(time.Second/2, func() { w.api.change("ADDED", pod("web", "u1", app)) })
		if p, ok := w.source.Await(w.Context(), "u1"); !ok || p.Name != "web" {
			t.Errorf("Await = %v, %v; want the pod that came", p.Name, ok)
		}
		began = time.Now()
		if _, ok := w.source.Await(w.Context(), "u1"); !ok || time.Since(began) != 0 {
			t.Errorf("a pod that is known: %v after %v; want true at once", ok, time.Since(began))
		}
	})
}
