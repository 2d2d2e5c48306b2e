package gate_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/operator/decisionlog"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// accessFile returns a file of kind ImageAccess for everything below repo.test/team/.
func accessFile(grant, from string, more ...string) strictyaml.File {
	name := strings.ToLower(grant)
	return strictyaml.File{Name: name, Data: []byte("apiVersion: policy.pullgate.dev/v1alpha1\nkind: ImageAccess\n" +
		"metadata: {name: " + name + "}\nspec: {grant: " + grant + ", images: [repo.test/team/*], from: [" + from + "]" +
		strings.Join(more, "") + "}\n")}
}

// access makes files the ones in force.
func (p *proxy) access(files ...strictyaml.File) {
	p.t.Helper()
	use := func(s *imageaccess.Set, ended func(string) bool) error {
		err := p.tracker.SetAccess(s, ended)
		p.gate.SetAccess(s)
		return err
	}
	p.must(imageaccess.NewKeeper(filepath.Join(p.dir, "access.json"), use).Use(
		testkit.Value(imageaccess.Load(files))(p.t)))
}

// revokeApp removes all proofs of access to app.
func (p *proxy) revokeApp() {
	p.t.Helper()
	_, err := p.tracker.Revoke(p.t.Context(), tracker.Revocation{
		Revocation: records.Revocation{Repository: "repo.test/team/app"},
	})
	p.must(err)
}

const bobs = "{namespaces: [bob]}"

const (
	lentUser     = "uSer-Of-Lent"
	lentPassword = "cAnary-Of-Lent"
)

// lending returns a Lend to bob, with a docker configuration of its own.
func lending(tb testing.TB) (file strictyaml.File, path string) {
	tb.Helper()
	path = filepath.Join(tb.TempDir(), "lend.json")
	testkit.Must(tb, os.WriteFile(path, fmt.Appendf(nil,
		`{"auths":{"repo.test":{"username":"wrong","password":"wrong"},"repo.test/team":{"username":%q,"password":%q}}}`,
		lentUser, lentPassword), 0o600))
	return accessFile("Lend", bobs, ", credentials: {dockerConfigFile: "+path+"}"), path
}

func TestShare(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	p.serves(app, "good", img(id1, app))
	p.access(accessFile("Share", bobs))
	bob, carol := p.Pod("bob"), p.Pod("carol")
	p.wantPrecheck(bob, app, "", "pre-check of an absent image")
	p.wantNoPull(bob, app, "", "pull without a credential of an absent image")
	p.MustPull(p.Pod("alice"), app, "good")
	pulls := p.runtime.Calls("PullImage")
	p.wantPrecheck(bob, app, id1, "pre-check of a pod with a share")
	p.must(p.createAndStart(bob, id1, app))
	p.wantPrecheck(carol, app, "", "pre-check of a pod without a share")
	p.wantCreate(carol, id1, app, codes.PermissionDenied, "container of a pod without a share")
	p.wantCreate(bob, id1, id1, codes.PermissionDenied, "container of an image ID")
	mount := &runtimeapi.Mount{Image: &runtimeapi.ImageSpec{Image: id1, UserSpecifiedImage: app}}
	p.done(p.Create(t.Context(), bob, id1, app, mount))
	p.ends(codes.PermissionDenied, "container with an image volume of a pod without a share")(
		p.Create(t.Context(), carol, id2, "repo.test/other", mount))
	if got := p.runtime.Calls("PullImage"); got != pulls {
		t.Errorf("%d pulls reached the runtime; want none", got-pulls)
	}

	p.access()
	p.wantPrecheck(bob, app, "", "pre-check after the file is gone")
	p.wantCreate(bob, id1, app, codes.PermissionDenied, "container after the file is gone")
	// A hidden pre-check is answered from the node as soon as a file allows it.
	p.access(accessFile("Share", bobs))
	p.wantPull(bob, app, "", id1, "pull after the file is back")
	if got := p.runtime.Calls("PullImage"); got != pulls {
		t.Errorf("%d pulls reached the runtime; want none", got-pulls)
	}

	// No grant of bob survives the file: not over a restart either.
	p.restart()
	p.access()
	p.wantPrecheck(bob, app, "", "pre-check after a restart without the file")
	p.revokeApp()
	p.access(accessFile("Share", bobs))
	p.wantPrecheck(bob, app, "", "pre-check after the only proof is revoked")
}

