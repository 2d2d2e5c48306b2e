package kubelets_test

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

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

// The states of a pod.
const (
	running     = "Running"
	succeeded   = "Succeeded"
	pullFailed  = "ErrImagePull"
	neverPulled = "ErrImageNeverPull"
	unavailable = "RegistryUnavailable"
)

// The requests for an image in the access log of the registry.
const (
	anything  = "anything"
	nothing   = "nothing"
	manifest  = "one manifest" // asked for and given, after it asked who is there
	refusals  = "refusals"     // asked for and not given
	downloads = "the image"    // manifest and blobs
)

// patience is how long a pod may take to get to its expected state.
const patience = 90 * time.Second

// A scenario is one test on one node. It has images and namespaces of its own.
type scenario struct {
	*testing.T
	*machine
	name string
	kept []*outcome
	pods int
	// registries are those that only this scenario uses.
	registries []*node.Registry
}

// A secret is one that a pod names, for a registry.
type secret struct {
	login    node.Login
	registry string // host; that of the image if empty
	name     string // "" makes one up for each login
}

func with(logins ...node.Login) []secret {
	var all []secret
	for _, l := range logins {
		all = append(all, secret{login: l})
	}
	return all
}

// A pod is one to be created. It runs one container unless change changes that.
type pod struct {
	team    string
	image   node.Pushed
	policy  corev1.PullPolicy // IfNotPresent if empty
	secrets []secret
	change  func(p *corev1.Pod)
}

// A step is one pod to create, and its expected outcome.
type step struct {
	name     string
	pod      pod
	want     string
	requests string // of the registry; nothing if empty
	message  string // a pattern that status and events match, if not empty
	text     string // that the pod's main container prints, if not empty
}

// An outcome is the result of a step.
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
		o := s.keep(st)
		s.drop(o)
	}
}

// runStepsAtOnce runs steps in parallel. No request to the registry is expected for them.
func (s *scenario) runStepsAtOnce(steps ...step) {
	s.Helper()
	var since []node.Mark
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

// see waits until a step's pod has the expected outcome.
func (s *scenario) see(st step, p *corev1.Pod, since node.Mark) *outcome {
	s.Helper()
	if st.requests == "" {
		st.requests = nothing
	}
	registry := s.registryOf(st.pod.image)
	o := s.wait(p, st.pod.image, st.want)
	if strings.Contains(o.text, "FailedToRetrieveImagePullSecret") {
		s.Fatalf("%s: the kubelet did not get the pod's secret, so that nothing is proved: %s", st.name, o)
	}
	if o.state != st.want {
		s.Fatalf("%s: %s; want %s\n%s", st.name, o, st.want, s.lastOutput())
	}
	if !regexp.MustCompile(st.message).MatchString(o.text) {
		s.Errorf("%s: the kubelet reports %q; want it to match %s", st.name, o.text, st.message)
	}
	if st.text != "" {
		s.prints(o, "main", st.text)
	}
	registry.Mark()
	requests := registry.Requests(since, st.pod.image.Repository)
	if got := asked(requests); st.requests != anything && got != st.requests {
		s.Errorf("%s asked the registry for %s: %v; want %s\n%s", st.name, got, requests, st.requests, s.lastOutput())
	}
	return o
}

// prints waits until a container of a pod has printed a line.
func (s *scenario) prints(o *outcome, container, line string) {
	s.Helper()
	got := ""
	printed := func() bool {
		var err error
		got, err = s.kubelet.Output(o.pod.Namespace, o.pod.Name, string(o.pod.UID), container)
		s.must(err)
		return slices.Contains(strings.Split(got, "\n"), line)
	}
	if !host.Within(10*time.Second, printed) {
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

// asked describes some requests.
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

// namespace returns that of a team in this scenario.
func (s *scenario) namespace(team string) string {
	return strings.ToLower(s.name + "-" + team + "-" + s.kubelet.Name())
}

// create creates a pod, and its namespace and secrets as far as they are missing.
func (s *scenario) create(p pod) *corev1.Pod {
	s.Helper()
	s.pods++
	made := s.spec(fmt.Sprintf("pod-%d", s.pods), p)
	core := s.cluster.Client.CoreV1()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: made.Namespace}}
	if _, err := core.Namespaces().Create(s.Context(), ns, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		s.Fatal(err)
	}
	for i, sec := range p.secrets {
		if sec.registry == "" {
			sec.registry, _, _ = strings.Cut(p.image.Name, "/")
		}
		object := cluster.PullSecret(made.Spec.ImagePullSecrets[i].Name, sec.registry, sec.login.Username, sec.login.Password)
		if _, err := core.Secrets(made.Namespace).Create(s.Context(), object, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			s.Fatal(err)
		}
	}
	made, err := core.Pods(made.Namespace).Create(s.Context(), made, metav1.CreateOptions{})
	s.must(err)
	return made
}

// spec is what is sent to the API server for a pod.
func (s *scenario) spec(name string, p pod) *corev1.Pod {
	if p.policy == "" {
		p.policy = ifNotPresent
	}
	no, soon := false, int64(1)
	made := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.namespace(p.team)},
		Spec: corev1.PodSpec{
			NodeName: s.kubelet.Name(), HostNetwork: true,
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			AutomountServiceAccountToken: &no, EnableServiceLinks: &no, TerminationGracePeriodSeconds: &soon,
			Containers: []corev1.Container{{Name: "main", Image: p.image.Name, ImagePullPolicy: p.policy}},
		},
	}
	for _, sec := range p.secrets {
		if sec.name == "" {
			sec.name = "pull-" + sec.login.Username
			if sec.registry != "" {
				sec.name += "-elsewhere"
			}
		}
		made.Spec.ImagePullSecrets = append(made.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: sec.name})
	}
	if p.change != nil {
		p.change(made)
	}
	return made
}

