package gate_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/restriction"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// anyImage is the name of an image that every pod may use.
const anyImage = "repo.test/any:2"

// Policies of the tests.
const (
	noHostNetwork = "{spec: {securityContext: {hostNetwork: {require: false}}}}"
	notPrivileged = "{spec: {containers: [{securityContext: {privileged: {require: false}}}]}}"
	notRoot       = "{spec: {containers: [{securityContext: {runAsUser: {ranges: [{min: 1}]}}}]}}"
	noHostPath    = "{spec: {volumes: [{volumeType: {blacklist: [hostPath]}}]}}"
	noEtc         = "{spec: {volumes: [{hostPath: {path: {blacklist: [/etc]}}}]}}"
	ownRegistry   = "{spec: {containers: [{image: [{registry: {whitelist: [repo.test]}}]}]}}"
	withLabel     = "{metadata: {labels: {requiredKeys: [io.kubernetes.pod.name]}}}"
	withTeam      = "{metadata: {labels: {requiredKeys: [team]}}}"
	audited       = "audit "
)

// rulesOf returns rules with the policies of setOf.
func rulesOf(tb testing.TB, specs ...string) admission.Rules {
	tb.Helper()
	set := setOf(tb, specs...)
	return admission.Rules{
		PolicyHash: "hash of " + strings.Join(specs, ""), ExemptStaticPods: true,
		Validators: []admission.Named{{
			Name:      admission.RestrictionValidator,
			Validator: restriction.NewValidator(set, restriction.Options{From: restriction.Node}),
		}},
	}
}

// policies returns the admission of a node with these policies.
func policies(tb testing.TB, specs ...string) *gate.Admission {
	tb.Helper()
	return chainOf(rulesOf(tb, specs...))
}

func chainOf(r admission.Rules) *gate.Admission {
	return &gate.Admission{Chain: admission.New(r, nil), KubeletRoot: "/var/lib/kubelet"}
}

// newProxyWithPolicies returns a proxy of a node with images that every pod may use: id2 and, by another name, id3.
func newProxyWithPolicies(tb testing.TB, c gate.Config, a *gate.Admission) *proxy {
	tb.Helper()
	c.Admission = a
	p := newProxy(tb, tracker.Options{Rules: tracker.Rules{ExemptStaticPods: true}}, c)
	p.runtime.SetImages(img(id2, anyImage), img(id3, "repo.test/other:1"))
	return p
}

// ordinary returns the configuration of a container that no policy of the tests denies.
func ordinary(mounts ...*runtimeapi.Mount) *runtimeapi.ContainerConfig {
	return &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
		Image:    &runtimeapi.ImageSpec{Image: id2, UserSpecifiedImage: anyImage},
		Mounts:   mounts,
		Linux: &runtimeapi.LinuxContainerConfig{SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
			RunAsUser: &runtimeapi.Int64Value{Value: 1000},
		}},
	}
}

// privileged returns the configuration of a privileged container.
func privileged() *runtimeapi.ContainerConfig {
	c := ordinary()
	c.Linux.SecurityContext.Privileged = true
	return c
}

// create creates a container in the sandbox of a pod.
func (p *proxy) create(x *criproxytest.Pod, config *runtimeapi.ContainerConfig) (string, error) {
	resp, err := p.Runtime.CreateContainer(p.t.Context(),
		&runtimeapi.CreateContainerRequest{PodSandboxId: x.Sandbox, SandboxConfig: x.Config, Config: config})
	return resp.GetContainerId(), err
}

// run creates and starts a container.
func (p *proxy) run(x *criproxytest.Pod, config *runtimeapi.ContainerConfig) {
	p.t.Helper()
	id := testkit.Value(p.create(x, config))(p.t)
	p.must(p.Start(p.t.Context(), id))
}

// denies is wantDenied for the results of a call.
func denies(tb testing.TB, what string, reason admission.Reason, texts ...string) func(any, error) {
	tb.Helper()
	return func(_ any, err error) {
		tb.Helper()
		wantDenied(tb, what, err, reason, texts...)
	}
}

// wantDenied reports an error that is not a denial by a policy with a reason and these texts.
func wantDenied(tb testing.TB, what string, err error, reason admission.Reason, texts ...string) {
	tb.Helper()
	if status.Code(err) != codes.PermissionDenied {
		tb.Errorf("%s: %v; want PermissionDenied", what, err)
		return
	}
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); !ok || info.GetReason() != string(reason) {
			tb.Errorf("%s: details %v; want the reason %s", what, d, reason)
		}
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			tb.Errorf("%s: %q does not contain %q", what, err, text)
		}
	}
}

