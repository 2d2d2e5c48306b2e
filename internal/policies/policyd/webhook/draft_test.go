package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/hook"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

const noPatch = "[]"

// initialised returns the settings of a webhook with one initialiser.
func initialised(f func(context.Context, *webhook.Draft) webhook.HookAnswers) webhook.Options {
	return webhook.Options{
		Initialisers: func(context.Context) func(context.Context, *webhook.Draft) webhook.HookAnswers { return f },
	}
}

// Without initialisers a request costs what it costs without the setting.
func TestNoInitialisersNoAllocation(t *testing.T) {
	body := pod("{containers: [{name: c, image: a}]}").body(t)
	allocations := func(o webhook.Options) float64 {
		h := testkit.Value(webhook.New(o))(t)
		w := &world{Handler: h}
		return testing.AllocsPerRun(200, func() { w.post(t.Context(), webhook.MutatePath, body) })
	}
	observe := func(webhook.Event) {}
	without, none := webhook.Options{Observe: observe}, initialised(nil)
	none.Observe = observe
	none.Initialisers = func(context.Context) func(context.Context, *webhook.Draft) webhook.HookAnswers { return nil }
	// A pool of net/http that drops a buffer moves the average by one; a draft of the pod costs dozens.
	if a, b := allocations(without), allocations(none); b > a+5 {
		t.Errorf("%v allocations with a set that has no initialiser; want %v", b, a)
	}
}

// Digests are added to the images that the initialisers have left, and the paths are those of the result.
func TestDigestsAfterInitialisers(t *testing.T) {
	o := initialised(func(ctx context.Context, d *webhook.Draft) (none webhook.HookAnswers) {
		testkit.Must(t, d.Patch(ctx, "hook a/b", true, []byte(`[{"op":"add","path":"/spec/containers/0",
			"value":{"name":"first","image":"added:1"}},{"op":"add","path":"/metadata/annotations","value":{"a<b":"&"}}]`)))
		return none
	})
	o.Digests = (&pinner{}).digests
	w := newWorld(t, o)
	got, _, r := w.mutated(t, pod("{containers: [{name: c, image: 'app:1'}]}"))
	if text := object(t, got); !r.Allowed || !strings.Contains(text, "added:1@"+digestOf("added:1")) ||
		!strings.Contains(text, "app:1@"+digestOf("app:1")) || !strings.Contains(text, `a\u003cb`) {
		t.Errorf("%+v, %s", r, text)
	}
	if a := r.AuditAnnotations; a["patched-by"] != "hook a/b" ||
		!strings.Contains(a["image-digests"], "containers/first") {
		t.Errorf("audit annotations %v", a)
	}
	if e := w.last(); e.Patched != "hook a/b" || e.Outcome != webhook.Changed {
		t.Errorf("the event is %+v", e)
	}
}

// An object with a field of a newer API server keeps it, and gets no other one.
func TestDraftsOfNewerPods(t *testing.T) {
	patches := map[string]bool{
		`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`: true,
		`[{"op":"replace","path":"/spec/newField","value":2}]`:       true,
		`[{"op":"add","path":"/spec/other","value":1}]`:              false,
	}
	for patch, applies := range patches {
		var err error
		w := newWorld(t, initialised(func(ctx context.Context, d *webhook.Draft) (none webhook.HookAnswers) {
			err = d.Patch(ctx, "x", true, []byte(patch))
			return none
		}))
		got, _, _ := w.mutated(t, pod("{newField: 1, containers: [{name: c, image: a}]}"))
		if (err == nil) != applies || !strings.Contains(object(t, got), "newField") {
			t.Errorf("%s: %v, %s", patch, err, object(t, got))
		}
	}
}

// A panic of the judgement denies.
func TestInitialisersThatPanic(t *testing.T) {
	w := newWorld(t, initialised(func(context.Context, *webhook.Draft) webhook.HookAnswers { panic("x") }))
	if _, _, r := w.mutated(t, pod("{containers: [{name: c, image: a}]}")); r.Allowed || len(w.panics) != 1 {
		t.Errorf("%+v, panics %v; want a denial", r, w.panics)
	}
}

// Pods with many values are decoded one at a time, and no place is held while an initialiser is asked.
func TestDraftsOfManyValues(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		many := "{containers: [{name: c, image: a, args: [" + strings.Repeat("a, ", 5000) + "]}]}"
		release, decoding, next := make(chan struct{}), atomic.Int32{}, make(chan struct{})
		o := initialised(func(ctx context.Context, d *webhook.Draft) (none webhook.HookAnswers) {
			<-release // is asked
			if err := d.Change(ctx, "x", true, func(pod []byte) ([]byte, error) {
				decoding.Add(1)
				<-next
				return pod, nil
			}); err != nil {
				t.Error(err)
			}
			return none
		})
		w := newWorld(t, o)
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if _, _, r := w.mutated(t, pod(many)); !r.Allowed {
					t.Errorf("%+v", r)
				}
			})
		}
		synctest.Wait() // all three are asked
		close(release)
		for n := range int32(3) {
			if synctest.Wait(); decoding.Load() != n+1 {
				t.Errorf("%d pods are changed at the same time; want one after another", decoding.Load()-n)
			}
			next <- struct{}{}
		}
		all.Wait()
	})
}

