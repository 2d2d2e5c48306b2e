package e2e_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

const sentence = "; this node checks pull credentials for each pod; see imagePullSecrets"

// The error of a pull that a registry denied is that of containerd and one sentence, the same for images that are on
// the node and that are not. An error of a registry that did not answer is that of containerd.
func TestDeniedPullEndsWithTheSentence(t *testing.T) {
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

// The error and the time of a denied pull show nothing about what is on the node, nor what the registry has.
func TestDeniedPullsAreAlike(t *testing.T) {
	on(t, func(t runtimeTest) {
		s := begin(t, "imagePullCredentialsVerificationPolicy: AlwaysVerify")
		others, hidden := s.private("alike/others:1", node.Image{}), s.private("alike/hidden:1", node.Image{})
		private := s.private("alike/private:1", node.Image{})
		absent := private
		absent.Repository = "alike/absent"
		absent.Name = strings.Replace(private.Name, private.Repository, absent.Repository, 1)
		s.run(pod("team-a", others, node.IfNotPresent, node.Alice()), others, node.Running, -1)
		owner := pod("team-a", hidden, node.IfNotPresent, node.Alice())
		direct := s.dial(s.node.Containerd.Endpoint())
		s.must(direct.Sandbox(t.Context(), owner))
		if o := direct.Pull(t.Context(), owner); o.State != node.Running {
			t.Fatal(o)
		}

		p := pod("team-b", others, node.IfNotPresent, node.Mallory())
		s.must(s.k.Sandbox(t.Context(), p))
		images, mark := []node.Pushed{others, hidden, private, absent}, s.node.Private.Mark()
		texts, took := map[string]int{}, map[string][]time.Duration{}
		for i := range 200 * len(images) {
			image := images[(i+i/len(images))%len(images)]
			p.Image = image.Name
			began := time.Now()
			o := s.k.EnsureImage(t.Context(), p)
			took[image.Repository] = append(took[image.Repository], time.Since(began))
			texts[strings.ReplaceAll(o.Text, image.Repository, "IMAGE")]++
			if o.State != node.PullFailed || !strings.HasSuffix(o.Text, sentence) {
				t.Fatalf("%s: %v", image.Name, o)
			}
		}
		if len(texts) != 1 {
			t.Errorf("errors that tell images apart, with how many there are: %v", texts)
		}
		host.WantAlike(t, "pull", took)
		asked := len(s.node.Private.Requests(mark, others.Repository))
		for _, image := range images {
			if n := len(s.node.Private.Requests(mark, image.Repository)); n < 200 || n != asked {
				t.Errorf("%d requests for %s; want as many as for %s, %d", n, image.Repository, others.Repository, asked)
			}
		}
		s.must(s.k.Remove(t.Context(), p))
		s.must(direct.Remove(t.Context(), owner))
	}, containerd24)
}