func hostNetwork(x *criproxytest.Pod) *criproxytest.Pod {
	x.Config.Linux = &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_NODE},
	}}
	return x
}

func TestPolicyDeniesACallBeforeItIsForwarded(t *testing.T) {
	p := newProxyWithPolicies(t, restoring(), policies(t, noHostNetwork, notPrivileged, notRoot))
	restore := func(x *criproxytest.Pod, config *runtimeapi.ContainerConfig) error {
		_, err := p.restorePod(x, ordinary(), config)
		return err
	}
	byName := ordinary()
	byName.Linux.SecurityContext.RunAsUser, byName.Linux.SecurityContext.RunAsUsername = nil, "app"
	for _, tc := range []struct {
		call   string
		do     func() error
		reason admission.Reason
		field  string
	}{
		{
			"RunPodSandbox", func() error { return p.Sandbox(t.Context(), hostNetwork(p.PodFrom("team", "api"))) },
			admission.RestrictionViolated, "hostNetwork",
		},
		{
			"CreateContainer", func() error { _, err := p.create(p.Pod("team"), privileged()); return err },
			admission.RestrictionViolated, "privileged",
		},
		{
			"CreateContainer", func() error { _, err := p.create(p.Pod("team"), byName); return err }, admission.FieldUnknown,
			"runAsUser",
		},
		{
			"RestorePod", func() error { return restore(hostNetwork(p.PodFrom("team", "api")), ordinary()) },
			admission.RestrictionViolated, "hostNetwork",
		},
		{
			"RestorePod", func() error { return restore(p.PodFrom("team", "api"), privileged()) }, admission.RestrictionViolated,
			"privileged",
		},
	} {
		wantDenied(t, tc.call, tc.do(), tc.reason, "pod team/team-", "policy policy-", tc.field, "allowed")
	}
	if n := p.runtime.Calls("CreateContainer") + p.runtime.Calls("RestorePod"); n != 0 ||
		p.runtime.Calls("RunPodSandbox") != 2 {
		t.Errorf("%d calls that create containers were forwarded, and RunPodSandbox %d times; want none, and that of 2 "+
			"admitted pods", n, p.runtime.Calls("RunPodSandbox"))
	}
	x := p.Pod("team")
	p.run(x, ordinary())
	p.must(restore(p.PodFrom("team", "api"), ordinary()))
	p.wantPrecheck(x, anyImage, id2, "pre-check (which policies do not hide)")
	p.wantCounts(map[string]int{
		"admission RunPodSandbox Deny": 1, "admission RunPodSandbox Admit": 3,
		"admission CreateContainer Deny": 2, "admission CreateContainer Admit": 1,
		// each restored container once more, as one of unknown content
		"admission RestorePod Deny": 2, "admission RestorePod Admit": 7,
	})
}

// A pod learns nothing about policies from an image that it may not use. In shadow mode, which is about credentials,
// policies are enforced.
func TestCredentialVerdictComesFirst(t *testing.T) {
	for _, shadow := range []bool{false, true} {
		c := exact()
		c.Shadow = shadow
		p := newProxyWithPolicies(t, c, policies(t, notPrivileged))
		p.serves(app, "good", img(id1))
		p.MustPull(p.Pod("alice"), app, "good")
		config := privileged()
		config.Image = &runtimeapi.ImageSpec{Image: id1, UserSpecifiedImage: app}
		_, err := p.create(p.Pod("bob"), config)
		if shadow {
			wantDenied(t, "in shadow mode", err, admission.RestrictionViolated)
			continue
		}
		wantDenied(t, "without a credential", err, "ACCESS_NOT_PROVED")
		if got := p.counts.get()["admission CreateContainer Deny"]; got != 0 {
			t.Error("the chain was asked about a container that the pod's credentials do not allow")
		}
	}
}

