package tracker_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// The scenarios of testdata: the events, line by line, and the answers of the tracker. Image IDs are written 1 to 9,
// repositories without repo.test/. Time moves only by "advance".
//
//	images  [ID=NAME,NAME …]                  the runtime has these images from now on
//	pull    NAME [id=ID] [pod=UID] [secret=PW] [held=SECRETS] [ends=proved|denied|refused|lost|crash] [present=ID]
//	check   NAME id=ID [pod=UID] [secrets=PW,PW] [held=SECRETS] [static] [except=REPOSITORY] [unasked]
//	        what the pod presents, and what its Secrets hold according to a pod source: UID/NAMESPACE/NAME#PW,…
//	sync | settle | prune | restart [verify] | advance DURATION | end pod=UID
//	restore NAME id=ID pod=UID [created=DURATION-AGO]
//	validity DURATION [grace=DURATION]        of proofs, from now on
//	revoke  [credential=PW] [repository=NAME] [id=ID] [uid=UID] [namespace=NS] [secret=NAME] [dry]
//	store                                     prints what is on disk
//
// Shows: 001-01, 001-05, 001-27
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) { //nolint:thelper // the test itself
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, tracker.Options{})
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string { //nolint:thelper // the test itself
				return w.play(t, d)
			})
		})
	})
}

func (w *world) play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	arg := func(key string) string {
		var v string
		if d.HasArg(key) {
			d.ScanArgs(t, key, &v)
		}
		return v
	}
	name := ""
	if len(d.CmdArgs) > 0 && len(d.CmdArgs[0].Vals) == 0 {
		name = full(d.CmdArgs[0].Key)
	}
	who := tracker.Pod{Static: d.HasArg("static")}
	if uid := arg("pod"); uid != "" {
		who = tracker.Pod{UID: uid, Namespace: "ns-" + uid, Static: d.HasArg("static")}
	}
	switch d.Cmd {
	case "images":
		var images []tracker.Image
		for _, a := range d.CmdArgs {
			i := tracker.Image{ID: scenarioID(a.Key)}
			for _, v := range a.Vals {
				i.Names = append(i.Names, imageref.New(full(v)))
			}
			images = append(images, i)
		}
		w.runtime.set(images...)
		return ""
	case "pull":
		return w.playPull(name, arg, who, w.held(t, d))
	case "check":
		r := tracker.Request{
			Pod: who, Name: imageref.New(name), Image: w.find(scenarioID(arg("id"))),
			Except: full(arg("except")), Unasked: d.HasArg("unasked"),
		}
		if name == full("-") {
			r.Name = imageref.Ref{}
		}
		if d.HasArg("secrets") {
			for _, pw := range d.CmdArgs[slices.IndexFunc(d.CmdArgs,
				func(a datadriven.CmdArg) bool { return a.Key == "secrets" })].Vals {
				r.Secrets = append(r.Secrets, tracker.Secret{Credential: w.id(pw)})
			}
		}
		r.Secrets = append(r.Secrets, w.held(t, d)...)
		v := w.Check(t.Context(), r)
		first := ""
		if v.First {
			first = ", first"
		}
		return fmt.Sprintf("%v by %s%s\n", v.Verdict, v.Reason, first)
	case "sync":
		return said(w.Sync(t.Context()))
	case "settle":
		return said(w.Settle(t.Context()))
	case "prune":
		return said(w.Prune(t.Context()))
	case "flush":
		return said(w.Flush())
	case "restart":
		w.options.VerifyUntracked = d.HasArg("verify")
		w.restart()
		return ""
	case "trust":
		return said(w.store.Trust())
	case "policy":
		p, err := policy.New(d.CmdArgs[0].Key, allowlist(d))
		w.SetRules(tracker.Rules{Policy: p})
		return said(err)
	case "validity":
		rules := tracker.Rules{Validity: span(t, d.CmdArgs[0].Key)}
		if d.HasArg("grace") {
			rules.Grace = span(t, arg("grace"))
		}
		w.options.Rules = rules
		w.SetRules(rules)
		return ""
	case "revoke":
		return w.playRevoke(arg, d.HasArg("dry"))
	case "advance":
		time.Sleep(span(t, d.CmdArgs[0].Key))
		return ""
	case "end":
		w.EndPod(who.UID)
		return ""
	case "restore":
		created := time.Now()
		if d.HasArg("created") {
			created = created.Add(-span(t, arg("created")))
		}
		w.Restore(who, imageref.New(name), w.find(scenarioID(arg("id"))), created)
		return ""
	case "store":
		return w.dump()
	default:
		t.Fatalf("unknown command %s", d.Cmd)
		return ""
	}
}

