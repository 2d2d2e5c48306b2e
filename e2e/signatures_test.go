package e2e_test

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/signing"
)

// A signer is a suite with a policy about signatures, and a pullgate-policyd that verifies them.
type signer struct {
	*suite
	key      *ecdsa.PrivateKey
	policyd  *node.Policyd
	settings []string // of pullgated
}

// beginSigned is begin with the policy that the images of a folder of both registries are signed with a key.
func beginSigned(t runtimeTest, folder string, settings ...string) *signer {
	t.Helper()
	r := &signer{suite: bare(t), key: sigstoretest.NewKey(t)}
	dir, err := os.MkdirTemp("", "signed") // a socket's path must be short
	r.must(err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	policies := filepath.Join(dir, "policies")
	r.must(os.Mkdir(policies, 0o755))
	text := fmt.Sprintf(`apiVersion: policy.sigstore.dev/v1beta1
kind: ClusterImagePolicy
metadata: {name: signed}
spec:
  images: [{glob: %q}, {glob: %q}]
  authorities: [{key: {data: %q}}]
`, r.node.Private.Host()+"/"+folder+"/**", r.node.Public.Host()+"/"+folder+"/**", sigstoretest.PublicPEM(t, r.key))
	r.must(os.WriteFile(filepath.Join(policies, "signed.yaml"), []byte(text), 0o644))
	r.policyd, err = node.StartPolicyd(t.Context(), filepath.Join(dir, "policyd"), policies)
	r.must(err)
	t.Cleanup(func() {
		if err := errors.Join(r.policyd.Close(), node.Leaks(r.policyd.Dir(), "")); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("the last output of pullgate-policyd:\n%s", host.Tail(filepath.Join(r.policyd.Dir(), "policyd.log"), 20))
		}
	})
	r.settings = append(settings, "admission: {policies: "+policies+", policydSocket: "+r.policyd.Endpoint()+"}")
	r.protect(r.node.Containerd.Endpoint(), r.settings...)
	return r
}

func (r *signer) sign(image node.Pushed) {
	r.Helper()
	alice := node.Alice()
	repository, err := signing.Of(image, &alice)
	r.must(err)
	repository.Sign(r, r.key, image.Digest)
}

// unsigned runs a pod whose image has not the signatures that the policy requires.
func (r *signer) unsigned(p *node.Pod, image node.Pushed) {
	r.Helper()
	o := r.run(p, image, node.PullFailed, -1)
	if !strings.HasPrefix(o.Text, "SignatureValidationFailed: ") && !strings.Contains(o.Text, "Unknown desc = SignatureValidationFailed: ") {
		r.Errorf("unsigned image: %s; want SignatureValidationFailed", o)
	}
}

// A signed image of a registry with authentication runs, an unsigned one does not, whoever has pulled it. What is
// endorsed starts without registry and pullgate-policyd. A pull without a pod collects as well, and gets the runtime's
// answer.
func TestSignatures(t *testing.T) { onEach(t, signatures) }

func signatures(t runtimeTest) {
	const folder = "signed"
	r := beginSigned(t, folder)
	app, bad, late := r.private(folder+"/app:1", node.Image{}), r.private(folder+"/bad:1", node.Image{}), r.private(folder+"/late:1", node.Image{})
	r.sign(app)
	alice := node.Alice()
	by := func(image node.Pushed, policy string) *node.Pod { return pod("team-a", image, policy, alice) }
	r.run(by(app, node.IfNotPresent), app, node.Running, -1)
	r.run(by(app, node.IfNotPresent), app, node.Running, 0)
	r.unsigned(by(bad, node.IfNotPresent), bad)
	r.unsigned(by(bad, node.Always), bad)
	r.run(by(bad, node.Never), bad, node.NeverPulled, 0)

	_, err := r.k.Images.PullImage(t.Context(), &runtimeapi.ImageSpec{Image: late.Name}, &runtimeapi.AuthConfig{Username: alice.Username, Password: alice.Password}, nil)
	r.must(err)
	r.unsigned(by(late, node.IfNotPresent), late)
	elsewhere := r.private("elsewhere/app:1", node.Image{Content: r.Name() + folder + "/bad:1"})
	if elsewhere.ID != bad.ID {
		t.Fatalf("image IDs %s and %s; want the same image", elsewhere.ID, bad.ID)
	}
	r.run(by(elsewhere, node.IfNotPresent), elsewhere, node.Running, -1)
	r.unsigned(by(bad, node.IfNotPresent), bad)

	r.must(r.policyd.Stop())
	for _, registry := range []*node.Registry{r.node.Private, r.node.Public} {
		r.must(registry.Down())
	}
	r.must(r.gate.Restart(t.Context()))
	o := r.k.Run(t.Context(), by(app, node.IfNotPresent))
	if o.State != node.Running {
		t.Errorf("endorsed image without registry and pullgate-policyd: %v; want it running", o)
	}
	if o := r.k.Run(t.Context(), by(bad, node.IfNotPresent)); o.State != node.PullFailed && o.State != node.RegistryNotThere {
		t.Errorf("unsigned image without registry and pullgate-policyd: %v; want it denied", o)
	}
}

// A checkpoint makes some containerds create a container on another image than the one that was asked for. A signature
// of the checkpoint is none of that image, so that with allowRestores it is denied as well.
func TestCheckpointOfUnsignedImage(t *testing.T) {
	on(t, checkpointOfUnsignedImage, containerd21)
}

func checkpointOfUnsignedImage(t runtimeTest) {
	const folder = "restored"
	r := beginSigned(t, folder, "allowRestores: true")
	base := r.public(folder+"/base:1", node.Image{})
	trap := r.public(folder+"/trap:1", checkpointOf("trap", r.node.Public.Host()+"/"+base.Repository+"@"+base.Digest))
	r.sign(trap)
	thief := pod("team-a", base, node.IfNotPresent)
	if o := r.k.Run(t.Context(), thief); o.State != node.PullFailed { // the image is on the node then
		t.Errorf("unsigned image: %v; want it denied", o)
	}
	thief.Image = trap.Name
	if o := r.k.Start(t.Context(), thief); o.State != node.CreateFailed || !strings.Contains(o.Text, "PermissionDenied") {
		t.Errorf("checkpoint of an unsigned image: %v; want CreateContainerError with PermissionDenied", o)
	}
	r.must(r.k.Remove(t.Context(), thief))
}