// The attacks of a tenant that need no kubelet. Under another root directory than the configured one, the kubelet's own
// mounts are hostPath volumes, and every container is denied.
func TestADenialNamesTheRootDirectoryOfTheKubelet(t *testing.T) {
	p := newProxyWithPolicies(t, exact(), policies(t, "{spec: {volumes: [{hostPath: {path: {whitelist: [/data]}}}]}}"))
	x := p.Pod("team")
	hosts := func(root string) *runtimeapi.Mount {
		return &runtimeapi.Mount{ContainerPath: "/etc/hosts", HostPath: root + "/pods/" + x.UID + "/etc-hosts"}
	}
	_, err := p.create(x, ordinary(hosts("/srv/kubelet")))
	wantDenied(t, "another root directory", err, admission.RestrictionViolated,
		"/srv/kubelet looks like the root directory of the kubelet, and admission.kubeletRoot is /var/lib/kubelet; policy")
	_, err = p.create(x, ordinary(hosts("/var/lib/kubelet"), &runtimeapi.Mount{ContainerPath: "/x", HostPath: "/etc"}))
	wantDenied(t, "a hostPath", err, admission.RestrictionViolated, "/etc")
	if strings.Contains(err.Error(), "kubeletRoot") {
		t.Errorf("a hostPath: %v; want no word about the root directory", err)
	}
}

func TestAttacksOnPolicies(t *testing.T) {
	p := newProxyWithPolicies(t, exact(), policies(t, noHostNetwork, notPrivileged, noHostPath, noEtc, withLabel))
	volumes := func(uid string) string {
		return "/var/lib/kubelet/pods/" + uid + "/volumes/kubernetes.io~empty-dir/data"
	}
	labelled := func() *criproxytest.Pod {
		x := p.PodFrom("team", "api")
		x.Config.Labels = map[string]string{"io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "team"}
		return x
	}
	wantDenied(t, "a label that a kubelet writes", p.Sandbox(t.Context(), labelled()), admission.RestrictionViolated,
		"spec.metadata.labels")

	p.gate.SetAdmission(policies(t, noHostNetwork, notPrivileged, noHostPath, noEtc))
	x, other := p.Pod("team"), p.Pod("team")
	for name, path := range map[string]string{
		"dots":                               volumes(x.UID) + "/../../../../../../../etc",
		"dots in a hostPath":                 "/var/../etc/passwd",
		"doubled slashes":                    "//etc//passwd",
		"doubled slashes in the own folder":  strings.Replace(volumes(x.UID), "/pods/", "//pods/", 1),
		"a volume of another pod":            volumes(other.UID),
		"a UID that begins with that of pod": volumes(x.UID + "0"),
		"a folder that looks like a volume":  "/tmp" + volumes(x.UID),
	} {
		_, err := p.create(x, ordinary(&runtimeapi.Mount{ContainerPath: "/data", HostPath: path}))
		wantDenied(t, name, err, admission.RestrictionViolated, `container "main"`, `mount "/data"`)
	}
	_, err := p.create(x, ordinary(&runtimeapi.Mount{
		ContainerPath: "/data", HostPath: "/var/lib/kubelet/pods/" + x.UID + "/volume-subpaths/data/main/0",
	}))
	wantDenied(t, "a subPath", err, admission.FieldUnknown, "volumeType")
	if _, err := p.create(x, ordinary(&runtimeapi.Mount{ContainerPath: "/data", HostPath: volumes(x.UID)})); err != nil {
		t.Errorf("a volume of the pod itself: %v; want it admitted", err)
	}

	config := privileged()
	config.Linux.SecurityContext.Capabilities = &runtimeapi.Capability{DropCapabilities: []string{"ALL"}}
	denies(t, "privileged beside dropped capabilities", admission.RestrictionViolated, "privileged")(p.create(x, config))

	// A configuration of another sandbox: its labels and volumes are not those of the pod.
	swapped := *x
	swapped.Config = other.Config
	_, err = p.create(&swapped, ordinary(&runtimeapi.Mount{ContainerPath: "/data", HostPath: volumes(other.UID)}))
	wantDenied(t, "the configuration of another pod", err, admission.FieldUnknown)

	many, large := hostNetwork(p.PodFrom("team", "api")), hostNetwork(p.PodFrom("team", "api"))
	for i := range 10_000 {
		many.Config.Annotations[fmt.Sprintf("a%d", i)] = "x"
	}
	large.Config.Annotations["a"] = strings.Repeat("x", 256<<10)
	for name, x := range map[string]*criproxytest.Pod{"10,000 annotations": many, "256 KiB of annotations": large} {
		wantDenied(t, name, p.Sandbox(t.Context(), x), admission.RestrictionViolated, "hostNetwork")
		x.Config.Linux = nil
		p.must(p.Sandbox(t.Context(), x))
		denies(t, name, admission.RestrictionViolated, "privileged")(p.create(x, privileged()))
		if n := len(err.Error()); n > 2000 {
			t.Errorf("%s: a denial of %d bytes", name, n)
		}
	}
}

func TestPolicyChangesBetweenSandboxAndContainer(t *testing.T) {
	a := policies(t, noHostNetwork)
	p := newProxyWithPolicies(t, exact(), a)
	before := p.Pod("team")
	a.Chain.Set(rulesOf(t, noHostNetwork, notPrivileged))
	_, err := p.create(before, privileged())
	wantDenied(t, "a policy that is stricter since the sandbox was created", err, admission.RestrictionViolated,
		"policy-1")
	a.Chain.Set(rulesOf(t))
	p.ends(codes.OK, "a policy that is gone since the sandbox was created")(p.create(before, privileged()))
	// Policies that are used from now on judge the host network of a running sandbox with its first new container.
	p.gate.SetAdmission(nil)
	x := hostNetwork(p.PodFrom("team", "api"))
	p.must(p.Sandbox(t.Context(), x))
	p.gate.SetAdmission(policies(t, noHostNetwork))
	_, err = p.create(x, ordinary())
	wantDenied(t, "a policy that is newer than the sandbox", err, admission.RestrictionViolated, "hostNetwork")
}

// The bytes that are judged are those that are forwarded, also with fields of a newer CRI.
func TestPolicyJudgesWhatIsForwarded(t *testing.T) {
	p := newProxyWithPolicies(t, exact(), policies(t, noHostNetwork, notPrivileged))
	req := &runtimeapi.RunPodSandboxRequest{Config: p.PodFrom("team", "api").Config}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 900, protowire.VarintType), 7)
	req.ProtoReflect().SetUnknown(unknown)
	p.done(p.Runtime.RunPodSandbox(t.Context(), req))
	if got := p.runtime.Requests("RunPodSandbox"); len(got) != 1 || !bytes.HasSuffix(got[0], unknown) {
		t.Errorf("forwarded %x; want the field %x that this CRI does not have", got, unknown)
	}
	for _, method := range []string{"RunPodSandbox", "CreateContainer"} {
		_, err := criproxytest.CallRaw(t.Context(), p.Conn, "/runtime.v1.RuntimeService/"+method, []byte{0xff})
		p.wantCode(err, codes.InvalidArgument, "%s that cannot be decoded", method)
	}
}

