package kubelets_test

import (
	"os"
	"path/filepath"

	"github.com/pullgate/pullgate/e2e/hookserver"
)

// hookRestarts shows that a node with a hook that runs in the cluster starts again. The hook answers only while its pod
// runs. Static pods, the pod of the hook and what ran before start without it. Another pod waits for it, or starts, as
// the failurePolicy says.
// Shows: 004-32
func hookRestarts(s *scenario) {
	app := s.public("app:1")
	r := s.newReviewing()
	closed, open, own := r.namespace("closed"), r.namespace("open"), r.namespace("hooks")
	hook := hookserver.New(s, filepath.Join(r.policyd.Dir(), "hook.sock"))
	s.must(os.WriteFile(filepath.Join(s.policies, "hooks.yaml"), hook.File("restarts", "",
		hookserver.Hook{Name: "closed", Fields: hookserver.Except(own, open)},
		hookserver.Hook{Name: "open", Fields: hookserver.Only(open) + ", failurePolicy: Ignore, timeoutSeconds: 1"},
	), 0o644))
	r.hangup()
	r.pull(app)
	r.enforce()
	before := map[string]*outcome{
		"the hook": r.come(use("hooks", app), running), "a pod that the hook allowed": r.come(use("closed", app), running),
		"a static pod": r.comeStatic(use("closed", app), running),
	}
	for name, o := range before {
		r.runs(name, o)
		r.look(o)
	}
	pod := before["a pod that the hook allowed"].pod.Name
	if by := hook.Taken(pod); by != "closed" {
		s.Errorf("hooks %q were asked about %s; want closed", by, pod)
	}

	hook.Stop()
	s.powerCycle()
	for name, o := range before {
		s.Logf("%s starts again", name)
		s.replaced(o, "a reboot")
	}
	fresh := r.come(use("closed", app), running)
	r.isDenied("a new pod without the hook", fresh,
		`pullgate: pod `+closed+`/\S+: hook restarts/closed gave no valid answer, after \S+: .*; denied`)
	ignored := r.come(use("open", app), running)
	r.runs("a new pod, failurePolicy Ignore", ignored)
	r.markedFailedOpen("a new pod, failurePolicy Ignore", ignored, true)
	hook.Start(s)
	r.runs("a new pod with the hook", fresh)
	if by := hook.Taken(pod); by != "" {
		s.Errorf("hooks %q were asked about %s, which had started before the reboot", by, pod)
	}
	s.leaveStatic(before["a static pod"])
	s.dropAll()
}
