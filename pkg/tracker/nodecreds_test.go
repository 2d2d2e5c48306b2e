package tracker_test

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// reservedWorld is a world with a node whose credential "node" for app is for some namespaces.
func reservedWorld(t *testing.T, namespaces ...string) *world {
	t.Helper()
	w, n := nodeWorld(t)
	w.options.NodeHolds = func(_ context.Context, id credential.ID) bool { return id == n.id }
	w.options.Rules.NodeNamespaces = append([]string{}, namespaces...)
	w.restart()
	return w
}

// reserve changes the namespaces while the tracker runs; nil is every namespace.
func (w *world) reserve(namespaces []string) {
	w.options.Rules.NodeNamespaces = namespaces
	w.SetRules(w.options.Rules)
}

// using judges a container that is created from app:1, for which nothing is presented.
func (w *world) using(p tracker.Pod) tracker.Verdict {
	r := asking(p)
	r.Using = true
	return w.Check(w.t.Context(), r)
}

func (w *world) wantOpen(why string, only ...tracker.Pod) {
	w.t.Helper()
	for _, p := range []tracker.Pod{{UID: "b2", Namespace: "team-b"}, {UID: "c2", Namespace: "team-c"}, none} {
		v := w.check(p, app+":1", image(id1, app+":1"))
		w.EndPod(p.UID)
		want := slices.ContainsFunc(only, func(x tracker.Pod) bool { return x.Namespace == p.Namespace })
		if v.Allowed() != want || !want && v.Reason != policy.NodeCredentials {
			w.t.Errorf("%s: a pod of namespace %q = %v by %s; want Allow: %v", why, p.Namespace, v.Verdict, v.Reason, want)
		}
	}
}

func TestNodeCredentialsOfNamespaces(t *testing.T) {
	w := reservedWorld(t, "team-b")
	w.want(w.pulled(b, app+":1", id1, "node"), policy.Allow, policy.Open)
	w.wantOpen("listed", b)
	w.restart()
	w.wantOpen("after a restart", b)
	w.reserve([]string{})
	w.wantOpen("an empty list")
	w.reserve([]string{"team-c"})
	w.wantOpen("another list", c)
	w.reserve(nil)
	w.wantOpen("no list", b, c, none)
	w.reserve([]string{"team-b"})
	w.wantOpen("listed again", b)

	// What needs no credential is for every pod, in whatever order it is found out.
	w.want(w.pulled(c, app+":1", id1, ""), policy.Allow, policy.Open)
	w.wantOpen("after a pull without a credential", b, c, none)
	w.pulled(b, app+":1", id1, "node")
	w.restart()
	w.wantOpen("after both", b, c, none)
	if _, err := w.Revoke(t.Context(), tracker.Revocation{Revocation: records.Revocation{Repository: app}}); err != nil {
		t.Fatal(err)
	}
	w.want(w.check(b, app+":1", image(id1, app+":1")), policy.Reverify, policy.NotProved)
	w.pulled(b, app+":1", id1, "node")
	w.wantOpen("after a revocation and a pull by the node", b)
}

// It is not known how an older version opened a record.
func TestOpenRecordsOfOlderVersionsMayBeByTheNode(t *testing.T) {
	w := reservedWorld(t, "team-b")
	for _, format := range []string{"format-1.db", "format-3.db"} {
		w.close()
		testkit.Must(t, os.WriteFile(w.path,
			testkit.Value(os.ReadFile("../../internal/records/testdata/"+format))(t), 0o600))
		w.open()
		all, _ := w.contents()
		at := slices.IndexFunc(all, func(r records.Record) bool { return r.Open })
		p, name := all[at].Pair, all[at].Pair.Repository+":1"
		img := image(p.ImageID, name)
		w.want(w.check(c, name, img), policy.Reverify, policy.NodeCredentials)
		w.want(w.check(b, name, img), policy.Allow, policy.Open)
		w.want(w.pulled(c, name, p.ImageID, ""), policy.Allow, policy.Open)
		w.want(w.check(none, name, img), policy.Allow, policy.Open)
	}
}

