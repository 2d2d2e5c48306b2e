package e2e_test

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/node"
)

// containerd resolves a prefix of an image ID. Through pullgated none resolves, and the answer is always the same.
func TestNamesThatAreImageIDs(t *testing.T) {
	onEach(t, func(t runtimeTest) {
		s := begin(t)
		direct := s.dial(s.node.Containerd.Endpoint())

		// Two images whose IDs begin with the same digit, so that a prefix can be ambiguous.
		byDigit := map[byte]*node.Built{}
		var first, second *node.Built
		for i := 0; second == nil; i++ {
			b := testkit.Value(node.Image{Content: fmt.Sprintf("%s %d", t.Name(), i)}.Build())(s)
			digit := b.ID[len("sha256:")]
			if first = byDigit[digit]; first != nil {
				second = b
			}
			byDigit[digit] = b
		}
		for i, b := range []*node.Built{first, second} {
			archive := filepath.Join(t.TempDir(), "image.tar")
			s.must(b.Archive(archive, fmt.Sprintf("imported.test/id/app%d:1", i)))
			s.must(s.node.Containerd.Import(t.Context(), archive))
		}
		listed := testkit.Value(direct.Images.ListImages(t.Context(), nil))(s)
		unique, ambiguous, nothing := prefixes(listed)
		if is, err := direct.HasImage(t.Context(), unique); err != nil || !is {
			t.Fatalf("control: containerd resolves %s to an image: %v, %v; want one", unique, is, err)
		}
		if _, err := direct.HasImage(t.Context(), ambiguous); err == nil {
			t.Fatalf("control: containerd resolves %s without an error; want it ambiguous", ambiguous)
		}

		full := listed[0].GetId()
		for _, name := range []string{unique, ambiguous, nothing, full, strings.TrimPrefix(full, "sha256:")} {
			for _, policy := range []string{node.Never, node.IfNotPresent} {
				p := &node.Pod{Namespace: "team-b", Name: "pod", Image: name, Policy: policy}
				s.must(s.k.Sandbox(t.Context(), p))
				id, err := s.k.Precheck(t.Context(), p)
				if id != "" || err != nil {
					t.Errorf("pre-check of %s = %q, %v; want the empty answer", name, id, err)
				}
				want := node.NeverPulled
				if policy == node.IfNotPresent {
					want = node.PullFailed
				}
				if o := s.k.Start(t.Context(), p); o.State != want {
					t.Errorf("%s of %s = %v; want %s", policy, name, o, want)
				}
				// Past the pre-check, as if its answer had been another.
				o := s.k.Create(t.Context(), p, node.Outcome{ImageID: full})
				if !strings.Contains(o.Text, "PermissionDenied") && o.State != node.InspectFailed {
					t.Errorf("container on %s = %v; want PermissionDenied", name, o)
				}
				s.must(s.k.Remove(t.Context(), p))
			}
		}
		// An image in the call itself. containerd 1.6 has another answer for each of them.
		app := s.private("id/app:1", node.Image{})
		s.run(pod("team-a", app, node.IfNotPresent, node.Alice()), app, node.Running, -1)
		stranger := pod("team-b", app, node.Never)
		s.must(s.k.Sandbox(t.Context(), stranger))
		present := s.k.Create(t.Context(), stranger, node.Outcome{ImageID: app.ID}).Text
		for _, id := range []string{"sha256:" + strings.Repeat("0", 64), ambiguous, nothing, app.ID[:20]} {
			o := s.k.Create(t.Context(), stranger, node.Outcome{ImageID: id})
			if o.State != node.CreateFailed || !strings.Contains(o.Text, "PermissionDenied") || o.Text != present {
				t.Errorf("container on the image %s = %v; want it denied as on one that is present: %s", id, o, present)
			}
		}
		s.must(s.k.Remove(t.Context(), stranger))
	})
}

func prefixes(images []*runtimeapi.Image) (unique, ambiguous, nothing string) {
	count := map[string]int{}
	for _, i := range images {
		for n := 1; n <= 12; n++ {
			count[i.GetId()[:len("sha256:")+n]]++
		}
	}
	for p, n := range count {
		if n == 1 && (unique == "" || len(p) < len(unique)) {
			unique = p
		}
		if n > 1 {
			ambiguous = p
		}
	}
	for _, p := range []string{"sha256:0000000", "sha256:1111111", "sha256:2222222"} {
		if count[p] == 0 {
			nothing = p
		}
	}
	return unique, ambiguous, nothing
}