// A pod restarts the containers that it started before a policy became stricter, also after restarts of pullgated.
// Shows: 000-32
func TestRestartsAreAdmitted(t *testing.T) {
	a := policies(t)
	p := newProxyWithPolicies(t, exact(), a)
	x, ended := p.Pod("team"), p.Pod("team")
	p.run(x, privileged())
	p.run(ended, privileged())
	otherName, otherImage := privileged(), privileged()
	otherName.Metadata.Name = "other"
	otherImage.Image = &runtimeapi.ImageSpec{Image: id3, UserSpecifiedImage: "repo.test/other:1"}
	strict := rulesOf(t, noHostNetwork, notPrivileged)
	check := func(when string) {
		t.Helper()
		p.wantCode(p.Sandbox(t.Context(), hostNetwork(x)), codes.OK, "%s: a new sandbox of a pod that has run", when)
		x.Config.Linux = nil
		id, err := p.create(x, privileged())
		if err == nil {
			err = p.Start(t.Context(), id)
		}
		if err != nil {
			t.Errorf("%s: a restart: %v; want it admitted", when, err)
		}
		denies(t, when+": another container of the pod", admission.RestrictionViolated)(p.create(x, otherName))
		denies(t, when+": the container with another image", admission.RestrictionViolated)(p.create(x, otherImage))
		fresh := p.Pod("new-" + strings.ReplaceAll(when, " ", "-"))
		denies(t, when+": a new pod", admission.RestrictionViolated)(p.create(fresh, privileged()))
	}
	a.Chain.Set(strict)
	check("after a reload")

	p.config.Admission = chainOf(strict)
	p.restart()
	check("after a restart") // its first call is RunPodSandbox, as it is after a reboot

	p.gate.SetAdmission(nil)
	p.gate.SetAdmission(chainOf(strict))
	check("after policies were off")

	// A pod that ended is forgotten. Its UID does not come back; if it does, it is a new pod.
	p.done(p.Runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: ended.Sandbox}))
	p.must(p.Sandbox(t.Context(), ended))
	denies(t, "a pod that ended", admission.RestrictionViolated)(p.create(ended, privileged()))

	strict.RecheckRestarts = true
	p.config.Admission = chainOf(strict)
	p.restart()
	denies(t, "with recheckRestarts", admission.RestrictionViolated)(p.create(x, privileged()))
	wantDenied(t, "with recheckRestarts", p.Sandbox(t.Context(), hostNetwork(x)), admission.RestrictionViolated)
}