func TestShareOfServiceAccount(t *testing.T) {
	source := &fakeSource{pods: map[string]sourcePod{}}
	c := exact()
	c.PodSource = source
	p := newProxy(t, tracker.Options{}, c)
	p.serves(app, "good", img(id1, app))
	p.MustPull(p.Pod("alice"), app, "good")
	p.access(accessFile("Share", "{serviceAccounts: [{namespace: bob, name: builder}]}"))
	for account, want := range map[string]string{"builder": id1, "default": "", "": ""} {
		bob, carol := p.Pod("bob"), p.Pod("carol")
		source.pods[bob.UID], source.pods[carol.UID] = sourcePod{account: account}, sourcePod{account: account}
		p.wantPrecheck(bob, app, want, "pre-check of bob's account %q", account)
		p.wantPrecheck(carol, app, "", "pre-check of carol's account %q", account)
	}
}

func TestFence(t *testing.T) {
	for _, present := range []bool{true, false} {
		t.Run(fmt.Sprintf("present=%v", present), func(t *testing.T) {
			c := exact()
			var noted decisions
			c.Decisions = &noted
			p := newProxy(t, tracker.Options{Rules: tracker.Rules{ExemptNamespaces: []string{"system"}}}, c)
			p.serves(app, "good", img(id1, app))
			bob, carol := p.Pod("bob"), p.Pod("carol")
			if present {
				p.MustPull(carol, app, "good")
				p.MustPull(nil, app, "good")
				p.wantCreate(carol, id1, app, codes.OK, "container before the file")
			}
			p.access(accessFile("Fence", bobs), accessFile("Share", "{namespaces: [carol]}"))
			before := p.runtime.Calls("PullImage")
			const want = "pullgate: repository repo.test/team/app is reserved for other namespaces on this node; " +
				"ask its operator"
			for _, password := range []string{"good", "bad", ""} {
				p.wantPrecheck(carol, app, "", "pre-check")
				_, err := p.Pull(t.Context(), carol, app, password)
				if status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != want {
					t.Errorf("pull with %q = %v; want PermissionDenied: %s", password, err, want)
				}
			}
			if got := p.runtime.Calls("PullImage") - before; got != 0 {
				t.Errorf("%d pulls reached the runtime; want none", got)
			}
			_, err := p.Create(t.Context(), carol, id1, app)
			if m := status.Convert(err).Message(); status.Code(err) != codes.PermissionDenied ||
				!strings.HasSuffix(m, strings.TrimPrefix(want, "pullgate: ")) || strings.Contains(m, "bob") {
				t.Errorf("container = %v; want it denied, and no other tenant named", err)
			}
			if d := noted.last(); d.Verdict.Reason != policy.Fenced && present || d.Verdict.Allowed() {
				t.Errorf("decision = %+v; want one by fenced", d)
			}
			p.wantPull(bob, app, "good", id1, "pull of an owner")
			p.wantPrecheck(bob, app, id1, "pre-check of an owner")
			p.must(p.createAndStart(bob, id1, app))
			p.wantPrecheck(p.Pod("system"), app, id1, "pre-check of an exempt pod")
			p.wantPull(nil, app, "good", id1, "pull for no pod")
			p.wantPrecheck(carol, app, "", "pre-check after that")
			p.restart() // with the containers of carol
			p.access(accessFile("Fence", bobs))
			p.wantPrecheck(carol, app, "", "pre-check after a restart")
		})
	}
}

func TestFenceInShadowMode(t *testing.T) {
	c := exact()
	c.Shadow = true
	p := newProxy(t, tracker.Options{}, c)
	p.serves(app, "good", img(id1, app))
	p.access(accessFile("Fence", bobs))
	carol := p.Pod("carol")
	p.wantPull(carol, app, "good", id1, "pull in shadow mode")
	p.wantPrecheck(carol, app, id1, "pre-check in shadow mode")
	p.wantCreate(carol, id1, app, codes.OK, "container in shadow mode")
}

// pulledWith returns what the runtime got in the last pull.
func (p *proxy) lastPull() (raw []byte, r *runtimeapi.PullImageRequest) {
	p.t.Helper()
	all := p.runtime.Requests("PullImage")
	r = &runtimeapi.PullImageRequest{}
	p.must(proto.Unmarshal(all[len(all)-1], r))
	return all[len(all)-1], r
}

