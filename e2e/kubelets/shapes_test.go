package kubelets_test

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// A container that ends is started again, with a check of its image each time, also while the registry is unavailable.
func crashLoop(s *scenario) {
	r := s.registry()
	app := s.push(r, "app:1", imageThatEndsSoon())
	o := s.keep(runs("A's pod that ends at once", use("a", app, alice), downloads))
	s.must(r.Down())
	s.restarted(o, 2)
	s.runSteps(fails("B without a secret", use("b", app), `connection refused`))
	s.must(r.Up())
}

func (s *scenario) restarted(o *outcome, times int32) {
	s.Helper()
	decided := func() bool { return s.look(o).restarts() >= times || o.state == pullFailed || o.state == neverPulled }
	if !host.Within(patience, decided) || o.restarts() < times {
		s.Fatalf("after %d restarts: %s%s; want %d restarts", o.restarts(), o, s.events(o.pod), times)
	}
}

func (o *outcome) restarts() int32 { return o.pod.Status.ContainerStatuses[0].RestartCount }

// Init containers, and several containers with several images, are each judged by themselves.
func severalContainers(s *scenario) {
	cat := []string{"/bin/cat", "/content"}
	app, free := s.private("app:1"), s.public("free:1")
	prepare := s.push(s.Private, "prepare:1", node.Image{Entrypoint: cat})
	more := func(init, second node.Pushed) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{containerOf("prepare", init)}
			p.Spec.InitContainers[0].Command = cat
			third := p.Spec.Containers[0]
			third.Name = "third"
			p.Spec.Containers = append(p.Spec.Containers, containerOf("second", second), third)
		}
	}
	publicMain := func(init, second node.Pushed) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Containers[0].Image = free.Name
			more(init, second)(p)
		}
	}
	other := refuses("B, its main image another's", use("b", app).but(more(free, free)))
	other.requests = anything
	s.runSteps(
		runs("A, three images", use("a", app, alice).but(more(prepare, free)), downloads),
		runs("A again", use("a", app, alice).but(more(prepare, free)), s.recheck()),
		other,
		refuses("B, its second image another's", use("b", app).but(publicMain(free, app))),
		refuses("B, its init image another's", use("b", prepare).but(publicMain(prepare, free))),
	)
}

func containerOf(name string, image node.Pushed) corev1.Container {
	return corev1.Container{Name: name, Image: image.Name, ImagePullPolicy: ifNotPresent}
}

// An ephemeral container is judged like any other, on a pod that runs already.
func ephemeral(s *scenario) {
	app, free := s.private("app:1"), s.public("free:1")
	s.runSteps(runs("A, with its secret", use("a", app, alice), downloads))
	debug := ephemeralContainer{name: "debug", image: app}
	for _, p := range []pod{use("a", free, alice), use("b", free)} {
		s.addEphemeral(s.keep(runs("a pod of "+p.team, p, anything)), debug)
		debug.denied = pullFailed + "|ImagePullBackOff"
	}
}

// The user of a container stays what image and pod specify, also if the pre-check did not show the image.
func users(s *scenario) {
	number := s.push(s.Private, "number:1", node.Image{User: "4711:4711"})
	name := s.push(s.Private, "name:1", node.Image{User: "app"})
	root := s.push(s.Private, "root:1", node.Image{})
	nonRoot := onContainer(func(c *corev1.SecurityContext) { c.RunAsNonRoot = new(true) })
	for _, again := range []string{"", ", its proof known"} {
		for _, tc := range []struct {
			image  node.Pushed
			how    string
			change func(*corev1.Pod)
			uid    string
		}{
			{number, "USER 4711", nil, "4711"},
			{number, "USER 4711, runAsNonRoot", nonRoot, "4711"},
			{name, "USER app", nil, "4711"},
			{root, "no USER", nil, "0"},
			{root, "no USER, runAsUser 5000", runAs(5000), "5000"},
		} {
			s.runSteps(runs(tc.how+again, use("a", tc.image, alice).but(tc.change), anything).prints(tc.uid))
		}
		s.runSteps(step{
			name: "no USER, runAsNonRoot" + again, pod: use("a", root, alice).but(nonRoot),
			want: "CreateContainerConfigError", requests: anything, message: "runAsNonRoot",
		})
	}
}

// An image that is mounted is judged like one that is run.
func imageVolumes(s *scenario) {
	const line = "the data of A"
	data := s.push(s.Private, "data:1", node.Image{Files: map[string]string{"data": line + "\n"}})
	free := s.public("free:1")
	mount := func(policy corev1.PullPolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.Image = free.Name
			c.Command = []string{"/bin/cat", "/mounted/data"}
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			mounts(imageVolume(data, policy), func(m *corev1.VolumeMount) { m.MountPath = "/mounted" })(p)
		}
	}
	ends := func(name string, p pod, requests string) step {
		return step{name: name, pod: p.but(mount(ifNotPresent)), want: succeeded, requests: requests, text: line}
	}
	for _, st := range []step{
		ends("A mounts it", use("a", data, alice), downloads),
		ends("C mounts it, with the same credential", use("c", data, alice), nothing),
		refuses("B mounts it without a secret", use("b", data).but(mount(ifNotPresent))),
		hides("B mounts it without a secret, Never", use("b", data).but(mount(never))),
	} {
		o := s.keep(st)
		if c := o.pod.Status.ContainerStatuses; st.want != succeeded && len(c) > 0 && c[0].ContainerID != "" {
			s.Errorf("%s: a container was made", st.name)
		}
		s.drop(o)
	}
}
