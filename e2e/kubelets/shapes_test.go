package kubelets_test

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// A container that ends is started again and again, with a check of its image each time. It continues
// while the registry is unavailable.
func crashLoop(s *scenario) {
	r := s.registry()
	app := s.push(r, "app:1", node.Image{Entrypoint: []string{"/bin/sh", "-c", "cat /content; sleep 1; exit 7"}})
	o := s.keep(step{name: "A's pod that ends at once", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, requests: downloads})
	s.must(r.Down())
	s.restarted(o, 2)
	s.runSteps(step{name: "B without a secret", pod: pod{team: "b", image: app}, want: pullFailed, message: `connection refused`})
	s.must(r.Up())
}

// restarted waits until the main container of a pod has been restarted a number of times.
func (s *scenario) restarted(o *outcome, times int32) {
	s.Helper()
	decided := func() bool { return s.look(o).restarts() >= times || o.state == pullFailed || o.state == neverPulled }
	if !host.Within(patience, decided) || o.restarts() < times {
		s.Fatalf("after %d restarts: %s%s; want %d restarts\n%s", o.restarts(), o, s.events(o.pod), times, s.lastOutput())
	}
}

// restarts returns how often the main container was restarted.
func (o *outcome) restarts() int32 { return o.pod.Status.ContainerStatuses[0].RestartCount }

// Init containers, and several containers with several images, are each judged by themselves.
func severalContainers(s *scenario) {
	app, prepare, free := s.private("app:1"), s.push(s.Private, "prepare:1", node.Image{Entrypoint: []string{"/bin/cat", "/content"}}), s.public("free:1")
	more := func(init, second node.Pushed) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "prepare", Image: init.Name, ImagePullPolicy: ifNotPresent, Command: []string{"/bin/cat", "/content"}}}
			p.Spec.Containers = append(
				p.Spec.Containers,
				corev1.Container{Name: "second", Image: second.Name, ImagePullPolicy: ifNotPresent},
				corev1.Container{Name: "third", Image: p.Spec.Containers[0].Image, ImagePullPolicy: ifNotPresent},
			)
		}
	}
	alice := with(node.Alice())
	s.runSteps(
		step{name: "A, three images", pod: pod{team: "a", image: app, secrets: alice, change: more(prepare, free)}, want: running, requests: downloads},
		step{name: "A again", pod: pod{team: "a", image: app, secrets: alice, change: more(prepare, free)}, want: running, requests: s.recheck()},
		step{name: "B, its main image another's", pod: pod{team: "b", image: app, change: more(free, free)}, want: pullFailed, requests: anything, message: denied},
		step{name: "B, its second image another's", pod: pod{team: "b", image: app, change: func(p *corev1.Pod) {
			more(free, app)(p)
			p.Spec.Containers[0].Image, p.Spec.Containers[2].Image = free.Name, free.Name
		}}, want: pullFailed, requests: refusals, message: denied},
		step{name: "B, its init image another's", pod: pod{team: "b", image: prepare, change: func(p *corev1.Pod) {
			more(prepare, free)(p)
			p.Spec.Containers[0].Image, p.Spec.Containers[2].Image = free.Name, free.Name
		}}, want: pullFailed, requests: refusals, message: denied},
	)
}

// An ephemeral container is judged like any other, on a pod that runs already.
func ephemeral(s *scenario) {
	app, free := s.private("app:1"), s.public("free:1")
	s.runSteps(step{name: "A, with its secret", pod: pod{team: "a", image: app, secrets: with(node.Alice())}, want: running, requests: downloads})
	debug := ephemeralContainer{name: "debug", image: app}
	for _, p := range []pod{{team: "a", image: free, secrets: with(node.Alice())}, {team: "b", image: free}} {
		s.addEphemeral(s.keep(step{name: "a pod of " + p.team, pod: p, want: running, requests: anything}), debug)
		debug.denied = pullFailed + "|ImagePullBackOff"
	}
}

// Who a container runs as is read from the image after the check. It stays what image and pod specify,
// also for a pod whose check was answered as if the image were absent.
func users(s *scenario) {
	number := s.push(s.Private, "number:1", node.Image{User: "4711:4711"})
	name := s.push(s.Private, "name:1", node.Image{User: "app"})
	root := s.push(s.Private, "root:1", node.Image{})
	nonRoot := func(p *corev1.Pod) {
		yes := true
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsNonRoot: &yes}
	}
	as := func(uid int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{RunAsUser: &uid} }
	}
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
			{root, "no USER, runAsUser 5000", as(5000), "5000"},
		} {
			s.runSteps(step{name: tc.how + again, pod: pod{team: "a", image: tc.image, secrets: with(node.Alice()), change: tc.change}, want: running, requests: anything, text: tc.uid})
		}
		s.runSteps(step{
			name: "no USER, runAsNonRoot" + again, pod: pod{team: "a", image: root, secrets: with(node.Alice()), change: nonRoot},
			want: "CreateContainerConfigError", requests: anything, message: "runAsNonRoot",
		})
	}
}

// An image that is mounted is judged like one that is run.
func imageVolumes(s *scenario) {
	data, free := s.push(s.Private, "data:1", node.Image{Files: map[string]string{"data": "the data of A\n"}}), s.public("free:1")
	mount := func(policy corev1.PullPolicy) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			c := &p.Spec.Containers[0]
			c.Image = free.Name
			c.Command = []string{"/bin/cat", "/mounted/data"}
			p.Spec.RestartPolicy = corev1.RestartPolicyNever
			p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: data.Name, PullPolicy: policy}}}}
			c.VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/mounted"}}
		}
	}
	alice := with(node.Alice())
	for _, st := range []step{
		{name: "A mounts it", pod: pod{team: "a", image: data, secrets: alice, change: mount(ifNotPresent)}, want: succeeded, requests: downloads, text: "the data of A"},
		{name: "C mounts it, with the same credential", pod: pod{team: "c", image: data, secrets: alice, change: mount(ifNotPresent)}, want: succeeded, text: "the data of A"},
		{name: "B mounts it without a secret", pod: pod{team: "b", image: data, change: mount(ifNotPresent)}, want: pullFailed, requests: refusals, message: denied},
		{name: "B mounts it without a secret, Never", pod: pod{team: "b", image: data, change: mount(never)}, want: neverPulled},
	} {
		o := s.keep(st)
		if st.want != succeeded && slices.ContainsFunc(o.pod.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.ContainerID != "" }) {
			s.Errorf("%s: a container was made", st.name)
		}
		s.drop(o)
	}
}