func TestLend(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	p.serves(app, lentPassword, img(id1, app))
	file, path := lending(t)
	p.access(file)
	bob, carol := p.Pod("bob"), p.Pod("carol")

	p.wantNoPull(carol, app, "", "pull of a pod that gets nothing lent")
	if _, r := p.lastPull(); r.GetAuth() != nil {
		t.Error("a pod outside of from got a credential")
	}
	p.wantNoPull(bob, app, "own", "pull with a credential of its own")
	if _, r := p.lastPull(); r.GetAuth().GetPassword() != "own" || r.GetAuth().GetServerAddress() != "" {
		t.Error("the credential of the pod was replaced")
	}
	p.wantPrecheck(bob, app, "", "pre-check of an absent image")
	// What pullgate does not know, and an empty credential, stay in the request.
	request := &runtimeapi.PullImageRequest{
		Image: &runtimeapi.ImageSpec{Image: app}, SandboxConfig: bob.Config,
		Auth: &runtimeapi.AuthConfig{Auth: "Og=="}, // of ":"
	}
	request.ProtoReflect().SetUnknown([]byte{0xfa, 0x3f, 3, 'n', 'e', 'w'})
	if _, err := p.Images.PullImage(t.Context(), request); err != nil {
		t.Fatalf("pull with a lent credential = %v; want the image", err)
	}
	raw, r := p.lastPull()
	auth := r.GetAuth()
	if auth.GetUsername() != lentUser || auth.GetPassword() != lentPassword ||
		auth.GetServerAddress() != "https://repo.test" || !bytes.Contains(raw, []byte("new")) ||
		auth.GetAuth() != "" || r.GetSandboxConfig().GetMetadata().GetUid() != bob.UID {
		t.Errorf("the runtime got user %q for %q, and the unknown field: %v; want the lent one for https://repo.test",
			auth.GetUsername(), auth.GetServerAddress(), bytes.Contains(raw, []byte("new")))
	}
	if got := p.tracker.Grants(); got != 0 {
		t.Errorf("%d grants; want none: the right is that of the file", got)
	}
	p.wantPrecheck(bob, app, id1, "pre-check after the pull")
	p.must(p.createAndStart(bob, id1, app))
	p.wantPrecheck(carol, app, "", "pre-check of a pod without a right")
	p.wantPrecheck(p.Pod("bob"), app, id1, "pre-check of the next pod")

	// The proof is that of the credential: revoked, the next pull proves it again.
	p.revokeApp()
	p.wantPrecheck(bob, app, "", "pre-check after the revocation")
	p.wantPull(bob, app, "", id1, "pull after the revocation")
	p.wantPrecheck(bob, app, id1, "pre-check after the pull")
	p.access()
	p.wantPrecheck(bob, app, "", "pre-check after the file is gone")
	p.wantNoPull(bob, app, "", "pull after the file is gone")

	p.access(file)
	for what, spoil := range map[string]func(){
		"absent":    func() { p.must(os.Remove(path)) },
		"empty":     func() { p.must(os.WriteFile(path, nil, 0o600)) },
		"malformed": func() { p.must(os.WriteFile(path, []byte(`{"auths":{"repo.test":{"auth":"x"}}}`), 0o600)) },
		"of another host": func() {
			p.must(os.WriteFile(path, []byte(`{"auths":{"evil.test":{"username":"u","password":"p"}}}`), 0o600))
		},
		"readable by others": func() { _, good := lending(t); p.must(os.Chmod(good, 0o604)); p.must(os.Rename(good, path)) },
		"a folder":           func() { p.must(os.RemoveAll(path)); p.must(os.Mkdir(path, 0o700)) },
	} {
		p.must(os.RemoveAll(path))
		p.must(os.WriteFile(path, nil, 0o600))
		spoil()
		p.wantNoPull(p.Pod("bob"), app, "", "pull with a file that is "+what)
		if _, r := p.lastPull(); r.GetAuth() != nil {
			t.Errorf("a file that is %s lent something", what)
		}
	}
}

// A tenant chooses the name of the image. The credential goes to no other registry than that of the pattern.
func TestLendGoesToTheRegistryOfThePattern(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	file, _ := lending(t)
	p.access(file)
	for name, want := range map[string]string{
		"repo.test/team/app": "https://repo.test",
		"repo.test/team/app@sha256:" + strings.Repeat("0", 64):   "https://repo.test",
		"repo.test:443/team/app":                                 "", // the file has no entry for it
		"repo.test:8443/team/app":                                "",
		"repo.test.evil.test/team/app":                           "",
		"evil.test/repo.test/team/app":                           "",
		"repo.test/teams/app":                                    "",
		"team/app":                                               "",
		"docker.io/team/app":                                     "",
		"evil.test/team/app":                                     "",
		"repo.test@evil.test/team/app":                           "",
		"user:pass@repo.test/team/app":                           "",
		"https://repo.test/team/app":                             "",
		"repo.test/team/../../evil/app":                          "",
		"repo.test/team/app:1@sha256:" + strings.Repeat("0", 64): "https://repo.test",
	} {
		_, _ = p.Pull(t.Context(), p.Pod("bob"), name, "")
		_, r := p.lastPull()
		if got := r.GetAuth().GetServerAddress(); got != want || (r.GetAuth() != nil) != (want != "") {
			t.Errorf("pull of %s: a credential for %q; want %q", name, got, want)
		}
	}
}

