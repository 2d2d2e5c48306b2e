package kubelets_test

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/e2e/cluster"
	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

const (
	always       = corev1.PullAlways
	ifNotPresent = corev1.PullIfNotPresent
	never        = corev1.PullNever
)

const (
	running     = "Running"
	succeeded   = "Succeeded"
	pullFailed  = "ErrImagePull"
	neverPulled = "ErrImageNeverPull"
	unavailable = "RegistryUnavailable"
)

// The requests for an image that the registry has answered.
const (
	anything  = "anything"
	nothing   = "nothing"
	manifest  = "one manifest" // asked for and given, after it asked who is there
	refusals  = "refusals"     // asked for and not given
	downloads = "the image"    // manifest and blobs
)

// patience is how long a pod may take to get to its expected state.
const patience = 3 * time.Minute

// A scenario is one test on one node. It has images and namespaces of its own.
type scenario struct {
	*testing.T
	*machine
	name string
	kept []*outcome
	pods int
	// registries are those that only this scenario uses.
	registries []*node.Registry
	policies   string // the policy folder
}

var alice, dora, mallory = node.Alice(), node.Dora(), node.Mallory()

// A pod is one to be created. It runs one container unless change changes that.
type pod struct {
	team     string
	image    node.Pushed
	policy   corev1.PullPolicy // IfNotPresent if empty
	logins   []node.Login      // in a pull secret each
	registry string            // that the secrets are for; that of the image if empty
	change   func(p *corev1.Pod)
}

func use(team string, image node.Pushed, logins ...node.Login) pod {
	return pod{team: team, image: image, logins: logins}
}

func (p pod) pulls(policy corev1.PullPolicy) pod { p.policy = policy; return p }

func (p pod) but(change func(*corev1.Pod)) pod { p.change = change; return p }

type step struct {
	name     string
	pod      pod
	want     string
	requests string // of the registry; nothing if empty
	message  string // a pattern that status and events match, if not empty
	text     string // that the pod's main container prints, if not empty
}

// runs is the step of a pod that runs after some requests.
func runs(name string, p pod, requests string) step {
	return step{name: name, pod: p, want: running, requests: requests}
}

// refuses is the step of a pod whose pull the registry refuses.
func refuses(name string, p pod) step {
	return step{name: name, pod: p, want: pullFailed, requests: refusals, message: denied}
}

// fails is the step of a pod whose pull fails, with a message, before the registry has a request.
func fails(name string, p pod, message string) step {
	return step{name: name, pod: p, want: pullFailed, message: message}
}

// hides is the step of a pod with the pull policy Never for which the image is not present.
func hides(name string, p pod) step { return step{name: name, pod: p, want: neverPulled} }

func (s step) says(message string) step { s.message = message; return s }

func (s step) prints(text string) step { s.text = text; return s }

type outcome struct {
	want, state string
	text        string      // messages of the kubelet in the pod's status and in events
	image       node.Pushed // that is judged
	pod         *corev1.Pod
}

// runSteps runs steps one after the other. Each pod is deleted before the next one is created.
func (s *scenario) runSteps(steps ...step) {
	s.Helper()
	for _, st := range steps {
		s.drop(s.keep(st))
	}
}

// runStepsAtOnce runs steps in parallel. No request to the registry is expected for them.
func (s *scenario) runStepsAtOnce(steps ...step) {
	s.Helper()
	var since []int
	var made []*corev1.Pod
	for _, st := range steps {
		since = append(since, s.registryOf(st.pod.image).Mark())
		made = append(made, s.create(st.pod))
	}
	var all []*outcome
	for i, st := range steps {
		all = append(all, s.see(st, made[i], since[i]))
	}
	for _, o := range all {
		s.drop(o)
	}
}

// keep runs one step and leaves the pod on the node, until drop or the end of the scenario.
func (s *scenario) keep(st step) *outcome {
	s.Helper()
	since := s.registryOf(st.pod.image).Mark()
	return s.see(st, s.create(st.pod), since)
}

// see waits until a step's pod has the expected outcome, or another final one.
func (s *scenario) see(st step, p *corev1.Pod, since int) *outcome {
	s.Helper()
	st.requests = cmp.Or(st.requests, nothing)
	o := &outcome{want: st.want, pod: p, image: st.pod.image}
	s.kept = append(s.kept, o)
	host.Within(patience, func() bool { return s.look(o).state != "" && (o.state != running || st.want != succeeded) })
	says, status := regexp.MustCompile(st.message), o.text
	host.Within(patience, func() bool { // events follow the status
		o.text = status + s.events(p)
		return o.state != st.want || says.MatchString(o.text)
	})
	if strings.Contains(o.text, "FailedToRetrieveImagePullSecret") {
		s.Fatalf("%s: the kubelet did not get the pod's secret, so that nothing is proved: %s", st.name, o)
	}
	if o.state != st.want {
		s.Fatalf("%s: %s; want %s", st.name, o, st.want)
	}
	if !says.MatchString(o.text) {
		s.Errorf("%s: the kubelet reports %q; want it to match %s", st.name, o.text, st.message)
	}
	if st.text != "" {
		s.prints(o, "main", st.text)
	}
	requests := s.registryOf(st.pod.image).Requests(since, st.pod.image.Repository)
	if got := asked(requests); st.requests != anything && got != st.requests {
		s.Errorf("%s asked the registry for %s: %v; want %s", st.name, got, requests, st.requests)
	}
	return o
}

