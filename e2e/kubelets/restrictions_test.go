package kubelets_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

const (
	notCreated = "CreateContainerError"
	noSandbox  = "FailedCreatePodSandBox" // the reason of an event
	refused    = "refused"                // either
)

// A pod that violates a restriction does not start, and its status or an event names policy and field. A pod that
// satisfies it runs. The same holds for init, ephemeral and static pods. A container that ends is started again.
// Shows: 003-22, 003-23, 003-25, 003-26, 003-27, 003-28
func restrictions(s *scenario) {
	images := s.restrictionImages()
	rows := restrictionRows(images, s.hostFolder())
	s.restrict(rows, "exempt: {staticPods: false}")

	crashing := s.come(use("privileged", images.app).but(func(p *corev1.Pod) {
		p.Spec.Containers[0].Command = []string{"/bin/sh", "-c", endsSoon}
	}), running)
	static := s.comeStatic(use("privileged", images.app).but(privileged()), refused)
	satisfying := s.judge(rows, images.app)
	if s.isDenied("the static pod", static, rowNamed(rows, "privileged").denial()); static.state != notCreated {
		s.Errorf("the static pod: %s; want %s", static, notCreated)
	}
	s.neverRan(static)
	s.leaveStatic(static)
	row := rowNamed(rows, "ephemeral")
	row.violates.container = "denied"
	s.addEphemeral(satisfying["ephemeral"], ephemeralContainer{name: "allowed", image: images.app},
		ephemeralContainer{name: "denied", image: images.number, capability: "SYS_PTRACE", denied: row.denial()})
	s.restarted(crashing, 1)
	s.dropAll()
}

// With the pod source, fields are restricted that no CRI message carries. By default static pods are exempt.
// Shows: 003-24, 003-27
func restrictionsOfSource(s *scenario) {
	images := s.restrictionImages()
	rows := sourceRows(s.hostFolder())
	s.restrict(rows)
	s.waitUntilSynced()
	s.judge(rows, images.app)
	if n := s.metric("pullgate_admission_view_conflicts_total"); n != 0 {
		s.Errorf("kubelet and API server differ in %v fields of pods; want none", n)
	}
	static := s.comeStatic(use("pull-policy", images.app), running)
	if s.await(static); static.state != running {
		s.Errorf("an exempt static pod: %s; want it running", static)
	}
	s.leaveStatic(static)
	s.dropAll()
}

// restrictionImages brings the images of the rows on the node, so that no pod of a row waits for a pull.
func (s *scenario) restrictionImages() restrictionImages {
	s.Helper()
	i := restrictionImages{
		app:    s.public("app:1"),
		number: s.push(s.Public, "number:1", node.Image{User: "4711:4711"}),
		named:  s.push(s.Public, "named:1", node.Image{User: "app"}),
	}
	s.pull(i.app, i.number, i.named)
	return i
}

func (s *scenario) pull(images ...node.Pushed) {
	s.Helper()
	s.runSteps(runs("a pod of all images", use("pull", images[0]).but(func(p *corev1.Pod) {
		for i, image := range images[1:] {
			p.Spec.Containers = append(p.Spec.Containers, containerOf(fmt.Sprintf("c-%d", i), image))
		}
	}), downloads))
}

// hostFolder makes a folder of the node for hostPath volumes. It has a folder "below".
func (s *scenario) hostFolder() string {
	s.Helper()
	folder := filepath.Join(s.Dir, "folder-of-"+s.name)
	s.must(os.MkdirAll(filepath.Join(folder, "below"), 0o755))
	return folder
}

// newPolicies makes the policy folder of the scenario, which pullgated does not know before enforce or configure.
func (s *scenario) newPolicies() {
	s.Helper()
	s.policies = filepath.Join(s.Dir, "policies-of-"+s.name)
	s.must(os.Mkdir(s.policies, 0o755))
}

func (s *scenario) restriction(name, text string) {
	s.Helper()
	text = "apiVersion: policy.pullgate.dev/v1alpha1\nkind: PodRestriction\nmetadata: {name: " + name + "}\n" + text + "\n"
	s.must(os.WriteFile(filepath.Join(s.policies, name+".yaml"), []byte(text), 0o644))
}