// A grant that may come from credentials of the node ends and returns with the namespace of its pod.
func TestGrantsByNodeCredentialsFollowTheNamespaces(t *testing.T) {
	w := reservedWorld(t, "team-b", "team-c")
	w.pulled(b, app+":1", id1, "node")
	w.want(w.check(c, app+":1", image(id1, app+":1")), policy.Allow, policy.Open)
	before := w.Revocations()
	w.reserve([]string{"team-b"})
	if w.Revocations() == before {
		t.Error("a judgement under way is not made again after a reload")
	}
	w.want(w.using(c), policy.Reverify, policy.NodeCredentials)
	w.want(w.using(b), policy.Allow, policy.Open)

	// A proof of the pod's own replaces it: the creation of a container presents nothing.
	w.want(w.pulled(c, app+":1", id1, "own"), policy.Allow, policy.Proved)
	w.want(w.using(c), policy.Allow, policy.Granted)
	w.want(w.check(pod("d"), app+":1", image(id1, app+":1"), "own"), policy.Allow, policy.Proved)
	w.want(w.using(pod("d")), policy.Allow, policy.Granted)

	// The grants of an earlier process.
	w.reserve(nil)
	e := tracker.Pod{UID: "e", Namespace: "team-e"}
	w.want(w.using(e), policy.Allow, policy.Open)
	handover := testkit.Value(w.HandOver())(t)
	w.options.Rules.NodeNamespaces = []string{"team-b"}
	w.restart()
	if _, err := w.TakeOver(handover); err != nil {
		t.Fatal(err)
	}
	w.want(w.using(e), policy.Reverify, policy.NodeCredentials)
	w.want(w.using(c), policy.Allow, policy.Granted)
	w.want(w.using(b), policy.Allow, policy.Open)
}

// It is not known what a restored grant depends on.
func TestRestoredGrantMayBeByNodeCredentials(t *testing.T) {
	w := reservedWorld(t, "team-b")
	w.pulled(b, app+":1", id1, "node")
	w.pulled(c, app+":1", id1, "own")
	w.pulled(c, app+":2", id2, "own")
	w.restart()
	name, img := imageref.New(app+":1"), image(id1, app+":1")
	for _, p := range []tracker.Pod{b, c} {
		w.Restore(p, name, img, time.Now())
		w.Restore(p, imageref.New(app+":2"), image(id2, app+":2"), time.Now())
	}
	w.want(w.using(b), policy.Allow, policy.Open)
	w.want(w.using(c), policy.Reverify, policy.NodeCredentials)
	// A pair that the node has not opened is as always, and a proof that the pod shows counts.
	w.want(w.check(c, app+":2", image(id2, app+":2")), policy.Allow, policy.Granted)
	w.want(w.check(c, app+":1", img, "own"), policy.Allow, policy.Proved)
	w.want(w.using(c), policy.Allow, policy.Granted)
}

// Without the name of the image, a restored grant for another repository of it may be by a credential of the node.
func TestRestoredGrantWithoutANameMayBeByNodeCredentials(t *testing.T) {
	const private = "repo.test/private:1"
	w := reservedWorld(t, "team-b")
	w.pulled(b, app+":1", id1, "node")
	w.pulled(c, private, id1, "own")
	w.restart()
	img := image(id1, app+":1", private)
	for _, p := range []tracker.Pod{b, c} {
		w.Restore(p, imageref.New(""), img, time.Now())
	}
	w.want(w.check(b, private, img), policy.Allow, policy.Granted)
	w.want(w.check(c, private, img), policy.Reverify, policy.NotProved)
	w.want(w.check(c, private, img, "own"), policy.Allow, policy.Proved)
	w.want(w.check(c, private, img), policy.Allow, policy.Granted)
	w.reserve(nil)
	w.want(w.check(c, app+":1", img), policy.Allow, policy.Open)
}

func TestReloadDuringAPullByTheNode(t *testing.T) {
	w := reservedWorld(t, "team-b", "team-c")
	pull := w.begin(app + ":1")
	w.reserve([]string{"team-b"})
	v, err := pull.Proved(tracker.Proof{ImageID: id1, Sent: w.Sent(secret("node"), c), Pod: c})
	testkit.Must(t, err)
	w.want(v, policy.Reverify, policy.NodeCredentials)
	if w.Grants() != 0 {
		t.Error("the pod has a grant")
	}
	w.wantOpen("what the pull has proved", b)
}

// A disk that does not answer must not delay new rules.
func TestReloadDuringAWrite(t *testing.T) {
	w := reservedWorld(t, "team-b", "team-c")
	w.synced = func() { w.reserve([]string{"team-b"}) }
	w.pulled(b, app+":1", id1, "node")
	w.synced = nil
	w.wantOpen("after a reload during the write", b)
}

// A Secret of a pod can hold the node's credential. Then it is the pod's.
func TestSecretWithTheNodesCredential(t *testing.T) {
	w := reservedWorld(t, "team-b")
	own := []tracker.Secret{{Credential: w.id("node"), Ref: records.SecretRef{UID: "u", Namespace: "team-c", Name: "s"}}}
	name, sent := imageref.New(app+":1"), w.Sent(secret("node"), c)
	if w.Withholds(t.Context(), c, name, sent, func() []tracker.Secret { return own }) {
		t.Error("a credential of the pod's own Secret is withheld")
	}
	pull := w.begin(app + ":1")
	v, err := pull.Proved(tracker.Proof{ImageID: id1, Sent: sent, Secrets: own, Pod: c})
	testkit.Must(t, err)
	w.want(v, policy.Allow, policy.Proved)
	w.want(w.using(c), policy.Allow, policy.Granted)
	w.want(w.check(pod("d"), app+":1", image(id1, app+":1")), policy.Reverify, policy.NotProved)
	w.want(w.check(b, app+":1", image(id1, app+":1")), policy.Reverify, policy.NotProved)
}