// The result of an initialiser is used as a whole, with the pod before it after an error.
func TestDraftsAfterErrors(t *testing.T) {
	w := newWorld(t, initialised(func(ctx context.Context, d *webhook.Draft) (none webhook.HookAnswers) {
		before := string(d.Request().Object.Raw)
		for _, patch := range []string{
			`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}},{"op":"remove","path":"/absent"}]`,
			`[{"op":"add","path":"/metadata/labels","value":{"a":1}}]`, "", "{", "null", noPatch,
		} {
			err := d.Patch(ctx, "x", true, []byte(patch))
			if text := string(
				d.Request().Object.Raw,
			); text != before ||
				(err == nil) != (patch == noPatch || patch == "null") {
				t.Errorf("%q: %v, %s", patch, err, text)
			}
		}
		if err := d.Patch(
			ctx,
			"x",
			false,
			[]byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`),
		); err != nil ||
			string(d.Request().Object.Raw) != before {
			t.Errorf("without effect: %v", err)
		}
		wrong := errors.New("wrong")
		if err := d.Change(ctx, "x", true, func([]byte) ([]byte, error) { return nil, wrong }); !errors.Is(err, wrong) {
			t.Errorf("Change() = %v", err)
		}
		none.Add(&policyfiles.Hook{Name: "a/b"}, policyfiles.HookAnswer{Hook: "a/b", Allowed: true, Failure: "gone"})
		return none
	}))
	_, _, r := w.mutated(t, pod("{containers: [{name: c, image: a}]}"))
	if len(r.Patch) > 0 || fmt.Sprint(r.AuditAnnotations) != "map[failed-open:true]" ||
		w.last().Outcome != webhook.Unchanged {
		t.Errorf("%+v, %+v", r, w.last())
	}
}

// A patch that would put an object into itself, or multiply it, is not applied: encoding the result would end the
// process. Neither is one whose cost is out of proportion.
func TestHostilePatchesOfInitialisers(t *testing.T) {
	const move, slash = `{"op":"move","from":"/","path":"/%s"}`, `{"op":"add","path":"/","value":1}`
	into := "[" + slash + "," + fmt.Sprintf(move, "x") + "," + slash + "," + fmt.Sprintf(move, "x/y") + "]"
	var twice []string
	for i := range 40 {
		twice = append(twice, slash, fmt.Sprintf(move, fmt.Sprint("x", i)))
	}
	nested := strings.Repeat("[", 70) + strings.Repeat("]", 70)
	deep := strings.Repeat("/a", 65)
	many := "[" + strings.Repeat(`{"op":"test","path":"/kind","value":"Pod"},`, 1000) + slash + "]"
	const place, names = "a path is not a place in the pod", "a path with more than 64 names"
	double := `[{"op":"add","path":"/spec/x","value":{"a":0,"a":0}}`
	for i := 1; i < 40; i++ {
		double += `,{"op":"add","path":"/spec/x` + strings.Repeat("/a", i) + `","value":{"a":0,"a":0}}`
	}
	moves := strings.Repeat(`{"op":"move","from":"/spec/a/b/c/d","path":"/spec/e/f/g/h"},`, 101)
	patches := map[string]string{
		double + "]": "a field twice",
		`[{"op":"test","path":"/kind","path":"/spec","value":"Pod"}]`: "a field twice",
		"[" + strings.TrimSuffix(moves, ",") + "]":                    "1000 names in the paths of moves and copies",
		into: place, "[" + strings.Join(twice, ",") + "]": place,
		`[{"op":"copy","from":"/spec/","path":"/spec/a"}]`:            place,
		`[{"op":"copy","from":"/spec//containers","path":"/spec/a"}]`: place,
		`[{"op":"move","from":"","path":"/x"}]`:                       place,
		`[{"op":"add","path":"","value":{}}]`:                         place,
		`[{"op":"remove","path":"spec/a"}]`:                           place,
		`[{"op":"test","path":"/","value":null}]`:                     place,
		`[{"op":"add","path":"/metadata//a","value":1}]`:              place,
		`[{"op":"test","path":"` + deep + `","value":null}]`:          names,
		`[{"op":"copy","from":"` + deep + `","path":"/a"}]`:           names,
		`[{"op":"test","path":"/x","value":` + nested + `}]`:          "more than 64 levels",
		many: "more than 1000 operations",
		`[{"op":"add","path":"/spec/containers/0/args","value":[null]}]`: "a list has null",
		`[{"op":"add","path":"/spec/containers/1","value":null}]`:        "a list has null",
	}
	w := newWorld(t, initialised(func(ctx context.Context, d *webhook.Draft) (none webhook.HookAnswers) {
		before := string(d.Request().Object.Raw)
		for patch, want := range patches {
			err := d.Patch(ctx, "x", true, []byte(patch))
			if err == nil || !strings.Contains(err.Error(), want) || string(d.Request().Object.Raw) != before {
				t.Errorf("%.100s: %v; want %s", patch, err, want)
			}
		}
		allowed := "[" + strings.Repeat(`{"op":"test","path":"/kind","value":"Pod"},`, 999) +
			`{"op":"add","path":"/metadata/labels","value":{"a~1b/~0":"c"}}]`
		_ = d.Patch(ctx, "x", true, []byte(allowed))
		canceled, cancel := context.WithCancel(ctx)
		cancel()
		if err := d.Patch(canceled, "x", true, []byte(noPatch)); !errors.Is(err, hook.ErrBusy) {
			t.Errorf("after the end of the time: %v", err)
		}
		return none
	}))
	if _, _, r := w.mutated(t, pod("{containers: [{name: c, image: a}]}")); !r.Allowed || len(w.panics) > 0 {
		t.Errorf("%+v, panics %v", r, w.panics)
	}
}

// What a user can cause is an error that denies, whatever the failure policy of an initialiser is.
func TestDraftsOfUsers(t *testing.T) {
	label := []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"` + strings.Repeat("x", 60<<10) + `"}}]`)
	values := func(n int) string {
		return `[{"op":"add","path":"/spec/containers/0/args","value":["a"` + strings.Repeat(`,""`, n) + `]}]`
	}
	for name, tc := range map[string]struct {
		spec, annotation, patch string
		asked                   bool
	}{
		"bytes after it":  {annotation: strings.Repeat("x", 70<<10), patch: string(label), asked: true},
		"bytes":           {annotation: strings.Repeat("x", 130<<10), patch: noPatch},
		"values":          {spec: ", args: [" + strings.Repeat("a, ", 11_000) + "]", patch: noPatch},
		"values after it": {spec: ", args: [" + strings.Repeat("a, ", 1000) + "]", patch: values(10_001), asked: true},
		"copies": {
			annotation: strings.Repeat("x", 60<<10), asked: true, patch: `[` + strings.Repeat(
				`{"op":"copy","from":"/metadata/annotations/a","path":"/metadata/annotations/b"},`, 3) +
				`{"op":"remove","path":"/metadata/annotations/b"}]`,
		},
	} {
		w := newWorld(t, initialised(func(ctx context.Context, d *webhook.Draft) (none webhook.HookAnswers) {
			if err := d.Denied(); (err == nil) != tc.asked || err != nil && !errors.Is(err, hook.ErrTooLarge) {
				t.Errorf("%s: Denied() = %v", name, err)
			}
			if err := d.Patch(ctx, "x", true, []byte(tc.patch)); !errors.Is(err, hook.ErrTooLarge) {
				t.Errorf("%s: Patch() = %v", name, err)
			}
			return none
		}))
		w.mutated(t, pod("{containers: [{name: c, image: a"+tc.spec+"}]}", "a: '"+tc.annotation+"'"))
	}
	many := strings.Repeat("{name: c, image: a}, ", 1001)
	w := newWorld(t, initialised(func(context.Context, *webhook.Draft) (none webhook.HookAnswers) {
		t.Error("it was asked")
		return none
	}))
	if _, _, r := w.mutated(t, pod("{containers: ["+many+"]}")); r.Allowed || r.Result.Code != 422 {
		t.Errorf("1001 containers: %+v", r)
	}
}

// Users let others wait by large pods. One whose time is half over because of it is denied as busy.
func TestDraftsThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		many := pod("{containers: [{name: c, image: a, args: [" + strings.Repeat("a, ", 5000) + "]}]}")
		var number atomic.Int32
		both, next := make(chan struct{}), make(chan struct{})
		w := newWorld(t, initialised(func(ctx context.Context, d *webhook.Draft) (none webhook.HookAnswers) {
			n := number.Add(1)
			if err := d.Denied(); errors.Is(err, hook.ErrBusy) != (n == 3) { // it has waited to be decoded
				t.Errorf("%d: Denied() = %v", n, err)
			}
			if n == 2 {
				<-both
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				if err := d.Patch(short, "x", true, []byte(noPatch)); !errors.Is(err, hook.ErrBusy) {
					t.Errorf("no place in time: %v", err)
				}
			}
			err := d.Change(ctx, "x", true, func(pod []byte) ([]byte, error) {
				if n == 1 {
					<-next
				}
				return pod, nil
			})
			if denied := d.Denied(); err != nil || !errors.Is(denied, hook.ErrBusy) {
				t.Errorf("%d: Change() = %v, Denied() = %v", n, err, denied)
			}
			if d.Asked(time.Second); d.Denied() != nil { // another initialiser took that
				t.Errorf("%d: Denied() = %v", n, d.Denied())
			}
			return none
		}))
		var all sync.WaitGroup
		send := func() { all.Go(func() { w.mutated(t, many) }); synctest.Wait() }
		number.Store(1)
		send() // the second, before the first has the place
		number.Store(0)
		send()
		number.Store(2)
		close(both)
		send()
		time.Sleep(5 * time.Second)
		close(next)
		all.Wait()
	})
}