func (s *scenario) restrict(rows []restrictionRow, settings ...string) {
	s.Helper()
	s.newPolicies()
	for _, r := range rows {
		s.restriction(r.name, "binding: {namespaces: ["+s.namespace(r.name)+"]}\nspec: "+r.spec)
	}
	s.enforce(settings...)
	s.Cleanup(s.withoutPolicies)
}

// enforce restarts pullgated with the policy folder, and with more settings of its section admission.
func (s *scenario) enforce(settings ...string) {
	s.Helper()
	s.must(s.gate.Restart(s.Context(), s.admission(settings...)...))
}

func (s *scenario) configure(settings ...string) {
	s.Helper()
	s.must(s.gate.Configure(s.admission(settings...)...))
	s.reload()
}

func (s *scenario) admission(settings ...string) []string {
	settings = append(settings, "policies: "+s.policies, "kubeletRoot: "+s.kubelet.Root())
	if s.policyd != nil {
		settings = append(settings, "policydSocket: "+s.policyd.Endpoint())
	}
	return s.settings("admission: {"+strings.Join(settings, ", ")+"}", "decisionLog: {path: "+s.decisionLog()+"}")
}

func (s *scenario) decisionLog() string { return filepath.Join(s.gate.Dir(), s.name+".decisions") }

// reload sends SIGHUP to pullgated, and waits until it has read its configuration and its policies.
func (s *scenario) reload() {
	s.Helper()
	of := regexp.MustCompile("Policies read|Failed to read the policies|Policies disabled")
	read := func() int { return len(of.FindAllString(s.gate.Log(), -1)) }
	before := read()
	s.must(syscall.Kill(s.gate.PID(), syscall.SIGHUP))
	if !host.Within(patience, func() bool { return read() != before }) {
		s.Fatalf("pullgated has not reloaded")
	}
}

func (s *scenario) withoutPolicies() {
	s.Helper()
	s.dropAll() // before they can run
	settings := s.settings(`admission: {policies: ""}`)
	if err := s.gate.Restart(context.WithoutCancel(s.Context()), settings...); err != nil {
		s.Error(err)
	}
}

func (s *scenario) dropAll() {
	s.Helper()
	for len(s.kept) > 0 {
		s.drop(s.kept[0])
	}
}

// come creates a pod, and the service account that it names, without waiting for it.
func (s *scenario) come(p pod, want string) *outcome {
	s.Helper()
	o := &outcome{want: want, image: p.image, pod: s.create(p)}
	s.kept = append(s.kept, o)
	if name := o.pod.Spec.ServiceAccountName; name != "" { // no controller makes one
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
		testkit.Value(s.core.ServiceAccounts(o.pod.Namespace).Create(s.Context(), account, metav1.CreateOptions{}))(s)
	}
	return o
}

// judge creates both pods of each row and waits until they are what they should be. It returns those that run.
func (s *scenario) judge(rows []restrictionRow, image node.Pushed) map[string]*outcome {
	s.Helper()
	violating, satisfying := map[string]*outcome{}, map[string]*outcome{}
	for _, r := range rows {
		violating[r.name] = s.come(r.pod(r.violates, image), refused)
		satisfying[r.name] = s.come(r.pod(r.satisfies, image), running)
	}
	began := time.Now()
	for _, r := range rows {
		s.isDenied(r.name+": the pod that violates the policy", violating[r.name], r.denial())
		o := satisfying[r.name]
		if s.await(o); o.state != running {
			s.Errorf("%s: the pod that satisfies the policy: %s%s; want it running", r.name, o, s.events(o.pod))
		}
		if events := s.events(o.pod); strings.Contains(events, "pullgate: ") {
			s.Errorf("%s: the pod that satisfies the policy was denied at first:%s", r.name, events)
		}
	}
	s.Logf("%d rows after %v", len(rows), time.Since(began).Round(100*time.Millisecond))
	return satisfying
}

func (r restrictionRow) pod(p restrictedPod, image node.Pushed) pod {
	if p.image.Name != "" {
		image = p.image
	}
	return use(r.name, image).but(p.change)
}

func (s *scenario) await(o *outcome) {
	s.Helper()
	host.Within(patience, func() bool { return s.look(o).state != "" })
}

