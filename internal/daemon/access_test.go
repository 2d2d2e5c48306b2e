package daemon

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/testkit"
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
	write := func(name, text string) {
		t.Helper()
		testkit.Must(t, os.WriteFile(filepath.Join(p.dir, name+".yaml"), []byte("apiVersion: policy.pullgate.dev/v1alpha1\n"+
			"kind: ImageAccess\nmetadata: {name: "+name+"}\nspec: {images: [repo.test/team/*], "+text+"}\n"), 0o644))
	}
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
