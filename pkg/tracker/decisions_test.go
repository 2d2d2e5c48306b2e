package tracker_test

import (
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Every case of the table, against the library: with the credentials that the pod presents, as in a pull, and with the
// contents of its Secrets from a pod source. Where the coordinates of the Secrets are needed, the stricter verdict is
// correct without them.
func TestDecisions(t *testing.T) {
	table := testkit.Value(testkit.ReadDecisions())(t)
	ran := map[string]int{}
	for _, c := range table.Cases {
		ran[c.Needs]++
		t.Run(c.Name+"/by its Secrets", func(t *testing.T) { decide(t, table, c, true) })
		if c.Needs == testkit.NeedsPods {
			c.Verdict, c.NewRecord = testkit.Reverify, false
		}
		t.Run(c.Name+"/by a pull", func(t *testing.T) { decide(t, table, c, false) })
	}
	if ran[testkit.NeedsCRI] < 30 || ran[testkit.NeedsPods] < 1 || len(ran) != 2 {
		t.Errorf("cases that were run, by what they need: %v; the table has more", ran)
	}
}

func decide(t *testing.T, table testkit.Decisions, c testkit.Case, bySecrets bool) {
	t.Helper()
	mode, allowlist, err := testkit.Policy(c.Policy)
	testkit.Must(t, err)
	p := testkit.Value(policy.New(mode, allowlist))(t)
	asks := tracker.Pod{UID: "uid-of-the-pod", Namespace: "team-of-the-pod"}
	rules := tracker.Rules{Policy: p}
	switch c.Exempt {
	case "namespace":
		rules.ExemptNamespaces = []string{asks.Namespace}
	case "static":
		rules.ExemptStaticPods, asks.Static = true, true
	}
	w := newWorld(t, tracker.Options{Rules: rules, VerifyUntracked: true})
	w.prepare(table, c)

	if c.RuntimeError != "" {
		if d := w.CheckID(asks, imageref.New(c.Image)); (d.Verdict == policy.Reverify) != (c.Verdict == testkit.Hidden) {
			t.Errorf("CheckID(%s) = %v; want %s", c.Image, d.Verdict, c.Verdict)
		}
		return
	}
	id := testkit.ImageID(c.ID)
	img := image(id, c.Image)
	if c.ResolvedAsID {
		img = image(id, app+":1")
	}
	if id == "" {
		img = tracker.Image{}
	}
	if c.Grant {
		w.Restore(asks, imageref.New(c.Image), img, time.Now())
	}
	before := w.store.Written()
	r := tracker.Request{Pod: asks, Name: imageref.New(c.Image), Image: img}
	for _, s := range c.Pod {
		by := credential.New(credential.Login{Username: s.Username(), Password: s.Content})
		if bySecrets {
			ref := records.SecretRef{UID: s.UID, Namespace: s.Namespace, Name: s.Name}
			r.Secrets = append(r.Secrets, tracker.Secret{Credential: w.key.ID(by), Ref: ref})
		} else {
			r.Credentials = append(r.Credentials, by)
		}
	}
	got := w.Check(t.Context(), r)
	if got.Allowed() != (c.Verdict == testkit.Allow) || (got.Reason == policy.Absent) != (c.Verdict == testkit.Absent) {
		t.Errorf("Check = %v by %s; want %s", got.Verdict, got.Reason, c.Verdict)
	}
	if wrote := w.store.Written() != before; wrote != c.NewRecord {
		t.Errorf("a new credential was recorded: %v; want %v", wrote, c.NewRecord)
	}
	if c.Writes != nil && int(w.store.Written()-before) != *c.Writes {
		t.Errorf("Check wrote %d times; want %d", w.store.Written()-before, *c.Writes)
	}
}

// prepare writes the initial state of a case to disk.
func (w *world) prepare(table testkit.Decisions, c testkit.Case) {
	w.t.Helper()
	if c.Mark != "" {
		got, err := w.store.MarkPreloaded(records.Scan{
			Pairs: []records.Pair{{ImageID: testkit.ImageID(c.ID), Repository: "repo.test/any/pre"}},
			Now:   time.Now(),
		})
		if err != nil || len(got) != 1 {
			w.t.Fatalf("MarkPreloaded = %v, %v; want one mark", got, err)
		}
	}
	// The very first scan of a store marks what is present; it must be over.
	if _, err := w.store.MarkPreloaded(records.Scan{First: true, Now: time.Now()}); err != nil {
		w.t.Fatal(err)
	}
	if c.Intent != "" {
		w.begin(table.Intents[c.Intent].Name)
	}
	if c.Record == "" {
		return
	}
	rec := table.Records[c.Record]
	pair := records.Pair{ImageID: testkit.ImageID(rec.ID), Repository: rec.Repository}
	present := map[string]struct{}{pair.ImageID: {}}
	intent, _, err := w.store.BeginListed(rec.Repository+":1", rec.Repository, time.Now(), present)
	testkit.Must(w.t, err)
	result := records.Result{Pair: pair, Open: rec.Open, At: time.Now()}
	for _, s := range rec.Secrets {
		result.Credential = w.key.ID(credential.New(credential.Login{Username: s.Username(), Password: s.Content}))
		result.Secrets = []records.SecretRef{{UID: s.UID, Namespace: s.Namespace, Name: s.Name}}
	}
	if rec.Open || len(rec.Secrets) > 0 {
		err = w.store.Prove(intent, result)
	} else {
		err = w.store.Settle(records.Settlement{Intents: []records.Intent{intent}, Present: []records.Pair{pair}, Now: time.Now()})
	}
	testkit.Must(w.t, err)
	if rec.Unreadable {
		testkit.Must(w.t, w.store.Close()) // the facts of a store that cannot be used are unknown
	}
}