func (s *scenario) prints(o *outcome, container, line string) {
	s.Helper()
	got := ""
	printed := func() bool {
		got = testkit.Value(s.kubelet.Output(o.pod.Namespace, o.pod.Name, string(o.pod.UID), container))(s)
		return slices.Contains(strings.Split(got, "\n"), line)
	}
	if !host.Within(patience, printed) {
		s.Errorf("container %s of %s/%s prints %q; want the line %q", container, o.pod.Namespace, o.pod.Name, got, line)
	}
}

func (s *scenario) registryOf(image node.Pushed) *node.Registry {
	for _, r := range s.registries {
		if strings.HasPrefix(image.Name, r.Host()) {
			return r
		}
	}
	if strings.HasPrefix(image.Name, s.Public.Host()) {
		return s.Public
	}
	return s.Private
}

func asked(requests []node.Request) string {
	given, blobs := 0, false
	for _, r := range requests {
		if strings.HasPrefix(r.Status, "2") {
			blobs = blobs || strings.Contains(r.Path, "/blobs/")
			given++
		}
	}
	switch {
	case len(requests) == 0:
		return nothing
	case blobs:
		return downloads
	case given == 0:
		return refusals
	case given == 1:
		return manifest
	}
	return fmt.Sprintf("%d manifests", given)
}

func (s *scenario) namespace(team string) string {
	return strings.ToLower(s.name + "-" + team + "-" + s.kubelet.Name())
}

// create creates a pod, and its namespace and secrets as far as they are missing.
func (s *scenario) create(p pod) *corev1.Pod {
	s.Helper()
	s.pods++
	made := s.spec(fmt.Sprintf("pod-%d", s.pods), p)
	s.makeNamespace(made.Namespace)
	for i, l := range p.logins {
		registry, _, _ := strings.Cut(p.image.Name, "/")
		name := made.Spec.ImagePullSecrets[i].Name
		object := cluster.PullSecret(name, cmp.Or(p.registry, registry), l.Username, l.Password)
		_, err := s.core.Secrets(made.Namespace).Create(s.Context(), object, metav1.CreateOptions{})
		s.mustExist(err)
	}
	return testkit.Value(s.core.Pods(made.Namespace).Create(s.Context(), made, metav1.CreateOptions{}))(s)
}

func (s *scenario) makeNamespace(name string) {
	s.Helper()
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	_, err := s.core.Namespaces().Create(s.Context(), object, metav1.CreateOptions{})
	s.mustExist(err)
}

func (s *scenario) mustExist(err error) {
	s.Helper()
	if err != nil && !apierrors.IsAlreadyExists(err) {
		s.Fatal(err)
	}
}

func (s *scenario) spec(name string, p pod) *corev1.Pod {
	no, soon := false, int64(1)
	made := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace(p.team)},
		Spec: corev1.PodSpec{
			NodeName: s.kubelet.Name(), HostNetwork: true,
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &soon,
			Containers: []corev1.Container{
				{Name: "main", Image: p.image.Name, ImagePullPolicy: cmp.Or(p.policy, ifNotPresent)},
			},
		},
	}
	for _, l := range p.logins {
		name := "pull-" + l.Username
		if p.registry != "" {
			name += "-elsewhere"
		}
		made.Spec.ImagePullSecrets = append(made.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: name})
	}
	if p.change != nil {
		p.change(made)
	}
	return made
}

func (s *scenario) look(o *outcome) *outcome {
	s.Helper()
	o.pod = testkit.Value(s.core.Pods(o.pod.Namespace).Get(s.Context(), o.pod.Name, metav1.GetOptions{}))(s)
	o.state, o.text = stateOf(o.pod)
	return o
}

// notConnected matches the error that a kubelet reports for up to 3 s after a restart of pullgated, until gRPC retries.
var notConnected = regexp.MustCompile(`code = Unavailable desc = (connection error|error reading from server)`)

// stateOf returns the state of a pod in one word, "" if it is not decided yet.
func stateOf(p *corev1.Pod) (state, text string) {
	up := 0
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil {
			switch {
			case w.Reason == "", w.Reason == "ContainerCreating", w.Reason == "PodInitializing":
			case notConnected.MatchString(w.Message): // the kubelet retries
			case betweenRuns(c):
			case w.Reason == "ImagePullBackOff": // what comes between two tries
				return pullFailed, w.Message
			default:
				return w.Reason, w.Message
			}
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running != nil || betweenRuns(c) {
			up++
		}
	}
	if up == len(p.Spec.Containers) {
		return running, ""
	}
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return string(p.Status.Phase), p.Status.Reason + " " + p.Status.Message
	}
	return "", ""
}