// held returns the contents of the pod's Secrets.
func (w *world) held(t *testing.T, d *datadriven.TestData) (held []tracker.Secret) {
	t.Helper()
	for _, a := range d.CmdArgs {
		if a.Key != "held" {
			continue
		}
		for _, v := range a.Vals {
			var s testkit.Secret
			testkit.Must(t, s.UnmarshalText([]byte(v)))
			held = append(held, tracker.Secret{
				Credential: w.id(s.Content),
				Ref:        records.SecretRef{UID: s.UID, Namespace: s.Namespace, Name: s.Name},
			})
		}
	}
	return held
}

func (w *world) playPull(name string, arg func(string) string, who tracker.Pod, held []tracker.Secret) string {
	var present tracker.Image
	if p := arg("present"); p != "" {
		present = w.find(scenarioID(p))
	}
	pull, err := w.BeginPull(w.t.Context(), imageref.New(name), present)
	if err != nil {
		return said(err)
	}
	switch arg("ends") {
	case "denied":
		return said(pull.Denied(present, w.sent(arg("secret"))))
	case "refused":
		return said(pull.Refused())
	case "lost":
		return said(pull.Lost())
	case "crash":
		return "" // the end is not reported
	}
	v, err := pull.Proved(tracker.Proof{
		ImageID: scenarioID(arg("id")), Sent: w.sent(arg("secret")), Secrets: held,
		Pod: who,
	})
	if err != nil {
		return said(err)
	}
	return fmt.Sprintf("%v by %s\n", v.Verdict, v.Reason)
}

// playRevoke prints the revoked facts, with the pods of the ended grants.
func (w *world) playRevoke(arg func(string) string, dry bool) string {
	r := tracker.Revocation{DryRun: dry, Revocation: records.Revocation{
		Repository: full(arg("repository")), ImageID: scenarioID(arg("id")),
		Secret: records.SecretRef{UID: arg("uid"), Namespace: arg("namespace"), Name: arg("secret")},
	}}
	if pw := arg("credential"); pw != "" {
		r.Credential = w.id(pw)
	}
	got, err := w.Revoke(w.t.Context(), r)
	var b strings.Builder
	for _, p := range got.Proofs {
		fmt.Fprintf(&b, "proof %s %s\n", short(p.Pair), w.password(p.Proof.Credential))
	}
	for _, p := range got.Closed {
		fmt.Fprintf(&b, "closed %s\n", short(p))
	}
	for _, p := range got.Marked {
		fmt.Fprintf(&b, "still marked %s\n", short(p.Pair))
	}
	for _, g := range got.Grants {
		fmt.Fprintf(&b, "grant %s %s\n", g.Pod, short(g.Pair))
	}
	return b.String() + said(err)
}

// password returns the password of a credential ID, if it is known.
func (w *world) password(id credential.ID) string {
	for _, pw := range []string{"alice", "bob", "carol", "node"} {
		if w.id(pw) == id {
			return pw
		}
	}
	return string(id)
}

func span(t *testing.T, s string) time.Duration {
	t.Helper()
	d := testkit.Value(time.ParseDuration(s))(t)
	return d
}

// find returns the present image of the fake runtime.
func (w *world) find(id string) tracker.Image {
	w.runtime.mu.Lock()
	defer w.runtime.mu.Unlock()
	for _, i := range w.runtime.images {
		if i.ID == id {
			return i
		}
	}
	return tracker.Image{}
}

// dump prints the store, sorted, with passwords in place of credential IDs.
func (w *world) dump() string {
	var b strings.Builder
	all, marks := w.contents()
	for _, r := range all {
		proofs := map[string]bool{}
		for _, p := range r.Proofs {
			known := w.password(p.Credential)
			for _, ref := range p.Secrets {
				known += "/" + ref.UID
			}
			proofs[known] = true
		}
		open := ""
		if r.Open {
			open = " open"
		}
		fmt.Fprintf(&b, "record %s%s %v\n", short(r.Pair), open, slices.Sorted(maps.Keys(proofs)))
	}
	for _, m := range marks {
		fmt.Fprintf(&b, "mark %s (%s)\n", short(m.Pair), m.Origin)
	}
	for _, in := range w.intents() {
		fmt.Fprintf(&b, "intent %s\n", in)
	}
	fmt.Fprintf(&b, "%d grants\n", w.Grants())
	return b.String()
}

func short(p records.Pair) string {
	return strings.TrimPrefix(p.ImageID, "sha256:")[:1] + " " + strings.TrimPrefix(p.Repository, "repo.test/")
}

func scenarioID(s string) string {
	if s == "" {
		return ""
	}
	return "sha256:" + strings.Repeat(s, 64)[:64]
}

func full(name string) string {
	if name == "" || strings.HasPrefix(name, "sha256:") {
		return name
	}
	return "repo.test/" + name
}

func said(err error) string {
	if err != nil {
		return "error: " + err.Error() + "\n"
	}
	return ""
}

func allowlist(d *datadriven.TestData) (list []string) {
	for _, a := range d.CmdArgs[1:] {
		list = append(list, full(a.Key))
	}
	return list
}