// decisions records decisions.
type decisions struct {
	mu  sync.Mutex
	all []decisionlog.Decision
}

func (d *decisions) Record(one decisionlog.Decision) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, one)
}

func (d *decisions) last() decisionlog.Decision {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.all[len(d.all)-1]
}

// The lent credential is in no answer, log, decision, store or hand-over, also if the registry says it.
func TestLentCredentialIsNotShown(t *testing.T) {
	log, lines := journaled(10)
	var noted decisions
	c := exact()
	c.Log, c.Decisions = log, &noted
	p := newProxy(t, tracker.Options{Log: log}, c)
	file, path := lending(t)
	p.access(file)
	var seen []string
	echo := func(code codes.Code, text string) func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
		return func(_ string, a *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			if a.GetPassword() != lentPassword {
				return criproxytest.Image{}, criproxytest.Denied(app)
			}
			basic := base64.StdEncoding.EncodeToString([]byte(a.GetUsername() + ":" + a.GetPassword()))
			return criproxytest.Image{}, status.Errorf(code, "%s: %s %s %s", text, a.GetUsername(), a.GetPassword(), basic)
		}
	}
	for _, tc := range []struct {
		code codes.Code
		text string
		want string
	}{
		{codes.Unknown, "pull access denied", "the registry denied the credential that this node lends for it"},
		{codes.NotFound, "not found", "the registry denied"},
		{codes.Unknown, "dial tcp: connection refused", "RegistryUnavailable: pullgate: image"},
		{codes.Unknown, "unexpected status: 503 Service Unavailable", "RegistryUnavailable: pullgate: image"},
		{codes.Unavailable, "failed to pull", "failed"},
		{codes.Internal, "something", "failed"},
		{codes.Unknown, "something", "the pull with the credential that this node lends for it failed"},
	} {
		p.runtime.Do(func(r *criproxytest.Runtime) { r.Registry = echo(tc.code, tc.text) })
		_, err := p.Pull(t.Context(), p.Pod("bob"), app, "")
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s %s: pull = %v; want an error with %q", tc.code, tc.text, err, tc.want)
		}
		seen = append(seen, fmt.Sprintf("%v %v", err, status.Convert(err).Details()))
	}
	p.serves(app, lentPassword, img(id1, app))
	bob := p.Pod("bob")
	p.MustPull(bob, app, "")
	p.must(p.createAndStart(bob, id1, app))
	p.must(os.Chmod(path, 0o644))
	p.wantNoPull(p.Pod("bob"), app+"x", "", "pull with an exposed file")

	seen = append(seen, lines("")...)
	seen = append(seen, fmt.Sprintf("%+v %#v", noted.all, noted.all))
	seen = append(seen, string(testkit.Value(json.Marshal(noted.all))(t)), string(testkit.Value(p.tracker.HandOver())(t)),
		string(testkit.Value(os.ReadFile(filepath.Join(p.dir, "records.db")))(t)),
		fmt.Sprintf("%+v", p.tracker.Explain(t.Context(), tracker.Request{})))
	set := testkit.Value(imageaccess.Load([]strictyaml.File{file}))(t)
	seen = append(seen, fmt.Sprint(new(imageaccess.Prober).Unusable(set, nil)))
	if len(new(imageaccess.Prober).Unusable(set, nil)) != 1 || !strings.Contains(seen[len(seen)-1], "chmod 0600") {
		t.Errorf("Unusable = %v; want that others can read the file", new(imageaccess.Prober).Unusable(set, nil))
	}
	for _, secret := range []string{lentUser, lentPassword} {
		for _, form := range []string{
			secret, base64.StdEncoding.EncodeToString([]byte(secret)), hex.EncodeToString([]byte(secret)),
			base64.StdEncoding.EncodeToString([]byte(lentUser + ":" + lentPassword)),
		} {
			for i, text := range seen {
				if strings.Contains(text, form) {
					t.Errorf("output %d shows the lent credential as %s:\n%.300s", i, form, text)
				}
			}
		}
	}
	if got := lines("Failed to lend a credential"); len(got) != 1 {
		t.Errorf("%d lines say that nothing was lent; want 1:\n%s", len(got), got)
	}
}

