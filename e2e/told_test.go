package e2e_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/e2e/node"
)

// The error of a pull that a registry denied is that of containerd and one sentence, the same for images that are on
// the node and that are not. An error of a registry that did not answer is that of containerd.
func TestDeniedPullEndsWithTheSentence(t *testing.T) {
	const sentence = "; this node checks pull credentials for each pod; see imagePullSecrets"
	onEach(t, func(t runtimeTest) {
		s := begin(t)
		direct := s.dial(s.node.Containerd.Endpoint())
		present, absent := s.private("told/present:1", node.Image{}), s.private("told/absent:1", node.Image{})
		missing := s.public("told/there:1", node.Image{})
		missing.Name = strings.TrimSuffix(missing.Name, "1") + "missing"
		s.run(pod("team-a", present, node.IfNotPresent, node.Alice()), present, node.Running, -1)
		p := pod("team-b", present, node.IfNotPresent)
		s.must(s.k.Sandbox(t.Context(), p))

		wants := func(what string, image node.Pushed, added string, secrets ...node.Login) {
			t.Helper()
			p.Image, p.Secrets = image.Name, secrets
			got, want := s.k.EnsureImage(t.Context(), p), direct.Pull(t.Context(), p).Text+added
			if got.State == node.Running || got.Text != want {
				t.Errorf("%s: %q\nwant %q", what, got, want)
			}
		}
		wants("another tenant's image, no secret", present, sentence)
		wants("another tenant's image, an invalid secret", present, sentence, node.Mallory())
		wants("absent image, no secret", absent, sentence)
		wants("absent image, an invalid secret", absent, sentence, node.Mallory())
		wants("image that does not exist", missing, sentence)
		for _, code := range []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound} {
			s.node.Private.Answer(code)
			wants(http.StatusText(code), present, sentence)
		}
		for _, code := range []int{http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusBadGateway} {
			s.node.Private.Answer(code)
			wants(http.StatusText(code), present, "")
		}
		s.node.Private.Fault(nil)
		s.must(s.node.Private.Down())
		wants("registry that is down", present, "")
		s.must(s.node.Private.Up())
		s.must(s.k.Remove(t.Context(), p))
	})
}
