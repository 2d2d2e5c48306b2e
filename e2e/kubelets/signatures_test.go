package kubelets_test

import (
	"strings"
	"time"

	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"

	"github.com/pullgate/pullgate/e2e/host"
	"github.com/pullgate/pullgate/e2e/node"
)

// A pod whose image is signed as the policy requires runs. One with an unsigned image waits with a reason that says so,
// and runs without further action once the image is signed. An unsigned image that a pod without the policy has pulled
// does not run either, nor do pods with the policy Never, static pods, ephemeral containers and image volumes with it.
// Shows: 002-52
func signatures(s *scenario) {
	r := s.newSigner()
	good, bad, late, cached := s.private("good:1"), s.private("bad:1"), s.private("late:1"), s.private("cached:1")
	free, freeBad := s.public("free:1"), s.public("free-bad:1")
	multi := r.index("multi:1")
	r.sign(r.key, good, free, multi)
	r.require(r.key, "a", "static")
	r.enforce("exempt: {staticPods: false}")
	r.secret("static") // and its namespace
	began := time.Now()

	// Each step that has to wait for something comes before those that do not.
	later := r.come(by("a", late), running)
	other := r.come(by("b", cached), running)
	waits := r.come(by("a", bad), refused)
	staticBad := r.comeStatic(use("static", freeBad), refused)
	static := r.comeStatic(use("static", free), running)
	signed := r.come(by("a", good), running)
	platforms := r.come(by("a", multi), running)
	r.isUnsigned("later signed, before that", later)
	r.sign(r.key, late)
	since := time.Now()
	r.runs("signed", signed)
	r.runs("multi-architecture image", platforms)
	r.runs("in a namespace without the policy", other)
	again := r.come(by("a", cached), refused)
	volume, badVolume := r.comeWithVolumes(by("a", good), bad)

	r.isUnsigned("unsigned", waits)
	r.isUnsigned("the unsigned image that another team has pulled", again)
	r.runs("static pod", static)
	r.isUnsigned("unsigned static pod", staticBad)
	signedNever, badNever := r.come(use("a", free).pulls(never), running), r.come(use("a", freeBad).pulls(never), refused)
	r.runs("signed, Never", signedNever)
	r.isNeverUnsigned("unsigned, Never", badNever)
	r.addEphemeral(signed, ephemeralContainer{name: "allowed", image: good},
		ephemeralContainer{name: "denied", image: bad, denied: unverified + "|signature validation failed"})
	if volume != nil {
		r.runs("image volume", volume)
		r.isUnsigned("unsigned image volume", badVolume)
	}
	r.runs("later signed", later)
	s.Logf("rows after %v; a pod ran %v after its image was signed", time.Since(began), time.Since(since))
	s.leaveStatic(static)
	s.leaveStatic(staticBad)
	s.dropAll()
}

// Running pods and their restarts are not affected when the key in the policy is exchanged; new pods need a signature
// with the new one, which is verified once. With recheckRestarts restarts need it too. After a reboot, while registry,
// network and pullgate-policyd are down, everything that has an endorsement starts, and nothing else does.
func signedRestarts(s *scenario) {
	const (
		exchange = "an exchange of the key"
		recheck  = "recheckRestarts"
		reboot   = "a reboot"
	)
	registry := s.registry()
	push := func(name string) node.Pushed { return s.push(registry, name, node.Image{}) }
	app, bad, other := push("app:1"), push("bad:1"), push("other:1")
	r := s.newSigner()
	r.sign(r.key, app, other)
	r.require(r.key, "a")
	r.enforce()
	stay := s.stay(by("a", app), anything, exchange, recheck, reboot)
	plain := r.come(by("b", bad), running) // so that the unsigned image is on the node
	r.runs("in a namespace without the policy", plain)
	s.drop(plain)

	second := sigstoretest.NewKey(s.T)
	r.require(second, "a")
	s.reload()
	fresh := r.come(by("a", app), running)
	s.restartsIn(stay, exchange)
	r.isUnsigned("new, after "+exchange, fresh)
	r.sign(second, app)
	r.runs("new, signed with the second key", fresh)
	before := r.verifications()
	both := []*outcome{r.come(by("a", app), running), r.come(by("a", app), running)}
	for _, o := range both {
		r.runs("new, after the first one", o)
	}
	if n := r.verifications() - before; n != 0 {
		r.Errorf("%v verifications of an image that has the endorsement; want none", n)
	}

	third := sigstoretest.NewKey(s.T)
	r.require(third, "a")
	r.configure("recheckRestarts: true")
	s.killIn(stay, recheck, func(o *outcome) { s.waitForEvent(o.pod, `SignatureValidationFailed`) })
	r.sign(third, app)
	r.runs("restarted with "+recheck, stay[recheck])

	r.configure()
	fresh = r.come(by("a", app), running)
	r.runs("new, signed with the third key", fresh)
	s.must(registry.Down())
	s.must(r.policyd.Close())
	s.powerCycle()
	defer func() { s.must(r.policyd.Reopen(s.Context())) }() // which the end of the scenario closes
	started := r.come(by("a", app), running)
	refusedOnes := map[string]*outcome{
		"unsigned":        r.come(by("a", bad), refused),
		"unsigned, Never": r.come(use("a", bad, alice).pulls(never), refused),
		"not on the node": r.come(by("a", other), refused),
	}
	for _, o := range stay {
		s.replaced(o, reboot)
	}
	r.runs("new, after "+reboot, started)
	for name, o := range refusedOnes {
		r.isDenied(name+", after "+reboot, o, `RegistryUnavailable|SignatureValidationFailed|ErrImagePull|ErrImageNeverPull`)
	}
}

