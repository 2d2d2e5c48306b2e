package daemon

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// noImages is a runtime without images.
type noImages struct{}

func (noImages) Images(context.Context) ([]tracker.Image, error) { return nil, nil }

func (noImages) Image(context.Context, string) (tracker.Image, error) { return tracker.Image{}, nil }

// Files of kind ImageAccess need no pullgate-policyd, whose socket does not exist here.
func TestImageAccessFiles(t *testing.T) {
	p := newPolicyTest(t, "spec: {}")
	p.options.Config.StateDir = filepath.Join(t.TempDir(), "state")
	lend := filepath.Join(t.TempDir(), "lend.json")
	write := p.imageAccess
	write("share", "from: [{namespaces: [team-b]}], grant: Share")
	trk, _, err := tracker.Open(p.options.Config.StateDir, noImages{}, tracker.Options{Log: p.options.Log})
	testkit.Must(t, err)
	defer func() { testkit.Must(t, trk.Close()) }()
	p.open()
	p.enforceAccess(p.options.Config.StateDir, trk)
	ask := func(namespace string) policy.Reason {
		return trk.Check(t.Context(), tracker.Request{
			Pod: tracker.Pod{UID: namespace, Namespace: namespace}, Name: imageref.New("repo.test/team/app:1"),
			Image: tracker.NewImage("sha256:1", "repo.test/team/app:1"),
		}).Reason
	}
	pull := testkit.Value(trk.BeginPull(t.Context(), imageref.New("repo.test/team/app:1"), tracker.Image{}))(t)
	_, err = pull.Proved(tracker.Proof{ImageID: "sha256:1"}) // open
	testkit.Must(t, err)
	wants := func(when string, want policy.Reason, warnings ...string) {
		t.Helper()
		if got := ask("team-c"); got != want {
			t.Errorf("%s: a pod of team-c is judged by %s; want %s", when, got, want)
		}
		got := p.list().GetWarnings()
		if len(got) != len(warnings) || !slices.EqualFunc(got, warnings, strings.Contains) {
			t.Errorf("%s: warnings %q; want %q", when, got, warnings)
		}
	}
	twice := func() { // a content counts if it is the same in two polls
		p.poll()
		p.poll()
	}
	wants("at the start", policy.Open)
	p.shows("at the start", `pullgate_admission_policies{kind="ImageAccess"} 1`,
		`pullgate_image_access_failing{cause="lend"} 0`)

	write("fence", "from: [{namespaces: [team-a]}], grant: Fence")
	twice()
	wants("with a Fence", policy.Fenced)
	write("fence", "from: [], grant: Fence")
	twice()
	wants("with an invalid file", policy.Fenced)
	testkit.Must(t, os.Remove(filepath.Join(p.dir, "fence.yaml")))
	twice()
	wants("without the file", policy.Open)

	write("lend", "from: [{namespaces: [team-l]}], grant: Lend, credentials: {dockerConfigFile: "+lend+"}")
	twice()
	wants("with a Lend without a file", policy.Open, "ImageAccess lend lends nothing: "+lend)
	p.shows("with a Lend without a file", `pullgate_image_access_failing{cause="lend"} 1`)
	if n := strings.Count(p.log.String(), "Image access lends no credential"); n != 1 {
		t.Errorf("%d lines say that nothing is lent; want 1:\n%s", n, p.log.String())
	}
	testkit.Must(t, os.WriteFile(lend, []byte(`{"auths":{"repo.test":{"username":"u","password":"p"}}}`), 0o600))
	p.poll()
	wants("with its file", policy.Open)
	p.shows("with its file", `pullgate_image_access_failing{cause="lend"} 0`)
	list := p.list().GetPolicies()
	if len(list) != 3 || list[0].GetKind() != "ImageAccess" || list[0].GetMode() != "Lend" ||
		!slices.Equal(list[0].GetNamespaces(), []string{"team-l"}) {
		t.Errorf("the list of policies is %v; want two files of kind ImageAccess", list)
	}
	kept := string(testkit.Value(os.ReadFile(filepath.Join(p.options.Config.StateDir, accessFile)))(t))
	if !strings.Contains(kept, "repo.test/team/*") || strings.Contains(kept, "password") {
		t.Errorf("%s has %s; want the images of the files alone", accessFile, kept)
	}
	p.options.Config.Admission.Policies = ""
	p.reload(p.options.Config)
	if p.list() != nil || strings.Contains(p.page(), "pullgate_image_access_failing{") || ask("team-c") != policy.Open {
		t.Error("without a folder of policies, files of kind ImageAccess are still in force")
	}
}

// imageAccess writes a file of kind ImageAccess for repo.test/team/*.
func (p *policyTest) imageAccess(name, text string) {
	p.Helper()
	testkit.Must(p.T, os.WriteFile(filepath.Join(p.dir, name+".yaml"), []byte("apiVersion: policy.pullgate.dev/v1alpha1\n"+
		"kind: ImageAccess\nmetadata: {name: "+name+"}\nspec: {images: [repo.test/team/*], "+text+"}\n"), 0o644))
}