// isDenied waits until the status or an event of a pod that does not run matches a pattern.
func (s *scenario) isDenied(name string, o *outcome, pattern string) {
	s.Helper()
	want := regexp.MustCompile(pattern)
	isUp := func() bool { return o.state == running || o.state == succeeded }
	decided := func() bool {
		s.look(o)
		// sooner than the status of a pod with init containers, which a kubelet reports with its next sync
		o.text += s.events(o.pod)
		return isUp() || want.MatchString(o.text)
	}
	if !host.Within(patience, decided) || isUp() {
		s.Errorf("%s: %s; want it denied: %s", name, o, want)
	}
}

// denial is the pattern of what a kubelet reports of a pod that violates the policy of a row.
func (r restrictionRow) denial() string {
	container, value := r.violates.container, r.value+" is not allowed"
	if container == "" {
		container = "main"
	}
	if r.value == "" {
		value = "the value is not known"
	}
	before := `pullgate: pod \S+: policy ` + r.name + `: (container "` + container + `": )?(mount \S+: )?`
	if r.sandbox {
		before = noSandbox + ": .*" + before
	}
	return before + regexp.QuoteMeta(r.path+": "+value)
}

func rowNamed(rows []restrictionRow, name string) restrictionRow {
	return rows[slices.IndexFunc(rows, func(r restrictionRow) bool { return r.name == name })]
}

// An ephemeralContainer is one to be added to a pod. It must run, or wait with a reason that matches a pattern.
type ephemeralContainer struct {
	name       string
	image      node.Pushed
	capability corev1.Capability // that is added, if any
	denied     string            // the pattern
}

// addEphemeral adds ephemeral containers to a pod that runs, and waits until each is as it must be. The pod continues.
func (s *scenario) addEphemeral(o *outcome, all ...ephemeralContainer) {
	s.Helper()
	p := o.pod.DeepCopy()
	left := map[string]ephemeralContainer{}
	for _, e := range all {
		left[e.name] = e
		p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, corev1.EphemeralContainer{
			TargetContainerName: "main", EphemeralContainerCommon: corev1.EphemeralContainerCommon{
				Name: e.name, Image: e.image.Name, ImagePullPolicy: ifNotPresent,
				SecurityContext: &corev1.SecurityContext{},
			},
		})
		if e.capability != "" {
			adds := &corev1.Capabilities{Add: []corev1.Capability{e.capability}}
			p.Spec.EphemeralContainers[len(p.Spec.EphemeralContainers)-1].SecurityContext.Capabilities = adds
		}
		if e.denied != "" {
			o.want, o.image = refused, e.image // which must not run
		}
	}
	testkit.Value(s.core.Pods(p.Namespace).UpdateEphemeralContainers(s.Context(), p.Name, p, metav1.UpdateOptions{}))(s)
	if !host.Within(patience, func() bool {
		for _, c := range s.look(o).pod.Status.EphemeralContainerStatuses {
			denied, w := left[c.Name].denied, c.State.Waiting
			if denied == "" && c.State.Running != nil {
				delete(left, c.Name)
			} else if denied != "" && w != nil && regexp.MustCompile(denied).MatchString(w.Reason+": "+w.Message) {
				delete(left, c.Name)
			}
		}
		return len(left) == 0
	}) {
		s.Errorf("ephemeral containers %v are not as they must be: %v%s",
			left, o.pod.Status.EphemeralContainerStatuses, s.events(o.pod))
	}
	if o.state != running {
		s.Errorf("after the ephemeral containers: %s; want the pod still running", o)
	}
}

// comeStatic puts a static pod on the node and waits until the API server has the kubelet's copy of it.
func (s *scenario) comeStatic(p pod, want string) *outcome {
	s.Helper()
	made := s.manifest(p)
	o := &outcome{want: want, image: p.image}
	var err error
	copied := func() bool {
		name := made.Name + "-" + s.kubelet.Name()
		o.pod, err = s.core.Pods(made.Namespace).Get(s.Context(), name, metav1.GetOptions{})
		return !apierrors.IsNotFound(err)
	}
	if host.Within(patience, copied); err != nil {
		s.Fatalf("the API server has no copy of the static pod %s: %v", made.Name, err)
	}
	return o
}

func (s *scenario) leaveStatic(o *outcome) {
	s.Helper()
	s.must(s.kubelet.RemoveManifest(strings.TrimSuffix(o.pod.Name, "-"+s.kubelet.Name())))
}