// A container that was created and not started may be one that was about to be denied.
func TestOnlyStartedContainersCount(t *testing.T) {
	p := newProxyWithPolicies(t, exact(), policies(t))
	x := p.Pod("team")
	if _, err := p.create(x, privileged()); err != nil {
		t.Fatal(err)
	}
	p.config.Admission = policies(t, notPrivileged)
	p.gate.SetAdmission(p.config.Admission)
	denies(t, "a container that was only created", admission.RestrictionViolated)(p.create(x, privileged()))
	p.restart()
	denies(t, "after a restart", admission.RestrictionViolated)(p.create(x, privileged()))
}

// A spy is a validator that denies, and stores the subjects about which it was asked.
type spy struct {
	mu    sync.Mutex
	asked []admission.Subject
}

func (s *spy) Validate(_ context.Context, subject admission.Subject) []admission.Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, subject)
	return []admission.Finding{{
		Policy: "spy", Answer: admission.Deny, Reason: admission.RestrictionViolated, Message: "spy",
	}}
}

func TestValidatorsAreNotAskedAboutExemptPods(t *testing.T) {
	s := &spy{}
	p := newProxyWithPolicies(t, exact(), chainOf(admission.Rules{
		Validators: []admission.Named{{Name: "spy", Validator: s}}, ExemptStaticPods: true,
		ExemptNamespaces: []string{"kube-system"},
	}))
	static := p.PodFrom("team", "file")
	p.must(p.Sandbox(t.Context(), static))
	for _, x := range []*criproxytest.Pod{p.Pod("kube-system"), static} {
		p.run(x, privileged())
	}
	if len(s.asked) != 0 {
		t.Errorf("asked about %v; want no exempt pod", s.asked)
	}
	wantDenied(t, "another pod", p.Sandbox(t.Context(), p.PodFrom("team", "api")), admission.RestrictionViolated, "spy")
	if len(s.asked) != 1 || s.asked[0].Stage != admission.StageSandbox || s.asked[0].Container != nil {
		t.Errorf("asked about %+v; want the sandbox", s.asked)
	}
}

func TestAuditDeniesNothing(t *testing.T) {
	auditOnly := rulesOf(t, noHostNetwork, notPrivileged)
	auditOnly.AuditOnly = true
	for name, a := range map[string]*gate.Admission{
		"policies in audit mode": policies(t, audited+noHostNetwork, audited+notPrivileged),
		"enforce: false":         chainOf(auditOnly),
	} {
		k, c := kept(exact())
		log, lines := journaled(0)
		c.Log = log
		p := newProxyWithPolicies(t, c, a)
		x := hostNetwork(p.PodFrom("team", "api"))
		p.must(p.Sandbox(t.Context(), x))
		p.run(x, privileged())
		p.run(x, privileged()) // a restart
		k.mu.Lock()
		got := slices.Clone(k.all)
		k.mu.Unlock()
		for _, call := range []string{"RunPodSandbox", "CreateContainer"} {
			if n := lines(`"msg":"Would deny","call":"` + call); len(n) != 1 {
				t.Errorf("%s: the journal has the lines %q about %s; want one", name, n, call)
			}
		}
		if len(got) != 2 || got[0].Call != "RunPodSandbox" || got[1].Call != "CreateContainer" {
			t.Errorf("%s: decisions %+v; want one of each call", name, got)
			continue
		}
		for _, d := range got {
			if !d.Verdict.Allowed() || d.Admission.PolicyHash == "" ||
				!slices.ContainsFunc(d.Admission.Findings, func(f admission.Finding) bool {
					return f.Audit && f.Answer == admission.Deny
				}) {
				t.Errorf("%s: %s has %+v; want Allow with a finding in audit mode", name, d.Call, d)
			}
		}
	}
}