// endsSoon is the end of the command of a container that the kubelet is to start again and again.
const endsSoon = "sleep 1; exit 7"

func imageThatEndsSoon() node.Image {
	return node.Image{Entrypoint: []string{"/bin/sh", "-c", "cat /content; " + endsSoon}}
}

// betweenRuns reports whether a container with endsSoon has ended, and the kubelet waits before it starts it again. Its
// first runs may be so short that the API server never has them as running.
func betweenRuns(c corev1.ContainerStatus) bool {
	w, ended := c.State.Waiting, c.LastTerminationState.Terminated
	return w != nil && w.Reason == "CrashLoopBackOff" && ended != nil && ended.ExitCode == 7
}

func (s *scenario) events(p *corev1.Pod) string {
	of := metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(p.UID)}
	list, err := s.core.Events(p.Namespace).List(s.Context(), of)
	if err != nil {
		return "\nevents: " + err.Error()
	}
	text := ""
	for _, e := range list.Items {
		text += "\n" + e.Reason + ": " + e.Message
	}
	return text
}

func (o *outcome) String() string {
	return fmt.Sprintf("%s/%s is %s: %s", o.pod.Namespace, o.pod.Name, cmp.Or(o.state, "not decided"), o.text)
}

// drop deletes a pod, after a last look whether one that was refused has run all the same.
func (s *scenario) drop(o *outcome) {
	s.Helper()
	s.kept = slices.DeleteFunc(s.kept, func(k *outcome) bool { return k == o })
	s.neverRan(o)
	// The scenario may be at its end, and its context with it.
	now, ctx := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}, context.WithoutCancel(s.Context())
	err := s.core.Pods(o.pod.Namespace).Delete(ctx, o.pod.Name, now)
	if err != nil && !apierrors.IsNotFound(err) {
		s.Error(err)
	}
}

func (s *scenario) neverRan(o *outcome) {
	s.Helper()
	if o.want == running || o.want == succeeded {
		return
	}
	p, err := s.core.Pods(o.pod.Namespace).Get(context.WithoutCancel(s.Context()), o.pod.Name, metav1.GetOptions{})
	if err != nil {
		s.Error(err)
		return
	}
	of := &p.Status
	for _, c := range slices.Concat(of.InitContainerStatuses, of.ContainerStatuses, of.EphemeralContainerStatuses) {
		if image := imageOf(p, c.Name); image == o.image.Name && (c.ContainerID != "" || c.RestartCount > 0) {
			s.Errorf("container %s of %s/%s has run; want %s for ever", c.Name, p.Namespace, p.Name, o.want)
		}
	}
}

func imageOf(p *corev1.Pod, container string) string {
	all := slices.Concat(p.Spec.InitContainers, p.Spec.Containers)
	for _, e := range p.Spec.EphemeralContainers {
		all = append(all, corev1.Container(e.EphemeralContainerCommon))
	}
	for _, c := range all {
		if c.Name == container {
			return c.Image
		}
	}
	return ""
}

func (s *scenario) private(name string) node.Pushed { return s.push(s.Private, name, node.Image{}) }

func (s *scenario) public(name string) node.Pushed { return s.push(s.Public, name, node.Image{}) }

func (s *scenario) push(r *node.Registry, name string, i node.Image) node.Pushed {
	s.Helper()
	i.Content = cmp.Or(i.Content, s.Name()+name)
	return testkit.Value(r.Push(s.Context(), s.name+"/"+name, i))(s)
}

func (s *scenario) must(errs ...error) {
	s.Helper()
	testkit.Must(s, errs...)
}

// Fatal is that of the test, with what the parts of the node printed last; so are the others.
func (s *scenario) Fatal(args ...any) {
	s.Helper()
	s.T.Fatal(append(args, "\n"+s.lastOutput())...)
}

func (s *scenario) Fatalf(format string, args ...any) {
	s.Helper()
	s.Fatal(fmt.Sprintf(format, args...))
}

func (s *scenario) Errorf(format string, args ...any) {
	s.Helper()
	s.Error(fmt.Sprintf(format, args...) + "\n" + s.lastOutput())
}

// registry starts a registry for this scenario alone, so that its failures do not disturb others.
func (s *scenario) registry() *node.Registry {
	s.Helper()
	r := testkit.Value(node.StartRegistry(s.Context(), filepath.Join(s.Dir, "registry-of-"+s.name), alice, dora))(s)
	s.registries = append(s.registries, r)
	host.AtEnd(s, r.Close)
	return r
}

func (s *scenario) gone(team string) {
	s.Helper()
	k := s.runtimeClient()
	left := func() []string { return testkit.Value(k.ReadySandboxes(s.Context(), s.namespace(team)))(s) }
	if !host.Within(patience, func() bool { return len(left()) == 0 }) {
		s.Fatalf("pods of %s are still on the node", team)
	}
}

func (s *scenario) metric(name string) float64 {
	s.Helper()
	return testkit.Value(s.gate.Metric(name))(s)
}
