package gate_test

import (
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// A checkpoint can have containers that the call does not describe, so everything about them is unknown.
func TestRestoredContainerWithoutAConfigurationIsJudged(t *testing.T) {
	p := newProxyWithPolicies(t, restoring(), policies(t, notPrivileged))
	extra := func(_ string, answer []byte) []byte {
		var resp runtimeapi.RestorePodResponse
		if proto.Unmarshal(answer, &resp) != nil || len(resp.GetRestoredContainers()) == 0 {
			return answer
		}
		resp.RestoredContainers[0].Name = "extra"
		changed, err := proto.Marshal(&resp)
		if err != nil {
			t.Error(err)
		}
		return changed
	}
	p.runtime.Do(func(r *criproxytest.Runtime) { r.Rewrite = extra })
	restore := func() error {
		_, err := p.restorePod(p.PodFrom("team", "api"), ordinary())
		return err
	}
	p.wantCode(restore(), codes.PermissionDenied, "a container without a configuration")
	if left := len(p.runtime.Containers()); left != 0 {
		t.Errorf("%d containers; want the restored pod removed", left)
	}
	p.gate.SetAdmission(policies(t, noHostNetwork))
	p.wantCode(restore(), codes.PermissionDenied, "a container without a configuration, with a policy about the pod")
	p.gate.SetAdmission(policies(t, audited+notPrivileged))
	if err := restore(); err != nil {
		t.Errorf("with an audited policy: %v; want the pod", err)
	}
}

// Which image a restored container runs on is not known, so its start must not exempt a container on the image that the
// runtime reports.
func TestRestoredContainersDoNotCountAsStarted(t *testing.T) {
	p := newProxyWithPolicies(t, restoring(), policies(t))
	x := p.Pod("team")
	p.runtime.SetImages(
		criproxytest.Image{ID: id3, Names: []string{"repo.test/other:1"}, Restores: id2, Claims: id2},
		img(id2, anyImage),
	)
	checkpoint := privileged()
	checkpoint.Image = &runtimeapi.ImageSpec{Image: id3, UserSpecifiedImage: "repo.test/other:1"}
	p.run(x, checkpoint)
	p.config.Admission = policies(t, notPrivileged)
	p.gate.SetAdmission(p.config.Admission)
	denies(t, "the image that the runtime reported", admission.RestrictionViolated)(p.create(x, privileged()))
	p.restart()
	denies(t, "after a restart", admission.RestrictionViolated)(p.create(x, privileged()))
}

// Shadow mode is about credentials. A container that cannot be read back can be on any image for a policy.
func TestPoliciesInShadowModeWithoutReadBack(t *testing.T) {
	for policy, want := range map[string]codes.Code{
		ownRegistry: codes.PermissionDenied, notPrivileged: codes.OK, audited + ownRegistry: codes.OK,
	} {
		c := exact()
		c.Shadow = true
		p := newProxyWithPolicies(t, c, policies(t, policy))
		x := p.Pod("team")
		if _, err := p.create(x, ordinary()); err != nil {
			t.Fatal(err)
		}
		p.fails("ListContainers", status.Error(codes.Internal, "broken"))
		if _, err := p.create(x, ordinary()); status.Code(err) != want {
			t.Errorf("%s: %v; want %v", policy, err, want)
		}
	}
}

// Without the configuration of a sandbox that is not known either, nothing is known about the pod.
func TestPolicyOnAPodWithoutAConfiguration(t *testing.T) {
	p := newProxyWithPolicies(t, exact(), policies(t, noHostNetwork))
	_, err := p.Runtime.CreateContainer(t.Context(),
		&runtimeapi.CreateContainerRequest{PodSandboxId: "unknown", Config: ordinary()})
	wantDenied(t, "no configuration", err, admission.FieldUnknown, "hostNetwork")
}

// A tenant can edit the labels and annotations of its pod, and then end the sandbox: the new one has the edited ones.
func TestNewSandboxWithEditedMetadataIsJudged(t *testing.T) {
	const noDevices = "{metadata: {annotations: {keyBlacklist: [devices]}}}"
	a := policies(t, noDevices, notPrivileged)
	p := newProxyWithPolicies(t, exact(), a)
	x, had := p.Pod("team"), p.PodFrom("team", "api")
	p.run(x, ordinary())
	a.Chain.Set(rulesOf(t))
	had.Config.Annotations["devices"] = "before the policy"
	p.must(p.Sandbox(t.Context(), had))
	p.run(had, ordinary())
	strict := rulesOf(t, noDevices, withTeam, noHostNetwork)
	check := func(when string) {
		t.Helper()
		for name, again := range map[string]*criproxytest.Pod{"a pod": x, "a pod with the annotation": had} {
			p.wantCode(p.Sandbox(t.Context(), hostNetwork(again)), codes.OK, "%s: %s that is not edited", when, name)
			again.Config.Annotations["harmless"] = when
			if err := p.Sandbox(t.Context(), again); err != nil {
				t.Errorf("%s: %s with another annotation, which violates what it violated before: %v; want a new sandbox", when,
					name, err)
			}
		}
		x.Config.Annotations["devices"] = "/dev/kmsg"
		wantDenied(t, when+": an edited annotation", p.Sandbox(t.Context(), x), admission.RestrictionViolated, "devices")
		delete(x.Config.Annotations, "devices")
	}
	a.Chain.Set(strict)
	check("after a reload")
	p.config.Admission = chainOf(strict)
	p.restart()
	check("after a restart")
	p.fails("ListPodSandbox", status.Error(codes.Internal, "broken"))
	if err := p.Sandbox(t.Context(), x); status.Code(err) == codes.OK || status.Code(err) == codes.PermissionDenied {
		t.Errorf("while the runtime does not say what the pod was: %v; want the error of the runtime", err)
	}
}