// A file that is removed while pullgated is down ends its right, also if no policy is left.
func TestImageAccessThatIsRemovedWhileDown(t *testing.T) {
	for what, change := range map[string]func(p *policyTest){
		"an empty folder": func(*policyTest) {},
		"no folder":       func(p *policyTest) { p.options.Config.Admission.Policies = "" },
		"another kind":    func(p *policyTest) { p.put("other", "spec: {}") },
	} {
		t.Run(what, func(t *testing.T) {
			p := newPolicyTest(t)
			dir := filepath.Join(t.TempDir(), "state")
			p.imageAccess("share", "from: [{namespaces: [team-b]}], grant: Share")
			app, img := imageref.New("repo.test/team/app:1"), tracker.NewImage("sha256:1", "repo.test/team/app:1")
			run := func(f func(trk *tracker.Tracker)) {
				trk, _, err := tracker.Open(dir, noImages{}, tracker.Options{Log: p.options.Log})
				testkit.Must(t, err)
				defer func() { testkit.Must(t, trk.Close()) }()
				p.open()
				p.enforceAccess(dir, trk)
				f(trk)
			}
			var created time.Time
			run(func(trk *tracker.Tracker) {
				pull := testkit.Value(trk.BeginPull(t.Context(), app, tracker.Image{}))(t)
				_, err := pull.Proved(tracker.Proof{
					ImageID: "sha256:1", Pod: tracker.Pod{UID: "a"},
					Sent: trk.Sent(credential.New(credential.Login{Username: "u", Password: "p"}), tracker.Pod{}),
				})
				testkit.Must(t, err)
				time.Sleep(10 * time.Millisecond)
				created = time.Now()
			})
			testkit.Must(t, os.Remove(filepath.Join(p.dir, "share.yaml")))
			change(p)
			for range 2 { // it ends once
				run(func(trk *tracker.Tracker) {
					trk.Restore(tracker.Pod{UID: "b", Namespace: "team-b"}, app, img, created)
					if n := trk.Grants(); n != 0 {
						t.Errorf("%d grants are restored; want none", n)
					}
				})
			}
		})
	}
}

// A hook that pullgate-policyd has not accepted delays no Fence, and an invalid file after it brings no Lend back.
func TestImageAccessDoesNotWaitForPolicyd(t *testing.T) {
	p := newPolicyTest(t, "spec: {}")
	dir := filepath.Join(t.TempDir(), "state")
	p.options.Config.Admission.PolicydSocket = "unix://" + filepath.Join(dir, "absent.sock")
	p.imageAccess("share", "from: [{namespaces: [team-b]}], grant: Share")
	trk, _, err := tracker.Open(dir, noImages{}, tracker.Options{Log: p.options.Log})
	testkit.Must(t, err)
	defer func() { testkit.Must(t, trk.Close()) }()
	p.open()
	p.enforceAccess(dir, trk)
	wants := func(when string, fenced, shared bool) {
		t.Helper()
		p.poll()
		p.poll()
		r := p.access.set.Rights("repo.test/team/app", "team-b", "").Enforced
		if got, _ := trk.Fences(tracker.Pod{Namespace: "team-c"}, "repo.test/team/app", ""); got != "" != fenced ||
			r.Share != "" != shared {
			t.Errorf("%s: fenced by %q, shared by %q; want fenced: %v, shared: %v", when, got, r.Share, fenced, shared)
		}
	}
	wants("at the start", false, true)
	hook := testkit.Value(os.ReadFile("../../docs/examples/hook/licences.yaml"))(t)
	testkit.Must(t, os.WriteFile(filepath.Join(p.dir, "hook.yaml"), hook, 0o644))
	testkit.Must(t, os.Remove(filepath.Join(p.dir, "share.yaml")))
	p.imageAccess("fence", "from: [{namespaces: [team-a]}], grant: Fence")
	wants("with a hook", true, false)
	if p.waiting == nil || len(p.list().GetPolicies()) != 2 {
		t.Errorf("waiting: %v, list %v; want the hook to wait, and the Fence listed", p.waiting != nil, p.list())
	}
	p.put("broken", "spec: {a: b}")
	wants("with an invalid file", true, false)
}

// The policy of the kubelet, which does not verify, must not become that of pullgated.
func TestImageAccessWithoutVerification(t *testing.T) {
	p := newPolicyTest(t, "spec: {}")
	dir := filepath.Join(t.TempDir(), "state")
	p.imageAccess("share", "from: [{namespaces: [team-b]}], grant: Share")
	trk, _, err := tracker.Open(dir, noImages{}, tracker.Options{Log: p.options.Log})
	testkit.Must(t, err)
	defer func() { testkit.Must(t, trk.Close()) }()
	p.open()
	p.enforceAccess(dir, trk)
	for i, tc := range []struct {
		kubelet, policy string
		want            bool
	}{
		{"", "NeverVerify", false},
		{"/var/lib/kubelet/config.yaml", "AlwaysVerify", false},
		{"/var/lib/kubelet/config.yaml", "NeverVerify", true},
		{"/var/lib/kubelet/config.yaml", "NeverVerify", true},
	} {
		c := p.options.Config
		c.KubeletConfig, c.ImagePullCredentialsVerificationPolicy = tc.kubelet, tc.policy
		p.reload(c)
		if got := slices.Contains(p.list().GetWarnings(), imageaccess.Unverified); got != tc.want {
			t.Errorf("%d: warnings %q; want one about NeverVerify: %v", i, p.list().GetWarnings(), tc.want)
		}
	}
	if n := strings.Count(p.log.String(), "Image access is not verified"); n != 1 {
		t.Errorf("%d lines say that nothing is verified; want 1", n)
	}
	testkit.Must(t, os.Remove(filepath.Join(p.dir, "share.yaml")))
	p.poll()
	p.poll()
	if got := p.list().GetWarnings(); len(got) != 0 {
		t.Errorf("warnings without a file: %q; want none", got)
	}
}
