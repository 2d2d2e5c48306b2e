package gate_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// A keeper stores decisions as text.
type keeper struct {
	mu  sync.Mutex
	all []decisionlog.Decision
}

// kept returns a configuration with a keeper of its decisions.
func kept(c gate.Config) (*keeper, gate.Config) {
	k := &keeper{}
	c.Decisions = k
	return k, c
}

func (k *keeper) Record(d decisionlog.Decision) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.all = append(k.all, d)
}

// since returns the decisions since the last call: call, pod, verdict, reason, outcome, pull policy, and the Secret
// that holds the credential.
func (k *keeper) since() (said []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, d := range k.all {
		line := fmt.Sprintf("%s %s: %s %s %s %s", d.Call, d.Pod.Namespace, d.Verdict.Verdict.String(), d.Verdict.Reason,
			d.Outcome, d.PullPolicy)
		if d.Secret.Name != "" {
			line += " by " + d.Secret.Name
		}
		if d.Shadow {
			line += " shadow"
		}
		said = append(said, strings.Join(strings.Fields(line), " "))
	}
	k.all = nil
	return said
}

func (k *keeper) wants(t *testing.T, what string, want ...string) {
	t.Helper()
	testkit.Equal(t, what, k.since(), want)
}

// Every verdict except a repeated Allow, every pull and every refusal is noted once.
func TestDecisionsAreNotedOnce(t *testing.T) {
	k, c := kept(exact())
	p := newProxy(t, tracker.Options{}, c)
	p.serves(app, "good", img(id1))
	alice, bob := p.Pod("alice"), p.Pod("bob")
	pull := func(x *criproxytest.Pod, password string) {
		t.Helper()
		_, _ = p.Pull(t.Context(), x, app, password) // the decision contains the result
	}
	k.wants(t, "sandboxes")
	p.Precheck(alice, app)
	k.wants(t, "an image that is absent")
	pull(alice, "good")
	k.wants(t, "a pull", "PullImage alice: Allow proved verified unknown")
	p.Precheck(alice, app)
	pull(nil, "good")
	k.wants(t, "a repeated Allow, and a pull for no pod", "PullImage : Allow proved verified unknown")
	p.Precheck(bob, app)
	k.wants(t, "a hidden pre-check", "ImageStatus bob: Reverify not_proved unknown")
	pull(bob, "bad")
	k.wants(t, "a pull with a wrong credential", "PullImage bob: Reverify not_proved unknown",
		"PullImage bob: Reverify denied unknown")
	pull(bob, "good")
	k.wants(t, "a pull that is answered from the node", "PullImage bob: Allow proved unknown")
	if _, err := p.Create(t.Context(), p.Pod("carol"), id1, app); err == nil {
		t.Error("carol's container is created")
	}
	k.wants(t, "a container that is denied", "CreateContainer carol: Reverify not_proved unknown")
	p.runtime.SetImages(img(id2, "repo.test/b:1"), img(id3, "repo.test/c:1"))
	prefix := "sha256:2" // of two images
	if underTest() != criproxytest.Containerd {
		prefix = id2[:3] // CRI-O does not accept a shorter one
	}
	_, _ = p.TryPrecheck(t.Context(), bob, prefix)
	k.wants(t, "the prefix of an image ID", "ImageStatus bob: Reverify image_id_name unknown")
	for range 2 {
		p.Precheck(p.PodFrom("dave", "api"), "repo.test/b:1")
		k.wants(t, "an Allow for an unknown pod", "ImageStatus : Allow preloaded unknown")
	}
}

func TestRefusalsOfTheGatesOwnAreNoted(t *testing.T) {
	k, c := kept(restoring())
	p := newProxy(t, tracker.Options{}, c)
	const landing, gone = "repo.test/any:2", "repo.test/any:3"
	p.serves(app, "good", img(id1))
	p.MustPull(p.Pod("alice"), app, "good")
	all := []criproxytest.Image{
		{ID: id1, Names: []string{app}},
		{ID: id2, Names: []string{landing}, Restores: id1},
		{ID: id3, Names: []string{gone}, Restores: "sha256:9"},
	}
	p.runtime.SetImages(all...)
	bob := p.Pod("bob")
	p.Precheck(bob, landing)
	k.since()
	for name, id := range map[string]string{landing: id2, gone: id3} {
		if _, err := p.Create(t.Context(), bob, id, name); err == nil {
			t.Errorf("bob's container on %s is created", name)
		}
		p.runtime.SetImages(all...)
		if name == gone {
			k.wants(t, "a checkpoint of an absent image", "CreateContainer bob: Allow preloaded unknown",
				"CreateContainer bob: Reverify creation_failed unknown")
			continue
		}
		k.wants(t, "another image than the one asked for", "CreateContainer bob: Reverify not_proved unknown")
		p.Precheck(bob, landing)
		k.wants(t, "the pre-check after it", "ImageStatus bob: Reverify container_refused unknown")
	}
}

func TestDecisionsHaveSecretAndPullPolicy(t *testing.T) {
	k, c := kept(exact())
	p, f := newProxyWithSource(t, c)
	k.wants(t, "alice's pull", "PullImage alice: Allow proved verified IfNotPresent by pull")
	never, mixed := p.Pod("never"), p.Pod("mixed")
	f.addPod(never, "good", "Never")
	f.addPod(mixed, "bad", "Never", "IfNotPresent")
	p.Precheck(never, app)
	p.Precheck(mixed, app)
	k.wants(t, "pre-checks", "ImageStatus never: Allow proved Never by pull",
		"ImageStatus mixed: Reverify not_proved mixed")
}

