package gate

import (
	"fmt"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyclient"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// hundredPolicies returns the preset restricted 100 times. Each policy allows another type of volumes, so that no two
// are equal.
func hundredPolicies(b *testing.B) *Admission {
	b.Helper()
	preset := testkit.Value(restriction.Preset("restricted"))(b)
	files := make([]restriction.File, 100)
	for i := range files {
		text := strings.Replace(string(preset), "name: restricted", fmt.Sprintf("name: restricted-%d", i), 1)
		text = strings.Replace(text, "- ephemeral\n", fmt.Sprintf("- ephemeral\n        - driver-%d\n", i), 1)
		files[i] = restriction.File{Name: fmt.Sprintf("%d.yaml", i), Data: []byte(text)}
	}
	set := testkit.Value(restriction.Load(files))(b)
	rules := admission.Rules{Validators: []admission.Named{{
		Name:      admission.RestrictionValidator,
		Validator: restriction.NewValidator(set, restriction.Options{From: restriction.Node}),
	}}}
	return &Admission{Chain: admission.New(rules, nil), KubeletRoot: "/var/lib/kubelet"}
}

// nothing drops all that a gate counts and notes.
type nothing struct{ Metrics }

func (nothing) Admission(string, admission.Decision) {}

// What 100 policies add to RunPodSandbox and to CreateContainer, for a container with 30 mounts of 5 types. The budget
// of each is 50 µs.
func BenchmarkAdmission(b *testing.B) {
	g := New(Config{Pods: podindex.New(), Metrics: nothing{}, Admission: hundredPolicies(b)})
	who := tracker.Pod{UID: "7f1d3c52-0000-4000-8000-000000000001", Namespace: "team", Name: "app"}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: who.Name, Namespace: who.Namespace, Uid: who.UID},
		Labels:   map[string]string{"app": "web", "team": "a", "io.kubernetes.pod.uid": who.UID},
	}
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
		Image:    &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "registry.test/app:1"},
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			RunAsUser: &runtimeapi.Int64Value{Value: 1000}, NoNewPrivs: true,
			Capabilities: &runtimeapi.Capability{DropCapabilities: []string{"ALL"}},
		}},
	}
	for i := range 30 {
		kind := []string{"configmap", "secret", "empty-dir", "projected", "downward-api"}[i%5]
		config.Mounts = append(config.Mounts, &runtimeapi.Mount{
			ContainerPath: fmt.Sprintf("/mnt/%d", i),
			HostPath:      fmt.Sprintf("/var/lib/kubelet/pods/%s/volumes/kubernetes.io~%s/v%d", who.UID, kind, i),
			Readonly:      true,
		})
	}
	for name, container := range map[string]*runtimeapi.ContainerConfig{"RunPodSandbox": nil, "CreateContainer": config} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				n := g.candidate(b.Context(), g.newCall(b.Context(), name), who, sandbox, container)
				testkit.Must(b, g.admit(b.Context(), n))
			}
		})
	}
}

// endorsedImage is a store in which one image has every endorsement.
type endorsedImage struct{ policyclient.EndorsementStore }

func (endorsedImage) Endorsed(p records.Pair, requirement string) (records.Endorsement, bool) {
	return records.Endorsement{Pair: p, Requirement: requirement, Signers: []string{"key a"}}, true
}

// What a policy about signatures adds to CreateContainer, beside one that only has a chain. The budget is 20 µs.
func BenchmarkAdmissionEndorsed(b *testing.B) {
	pattern := testkit.Value(requirement.ParsePattern("registry.test/*", requirement.KyvernoSyntax))(b)
	e := policyclient.NewEndorser(requirement.NewSet("", &requirement.Policies{Rules: []requirement.Rule{{
		Policy: "signed", Images: []requirement.Pattern{pattern},
		Requirement: &requirement.Requirement{SignedBy: &requirement.Signer{Key: &requirement.Key{Public: []byte("a")}}},
	}}}), policyclient.EndorserOptions{Store: endorsedImage{}, State: policyclient.NewEndorserState()})
	who := tracker.Pod{UID: "7f1d3c52-0000-4000-8000-000000000001", Namespace: "team", Name: "app"}
	sandbox := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{Name: who.Name, Namespace: who.Namespace, Uid: who.UID},
	}
	config := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
		Image:    &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "registry.test/app:1"},
	}
	for name, validators := range map[string][]admission.Named{
		"none":   nil,
		"signed": {{Name: admission.SignatureValidator, Validator: e}},
	} {
		b.Run(name, func(b *testing.B) {
			chain := admission.New(admission.Rules{Validators: validators}, nil)
			g := New(Config{Pods: podindex.New(), Metrics: nothing{}, Admission: &Admission{Chain: chain, Endorser: e}})
			b.ReportAllocs()
			for b.Loop() {
				c := g.candidate(b.Context(), g.newCall(b.Context(), "CreateContainer"), who, sandbox, config)
				c.image = tracker.Image{ID: "sha256:1"}
				testkit.Must(b, g.admit(b.Context(), c))
			}
		})
	}
}

// Without policies a judged call does a nil check.
// Shows: 004-34
func TestOffIsOff(t *testing.T) {
	g := New(Config{Pods: podindex.New()})
	pull := &pullCall{use: &use{call: g.newCall(t.Context(), "PullImage")}}
	n := g.candidate(t.Context(), g.newCall(t.Context(), "CreateContainer"), tracker.Pod{UID: "1"},
		&runtimeapi.PodSandboxConfig{}, &runtimeapi.ContainerConfig{})
	allocations := testing.AllocsPerRun(100, func() {
		if g.run(t.Context(), n, g.admit) != nil || n.asked {
			t.Error("a container is judged without policies")
		}
		g.mark(g.chain(), createdContainer{uid: "1", name: "main", imageID: "id"})
		g.chain().ForgetPod("1")
		withoutSignatures(t, g, n, pull)
	})
	if allocations != 0 {
		t.Errorf("%v allocations without policies; want none", allocations)
	}
	g.SetAdmission(&Admission{Chain: admission.New(admission.Rules{}, nil)})
	n.call, pull.call = g.newCall(t.Context(), "StartContainer"), g.newCall(t.Context(), "PullImage")
	if allocations := testing.AllocsPerRun(100, func() { withoutSignatures(t, g, n, pull) }); allocations != 0 {
		t.Errorf("%v allocations without policies about signatures; want none", allocations)
	}
}

// withoutSignatures does what policies about signatures add to the judged calls.
func withoutSignatures(t *testing.T, g *Gate, n *candidate, pull *pullCall) {
	t.Helper()
	p := precheck{call: pull.call}
	if g.lacksEndorsement(t.Context(), &p, tracker.Image{}, tracker.Verdict{}) {
		t.Error("a pre-check is hidden without policies about signatures")
	}
	if d, err := g.verifySignatures(t.Context(), pull, tracker.Image{ID: "sha256:1"}); err != nil || d.Findings != nil {
		t.Error("a pull is judged without policies about signatures")
	}
	n.late = true
	defer func() { n.late = false }()
	if err := g.endorsedLate(t.Context(), n); err != nil {
		t.Error("a start is judged without policies about signatures")
	}
}