// The labels of the namespace are read once, and the view is that of the pod as it is.
func TestDraftsAreViewed(t *testing.T) {
	var read atomic.Int32
	o := initialised(func(ctx context.Context, d *webhook.Draft) (none webhook.HookAnswers) {
		first := d.View()
		d.Request()
		testkit.Must(t, d.Patch(ctx, "x", false, []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`)),
			d.Patch(ctx, "x", true, []byte(noPatch)))
		if d.View() != first {
			t.Error("a pod that is the same is viewed again")
		}
		testkit.Must(t, d.Patch(ctx, "x", true, []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`)))
		d.Request()
		labels, _ := d.View().Labels.Effective()
		of, known := d.View().NamespaceLabels.Effective()
		if labels["a"] != "b" || of["tier"] != "dev" || !known {
			t.Errorf("the view is %+v", d.View())
		}
		return none
	})
	o.Labels = func(context.Context, string) (map[string]string, bool) {
		read.Add(1)
		return map[string]string{"tier": "dev"}, true
	}
	got, _, r := newWorld(t, o).mutated(t, pod("{containers: [{name: c, image: a}]}"))
	if !r.Allowed || read.Load() != 1 || !strings.Contains(object(t, got), `"labels":{"a":"b"}`) {
		t.Errorf("%+v, labels read %d times, %s", r, read.Load(), object(t, got))
	}
}