func TestShadowIsNotedWithEachDecision(t *testing.T) {
	k := &keeper{}
	p, _ := newProxyOfAlice(t, tracker.Options{}, gate.Config{Shadow: true, Decisions: k})
	bob := p.Pod("bob")
	p.Precheck(bob, app)
	p.wantCreate(bob, id1, app, codes.OK, "container")
	k.wants(t, "shadow mode", "PullImage alice: Allow proved verified unknown shadow",
		"ImageStatus bob: Reverify not_proved unknown shadow", "CreateContainer bob: Reverify not_proved unknown shadow")
}

func TestAPullThatTheStoreRefusesIsNoted(t *testing.T) {
	k, c := kept(exact())
	p := newProxy(t, tracker.Options{}, c)
	x := p.Pod("alice")
	p.must(p.store.Close())
	if _, err := p.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: app}, SandboxConfig: x.Config,
	}); err == nil {
		t.Error("a pull without an intent passes")
	}
	k.wants(t, "a pull without an intent", "PullImage alice: Reverify error unknown")
}

// Every decision about an image that is present has a digest of it, that of the name's repository if there is one.
// Shows: 000-34
func TestDecisionsHaveTheDigestOfTheImage(t *testing.T) {
	_, digest, _ := strings.Cut(digest1, "@")
	names := []string{digest1}
	if underTest() == criproxytest.Containerd { // the other one takes the first digest for all names
		names = []string{"repo.test/first/other@sha256:" + strings.Repeat("e", 64), digest1}
	}
	k, c := kept(exact())
	p := newProxy(t, tracker.Options{}, c)
	p.serves(app, "good", img(id1, names...))
	alice, bob := p.Pod("alice"), p.Pod("bob")
	p.wantPull(alice, app, "good", id1, "pull")
	p.wantPrecheck(alice, app, id1, "alice's pre-check")
	p.wantPrecheck(bob, app, "", "bob's pre-check")
	p.wantPrecheck(bob, digest1, "", "bob's pre-check by digest")
	p.wantCreate(bob, id1, app, codes.PermissionDenied, "bob's container")
	p.wantCode(p.createAndStart(alice, id1, app), codes.OK, "alice's container")
	calls := map[string]bool{}
	for _, d := range k.all {
		calls[d.Call] = true
		if d.Verdict.Pair.ImageID != id1 || d.Digest != digest {
			t.Errorf("%s of %s: image ID %q, digest %q; want %s and %s", d.Call, d.Pod.Namespace, d.Verdict.Pair.ImageID,
				d.Digest, id1, digest)
		}
	}
	if !calls["PullImage"] || !calls["ImageStatus"] || !calls["CreateContainer"] {
		t.Errorf("decisions about %v; want all calls", calls)
	}
	// What the runtime does not know is absent, and so is the digest of an image that is not judged.
	k.all = nil
	p.runtime.SetImages(img(id2, "repo.test/loaded:1"))
	p.wantPrecheck(bob, "repo.test/loaded:1", id2, "an image without a digest")
	p.wantNoPull(bob, app, "bad", "a pull that is denied")
	for _, d := range k.all {
		if d.Digest != "" {
			t.Errorf("%s of %s: digest %q; want none", d.Call, d.Image, d.Digest)
		}
	}
}

// What a report of the node needs and the log does not have: that the registry denied a pull which was to prove access
// to an image on the node, and whether a pod that is denied has a pull secret.
func TestDecisionsForReports(t *testing.T) {
	k, c := kept(exact())
	p, f := newProxyWithSource(t, c)
	hidden := func(what string, want bool) {
		t.Helper()
		k.mu.Lock()
		defer k.mu.Unlock()
		last := k.all[len(k.all)-1]
		if last.Call != "PullImage" || last.Outcome != "denied" || last.Hidden != want {
			t.Errorf("%s: %s ends %q, hidden %v; want %v", what, last.Call, last.Outcome, last.Hidden, want)
		}
	}
	bob := p.Pod("bob")
	f.addPod(bob, "bad", "IfNotPresent")
	p.Precheck(bob, app)
	_, _ = p.Pull(t.Context(), bob, app, "bad") // the decision has the result
	hidden("a pull of an image on the node", true)
	_, _ = p.Pull(t.Context(), bob, "repo.test/absent:1", "bad")
	hidden("a pull of an absent image", false)

	none := p.Pod("none")
	f.addPod(none, "", "IfNotPresent")
	for pod, want := range map[*criproxytest.Pod]bool{bob: true, none: false} {
		_, err := p.Create(t.Context(), pod, id1, app)
		if status.Code(err) != codes.PermissionDenied {
			t.Errorf("a container without proof = %v; want PermissionDenied", err)
		}
		k.mu.Lock()
		if last := k.all[len(k.all)-1]; last.Call != "CreateContainer" || last.PullSecret != want {
			t.Errorf("%s of %s: pull secret %v; want %v", last.Call, last.Pod.Namespace, last.PullSecret, want)
		}
		k.mu.Unlock()
	}
}