func TestLendWhileTheRegistryIsDown(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	p.serves(app, lentPassword, img(id1, app))
	file, _ := lending(t)
	p.access(file)
	p.MustPull(p.Pod("bob"), app, "")
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			return criproxytest.Image{}, status.Error(codes.Unknown, "dial tcp: connection refused")
		}
	})
	bob := p.Pod("bob")
	p.wantPrecheck(bob, app, id1, "pre-check with a registry that is down")
	p.must(p.createAndStart(bob, id1, app))
}

// Other runtimes give the credential of a pull to mirrors.
func TestOnlyContainerdGetsALentCredential(t *testing.T) {
	for name, want := range map[string]bool{"containerd": true, "cri-o": false, "": false} {
		log, lines := journaled(10)
		c := exact()
		c.Log = log
		p := newProxy(t, tracker.Options{}, c)
		p.runtime.Do(func(r *criproxytest.Runtime) { r.Release = [2]string{name, "1.35.0"} })
		p.serves(app, lentPassword, img(id1, app))
		file, _ := lending(t)
		p.access(file)
		_, err := p.Pull(t.Context(), p.Pod("bob"), app, "")
		if _, r := p.lastPull(); (r.GetAuth() != nil) != want || (err == nil) != want {
			t.Errorf("%q: pull = %v, with a credential: %v; want one: %v", name, err, r.GetAuth() != nil, want)
		}
		if got := lines("Failed to lend a credential"); (len(got) == 0) != want {
			t.Errorf("%q: log %q; want a line that nothing is lent: %v", name, got, !want)
		}
	}
}

// A kubelet records the credential of a successful pull as good, so a right by a file does not answer a pull with one.
func TestAFileDoesNotAnswerAPullWithACredential(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	p.serves(app, "good", img(id1, app))
	p.MustPull(p.Pod("alice"), app, "good")
	bob := p.Pod("bob")
	p.wantPrecheck(bob, app, "", "pre-check without a file")
	p.access(accessFile("Share", bobs))
	p.wantNoPull(bob, app, "untried", "pull with a credential that no registry has confirmed")
	p.wantPrecheck(bob, app, id1, "pre-check with the file")
	p.must(p.createAndStart(bob, id1, app))
}

// Mode Audit shows each pull and each first container that the Fence would refuse.
func TestAuditOfAFence(t *testing.T) {
	var noted decisions
	c := exact()
	c.Decisions = &noted
	p := newProxy(t, tracker.Options{}, c)
	p.serves(app, "good", img(id1, app))
	fence := accessFile("Fence", bobs)
	fence.Data = bytes.Replace(fence.Data, []byte("{name: fence}"),
		[]byte("{name: fence, annotations: {policy.pullgate.dev/mode: Audit}}"), 1)
	carol, dave := p.Pod("carol"), p.Pod("dave")
	p.MustPull(dave, app, "good")
	p.must(p.createAndStart(dave, id1, app))
	p.access(fence)
	p.MustPull(carol, app, "good")
	if d := noted.last(); d.Verdict.AccessAudit != "fence" || d.Outcome == "" {
		t.Errorf("decision on the pull = %+v; want one that the file would turn", d)
	}
	noted.all = nil
	for range 3 {
		p.wantCreate(dave, id1, app, codes.OK, "container of a pod with a grant")
	}
	if len(noted.all) != 1 || noted.last().Verdict.AccessAudit != "fence" {
		t.Errorf("decisions on three containers = %+v; want one line that the file would turn them", noted.all)
	}
	if got := p.counts.get(); got["audited Reverify"] < 4 || got["audited Allow"] != 0 {
		t.Errorf("counted %d audited refusals; want the pull and the containers", got["audited Reverify"])
	}
}

// A name that does not parse may mean any repository.
func TestPullOfAnInvalidNameWithAFence(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	const name = "repo.test/TEAM/app"
	_, _ = p.Pull(t.Context(), p.Pod("carol"), name, "")
	before := p.runtime.Calls("PullImage")
	p.access(accessFile("Fence", bobs))
	_, err := p.Pull(t.Context(), p.Pod("carol"), name, "")
	if got := p.runtime.Calls("PullImage"); got != before || status.Code(err) != codes.PermissionDenied ||
		!strings.Contains(status.Convert(err).Message(), "the name of the image is not valid") {
		t.Errorf("pull of an invalid name = %v, %d reached the runtime; want it refused", err, got-before)
	}
	_, _ = p.Pull(t.Context(), p.Pod("bob"), name, "")
	if got := p.runtime.Calls("PullImage"); got != before+1 {
		t.Error("the pull of an owner did not reach the runtime")
	}
}