// wait waits until a pod has the expected state, or another final one.
func (s *scenario) wait(p *corev1.Pod, image node.Pushed, want string) *outcome {
	s.Helper()
	o := &outcome{want: want, pod: p, image: image}
	s.kept = append(s.kept, o)
	host.Within(patience, func() bool { return s.look(o).state != "" && (o.state != running || want != succeeded) })
	o.text += s.events(p)
	return o
}

// look reads the present outcome of a pod, and returns it.
func (s *scenario) look(o *outcome) *outcome {
	s.Helper()
	p, err := s.cluster.Client.CoreV1().Pods(o.pod.Namespace).Get(s.Context(), o.pod.Name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	o.pod = p
	o.state, o.text = stateOf(p)
	return o
}

// notConnected matches what a kubelet reports after a restart of pullgated until it connects again, up to 3 s later: a
// gRPC client repeats the last error of its connection while it backs off.
var notConnected = regexp.MustCompile(`code = Unavailable desc = (connection error|error reading from server)`)

// stateOf returns the state of a pod in one word, "" if it is not decided yet.
func stateOf(p *corev1.Pod) (state, text string) {
	up := 0
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil {
			switch {
			case w.Reason == "", w.Reason == "ContainerCreating", w.Reason == "PodInitializing":
			case notConnected.MatchString(w.Message): // the kubelet retries
			case w.Reason == "ImagePullBackOff": // what comes between two tries
				return pullFailed, w.Message
			default:
				return w.Reason, w.Message
			}
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running != nil {
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

// events are the messages of a pod's events.
func (s *scenario) events(p *corev1.Pod) string {
	list, err := s.cluster.Client.CoreV1().Events(p.Namespace).List(s.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(p.UID)})
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
	state := o.state
	if state == "" {
		state = "not decided"
	}
	return fmt.Sprintf("%s/%s is %s: %s", o.pod.Namespace, o.pod.Name, state, o.text)
}

// drop deletes a pod, after a last look whether one that was refused has run all the same.
func (s *scenario) drop(o *outcome) {
	s.Helper()
	s.kept = slices.DeleteFunc(s.kept, func(k *outcome) bool { return k == o })
	s.neverRan(o)
	now := int64(0)
	// The scenario may be at its end, and its context with it.
	err := s.cluster.Client.CoreV1().Pods(o.pod.Namespace).Delete(context.WithoutCancel(s.Context()), o.pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil && !apierrors.IsNotFound(err) {
		s.Error(err)
	}
}

func (s *scenario) neverRan(o *outcome) {
	s.Helper()
	if o.want == running || o.want == succeeded {
		return
	}
	p, err := s.cluster.Client.CoreV1().Pods(o.pod.Namespace).Get(context.WithoutCancel(s.Context()), o.pod.Name, metav1.GetOptions{})
	if err != nil {
		s.Error(err)
		return
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses) {
		if image := imageOf(p, c.Name); image == o.image.Name && (c.ContainerID != "" || c.RestartCount > 0) {
			s.Errorf("container %s of %s/%s has run; want %s for ever", c.Name, p.Namespace, p.Name, o.want)
		}
	}
}

// imageOf is the image that a container of a pod asks for.
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

// private pushes an image that alice and dora may pull.
func (s *scenario) private(name string) node.Pushed {
	s.Helper()
	return s.push(s.Private, name, node.Image{})
}

// public pushes an image that needs no credential.
func (s *scenario) public(name string) node.Pushed {
	s.Helper()
	return s.push(s.Public, name, node.Image{})
}

// push pushes an image to a registry. Those that need no credential get the login as well.
func (s *scenario) push(r *node.Registry, name string, i node.Image) node.Pushed {
	s.Helper()
	if i.Content == "" {
		i.Content = s.Name() + name
	}
	alice := node.Alice()
	p, err := s.Push(s.Context(), r, s.name+"/"+name, i, &alice)
	if err != nil {
		s.Fatal(err)
	}
	return p
}

func (s *scenario) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%v\n%s", err, s.lastOutput())
	}
}

// registry starts a registry for this scenario alone, so that its failures do not disturb others.
func (s *scenario) registry() *node.Registry {
	s.Helper()
	r, err := node.StartRegistry(s.Context(), filepath.Join(s.Dir, "registry-of-"+s.name), node.Alice(), node.Dora())
	s.must(err)
	s.registries = append(s.registries, r)
	host.AtEnd(s, r.Close)
	return r
}