// The rotated Secret of a pod of another namespace needs no registry.
func TestRotatedSecretBesideNodeCredentials(t *testing.T) {
	w := reservedWorld(t, "team-b")
	ref := records.SecretRef{UID: "u", Namespace: "team-c", Name: "s"}
	w.provedAt(w.id("old"), time.Now(), ref)
	w.pulled(b, app+":1", id1, "node")
	r := asking(c)
	w.want(w.Check(t.Context(), r), policy.Reverify, policy.NodeCredentials)
	r.Secrets = []tracker.Secret{{Credential: w.id("new"), Ref: ref}}
	w.want(w.Check(t.Context(), r), policy.Allow, policy.Proved)
}

// Another name of an image that the node has opened for some is no way round.
func TestReservedImageUnderAnotherName(t *testing.T) {
	const other = "repo.test/other:1"
	w := reservedWorld(t, "team-b")
	w.runtime.set(image("sha256:old", "repo.test/old:1"))
	w.sync()
	w.pulled(b, app+":1", id1, "node")
	both := image(id1, app+":1", other)
	w.runtime.set(both)
	w.sync()
	w.want(w.check(c, other, both), policy.Reverify, policy.Untracked)

	// It left without RemoveImage, and comes back.
	w.runtime.set(image("sha256:old", "repo.test/old:1"))
	w.sync()
	w.runtime.set(image(id1, app+":1"))
	w.sync()
	w.want(w.check(c, app+":1", image(id1, app+":1")), policy.Reverify, policy.NotProved)
}

func TestWithholds(t *testing.T) {
	static := tracker.Pod{UID: "s", Namespace: "team-s", Static: true}
	exempt := tracker.Pod{UID: "x", Namespace: "team-x"}
	for name, tc := range map[string]struct {
		pod      tracker.Pod
		mode     string
		list     []string
		every    bool
		password string
		want     bool
	}{
		"listed":                     {pod: b, password: "node"},
		"not listed":                 {pod: c, password: "node", want: true},
		"no namespace":               {pod: none, password: "node", want: true},
		"every namespace":            {pod: c, every: true, password: "node"},
		"another credential":         {pod: c, password: "own"},
		"no credential":              {pod: c},
		"static":                     {pod: static, password: "node"},
		"exempt":                     {pod: exempt, password: "node"},
		"nothing is verified":        {pod: c, mode: "NeverVerify", password: "node"},
		"allowlisted":                {pod: c, mode: "NeverVerifyAllowlistedImages", list: []string{app}, password: "node"},
		"not allowlisted":            {pod: c, mode: "NeverVerifyAllowlistedImages", password: "node", want: true},
		"everything is verified":     {pod: c, mode: "AlwaysVerify", password: "node", want: true},
		"a listed image, other mode": {pod: c, mode: "AlwaysVerify", password: "node", want: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := reservedWorld(t, "team-b")
			w.options.Rules.Policy = testkit.Value(policy.New(tc.mode, tc.list))(t)
			w.options.Rules.ExemptStaticPods, w.options.Rules.ExemptNamespaces = true, []string{"team-x"}
			w.reserve(map[bool][]string{false: {"team-b"}}[tc.every])
			asked := false
			got := w.Withholds(t.Context(), tc.pod, imageref.New(app+":1"), w.Sent(secret(tc.password), tc.pod),
				func() []tracker.Secret { asked = true; return nil })
			if got != tc.want || asked && !tc.want {
				t.Errorf("Withholds = %v, Secrets fetched: %v; want %v", got, asked, tc.want)
			}
		})
	}
}

func TestExemptionsFromNodeNamespaces(t *testing.T) {
	w := reservedWorld(t, "team-b")
	w.options.Rules.ExemptNamespaces = []string{"team-c"}
	w.reserve([]string{"team-b"})
	// A pull of an exempt pod with the node's credential is recorded as one, and leaves nothing when the exemption ends.
	w.want(w.pulled(c, app+":1", id1, "node"), policy.Allow, policy.Open)
	w.want(w.check(c, app+":1", image(id1, app+":1")), policy.Allow, policy.ExemptNamespace)
	w.options.Rules.ExemptNamespaces = nil
	w.reserve([]string{"team-b"})
	w.want(w.using(c), policy.Reverify, policy.NodeCredentials)
	w.wantOpen("after the exemption", b)
	// A share is a right of its own.
	w.access(files{share: "team-c"})
	w.want(w.using(c), policy.Allow, policy.Shared)
}