// The log has one line for a container that a policy denies, and no Allow.
func TestDecisionsOfPolicies(t *testing.T) {
	k, c := kept(exact())
	p := newProxyWithPolicies(t, c, policies(t, noHostNetwork, notPrivileged))
	x := p.Pod("team")
	k.wants(t, "an admitted sandbox")
	denies(t, "a privileged container", admission.RestrictionViolated)(p.create(x, privileged()))
	k.wants(t, "a denied container", "CreateContainer team: Reverify admission_denied unknown")
	p.run(x, ordinary())
	k.wants(t, "an admitted container", "CreateContainer team: Allow preloaded unknown")
	if _, err := p.create(x, ordinary()); err != nil {
		t.Fatal(err)
	}
	k.wants(t, "a restart")
	second := ordinary()
	second.Metadata.Name = "second"
	p.run(x, second)
	k.wants(t, "another container on the image", "CreateContainer team: Allow preloaded unknown")
	if err := p.Sandbox(t.Context(), hostNetwork(p.PodFrom("team", "api"))); err == nil {
		t.Fatal("a pod with the host network has a sandbox")
	}
	k.mu.Lock()
	got := slices.Clone(k.all)
	k.mu.Unlock()
	if len(got) != 1 || got[0].Image != "" || len(got[0].Admission.Findings) == 0 ||
		got[0].Admission.Findings[0].Policy != "policy-0" {
		t.Errorf("decisions %+v; want one with the policy", got)
	}
	k.wants(t, "a denied sandbox", "RunPodSandbox team: Reverify admission_denied unknown")
}

// apiViews is a pod source with the views of the test by UID, "" for every other pod. Each has one container.
type apiViews map[string]apiView

type apiView struct {
	pod       admission.Pod
	container admission.Container
}

func (v apiViews) View(_ context.Context, uid string) (admission.Pod, []admission.Container, bool) {
	a, ok := v[uid]
	if !ok {
		a, ok = v[""]
	}
	return a.pod, []admission.Container{a.container}, ok
}

// withInit returns the view of a pod with a container that is not privileged.
func withInit(p admission.Pod) apiView {
	return apiView{p, admission.Container{
		Name: "init", Kind: admission.Set(admission.KindInit), Privileged: admission.Set(false),
	}}
}

func TestPodSourceAddsToTheView(t *testing.T) {
	const onlyInit = "{spec: {restartPolicy: {whitelist: [Always]}, initContainers: [{}], containers: " +
		"[{securityContext: {privileged: {require: false}}}]}}"
	views := apiViews{}
	s := &spy{}
	rules := rulesOf(t, onlyInit)
	rules.Validators[0].Validator = s
	a := chainOf(rules)
	a.Views, a.NamespaceLabels = views, map[string]map[string]string{"team": {"tier": "low"}}
	p := newProxyWithPolicies(t, exact(), nil)
	x, unknown := p.Pod("team"), p.Pod("else")
	views[x.UID] = withInit(admission.Pod{
		RestartPolicy: admission.Set("Always"), HostNetwork: admission.Set(true),
		Labels: admission.Set(map[string]string{"a": "b"}),
	})
	p.gate.SetAdmission(a)
	config := privileged()
	config.Metadata.Name = "init"
	for range 2 {
		denies(t, "the spy", admission.RestrictionViolated)(p.create(x, config))
	}
	denies(t, "the spy", admission.RestrictionViolated)(p.create(unknown, config))
	got, none := s.asked[0], s.asked[2]
	if len(got.Containers)+len(none.Containers) > 0 {
		t.Errorf("other containers %v and %v; want none", got.Containers, none.Containers)
	}
	config.Metadata.Name = "main"
	denies(t, "the spy", admission.RestrictionViolated)(p.create(x, config))
	if others := s.asked[3].Containers; len(others) != 1 || others[0].Name != "init" {
		t.Errorf("other containers %v; want init, for Accept policies", others)
	}
	if got.Pod.RestartPolicy != admission.Set("Always") || got.Container.Kind != admission.Set(admission.KindInit) {
		t.Errorf("view %+v, %+v; want what the CRI does not carry from the API server", got.Pod, got.Container)
	}
	if got.Pod.HostNetwork != admission.Set(false) || got.Container.Privileged != admission.Set(true) {
		t.Errorf("view %+v, %+v; want what the CRI says", got.Pod, got.Container)
	}
	if labels, _ := got.Pod.NamespaceLabels.Get(); labels["tier"] != "low" ||
		none.Pod.NamespaceLabels.State() != admission.StateUnknown {
		t.Errorf("labels of the namespaces %v and %v; want those of the file, and unknown ones", got.Pod.NamespaceLabels,
			none.Pod.NamespaceLabels)
	}
	if none.Pod.RestartPolicy.State() != admission.StateUnknown {
		t.Errorf("view %+v of a pod that the source does not have; want an unknown restart policy", none.Pod)
	}
}