// What changes a pod uses one set of files.
func TestChangesOfOneSet(t *testing.T) {
	type key struct{}
	var used []any
	o := initialised(func(ctx context.Context, _ *webhook.Draft) (none webhook.HookAnswers) {
		used = append(used, ctx.Value(key{}))
		return none
	})
	begun := 0
	o.Begin = func(ctx context.Context) context.Context {
		begun++
		return context.WithValue(ctx, key{}, "set")
	}
	o.Digests = func(ctx context.Context, _ string, images []verify.Tagged) ([]string, []admission.Finding, []string) {
		used = append(used, ctx.Value(key{}))
		return []string{digestOf("a")}, nil, nil
	}
	o.Changes = func(ctx context.Context, _ string, _ []verify.Element) (none []*verify.Change, _ verify.Refusals) {
		used = append(used, ctx.Value(key{}))
		return none, verify.Refusals{}
	}
	newWorld(t, o).mutated(t, pod("{containers: [{name: c, image: a}]}"))
	if fmt.Sprint(used) != "[set set set]" || begun != 1 {
		t.Errorf("the sets are %v, %d times; want one", used, begun)
	}
}

// What initialisers say leaves room for what others do.
func TestInitialisersThatSayMuch(t *testing.T) {
	w := newWorld(t, initialised(func(ctx context.Context, d *webhook.Draft) (all webhook.HookAnswers) {
		for i := range 8 {
			all.Add(&policyfiles.Hook{Name: "a/b", Mutating: true}, policyfiles.HookAnswer{
				Hook: "a/b", Allowed: true, Warnings: slices.Repeat([]string{strings.Repeat("w", 1000)}, 5),
				AuditAnnotations: map[string]string{fmt.Sprint("a.b.", i): strings.Repeat("x", 6<<10)},
			})
		}
		if len(all.Warnings) != 16 {
			t.Errorf("%d warnings; want two of each", len(all.Warnings))
		}
		all.Warnings = all.Warnings[:4]
		testkit.Must(t, d.Patch(ctx, "x", true, []byte(`[{"op":"add","path":"/metadata/labels","value":{"a":"b"}}]`)))
		return all
	}))
	_, _, r := w.mutated(t, pod("{containers: [{name: c, image: a}]}"))
	if len(r.Warnings) != 4 || len(r.Warnings[3]) > 300 || len(r.AuditAnnotations) != 6 ||
		r.AuditAnnotations["patched-by"] != "x" {
		t.Errorf("%d warnings, %d audit annotations", len(r.Warnings), len(r.AuditAnnotations))
	}
}