// A pod whose image has a fresh scan without findings runs. A newer scan is found in the background, so that pods start
// after the first scan got too old, without the registry. When the newest scan is too old, new pods wait, those that
// run continue, and a newer scan starts the others. While the registry is down, new pods start only with a grace, which
// ends when it is back.
func scanned(s *scenario) {
	const fresh = 90 * time.Second
	registry := s.registry()
	app, bad := s.push(registry, "app:1", node.Image{}), s.push(registry, "bad:1", node.Image{})
	r := s.newSigner(s.nodeLogin(registry, alice)...)
	r.requireScan(fresh, "a")
	r.enforce()
	r.scan(bad, 9)
	r.scan(app, 5)
	taken := time.Now()
	good, found := r.come(by("a", app), running), r.come(by("a", bad), refused)
	r.runs("scanned", good)
	r.isDenied("with a finding", found, `does not meet its conditions: found 1; want`)
	verified := r.verifications()
	again := r.come(by("a", app), running)
	r.runs("scanned, again", again)
	if n := r.verifications() - verified; n > 1 { // one of the image with the finding may be between
		s.Errorf("%v verifications of a scan that is fresh; want none", n)
	}

	time.Sleep(time.Until(taken.Add(fresh / 2))) // so that there is time in which only the second scan is fresh
	r.scan(app, 5)
	first := taken
	taken = time.Now()
	if !host.Within(fresh, func() bool { return strings.Contains(s.gate.Log(), "Endorsement renewed") }) {
		s.Fatal("the endorsement was not renewed in the background")
	}
	s.must(registry.Down())
	time.Sleep(time.Until(first.Add(fresh + time.Second)))
	renewed := r.come(by("a", app), running)
	r.runs("renewed, without a registry", renewed)

	time.Sleep(time.Until(taken.Add(fresh + time.Second)))
	late := r.come(by("a", app), running)
	s.waitForEvent(late.pod, `Failed to pull image|ErrImagePull`)
	grace := func() {
		s.must(s.gate.Configure(append(s.admission(), "registryUnavailableGrace: 1h")...))
		s.reload()
	}
	grace()
	r.runs("with an old scan, without a registry, with a grace", late)
	s.configure()
	old := r.come(by("a", app), running)
	s.waitForEvent(old.pod, `Failed to pull image|ErrImagePull`)
	s.must(registry.Up())
	r.isDenied("with an old scan", old, `scan it again; found \\?"`)
	grace()
	graced := r.come(by("a", app), running)
	r.isDenied("with an old scan and a grace", graced, `scan it again; found \\?"`)
	r.scan(app, 5)
	r.runs("with a new scan", old)
	r.runs("with a new scan and a grace", graced)
	for name, o := range map[string]*outcome{"the 1st": good, "the 2nd": again, "the 3rd": renewed, "the 4th": late} {
		if r.look(o).state != running {
			s.Errorf("%s pod, which ran before its scan got too old: %s; want it running", name, o)
		}
	}
	s.dropAll()
}