// A difference between the two views is counted each time, and logged once for each pod and field.
func TestDifferencesOfViews(t *testing.T) {
	c := exact()
	log, lines := journaled(0)
	c.Log = log
	views := apiViews{}
	a := policies(t, noHostNetwork)
	a.Views = views
	p := newProxyWithPolicies(t, c, a)
	x, other := p.PodFrom("team", "api"), p.PodFrom("team", "api")
	labels := admission.Set(map[string]string{"a": "b"})
	views[x.UID] = withInit(admission.Pod{HostNetwork: admission.Set(true), Labels: labels})
	views[other.UID] = withInit(admission.Pod{HostNetwork: admission.Set(true)})
	config := privileged()
	config.Metadata.Name = "init" // privileged is false in the API
	for _, x := range []*criproxytest.Pod{x, other} {
		p.must(p.Sandbox(t.Context(), x))
		for range 2 {
			p.done(p.create(x, config))
		}
	}
	counted := p.counts.get()
	for field, n := range map[string]int{"conflict hostNetwork": 6, "conflict labels": 3, "conflict privileged": 4} {
		if counted[field] != n {
			t.Errorf("%s: counted %d times; want %d", field, counted[field], n)
		}
	}
	var logged []string
	for _, line := range lines("The kubelet and the API server differ") {
		_, field, _ := strings.Cut(line, `"field":"`)
		field, _, _ = strings.Cut(field, `"`)
		logged = append(logged, fmt.Sprintf("%s, first pod: %v", field, strings.Contains(line, x.UID)))
	}
	slices.Sort(logged)
	want := []string{
		"hostNetwork, first pod: false", "hostNetwork, first pod: true", "labels, first pod: true",
		"privileged, first pod: false", "privileged, first pod: true",
	}
	if !slices.Equal(logged, want) {
		t.Errorf("logged %q; want %q", logged, want)
	}
}

// A container that the runtime restored from a checkpoint can be on any image, whatever the runtime reports.
func TestPoliciesJudgeTheImageThatRuns(t *testing.T) {
	for name, tc := range map[string]struct {
		policy string
		want   codes.Code
	}{
		"a policy for images":            {ownRegistry, codes.PermissionDenied},
		"a policy for other fields":      {notRoot, codes.OK},
		"an audited policy for images":   {audited + ownRegistry, codes.OK},
		"a policy that the pod violates": {notPrivileged, codes.PermissionDenied},
	} {
		for _, claims := range []string{"", id2} { // the judged image
			t.Run(name+" claims "+claims, func(t *testing.T) {
				a := policies(t)
				p := newProxyWithPolicies(t, restoring(), a)
				x := p.Pod("team")
				p.run(x, privileged()) // a restart on this image would be admitted
				checkpoint := []criproxytest.Image{
					{ID: id2, Names: []string{anyImage}, Restores: id3, Claims: claims},
					{ID: id3, Names: []string{"repo.test/other:1"}},
				}
				p.runtime.SetImages(checkpoint...)
				a.Chain.Set(rulesOf(t, tc.policy))
				p.ends(tc.want, "restored container")(p.create(x, privileged()))
				if left := len(p.runtime.Containers()); (tc.want == codes.OK) != (left == 2) {
					t.Errorf("%d containers; want the denied one removed", left)
				}
				p.runtime.SetImages(checkpoint...) // the runtime has moved the name
				sandbox := p.PodFrom("team", "api")
				p.ends(tc.want, "restored pod")(p.restorePod(sandbox, privileged()))
			})
		}
	}
}

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
