package webhook_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/pullgate/pullgate/internal/policies/policyd/webhook"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
)

const noPatch = "[]"

// initialised returns the settings of a webhook with one initialiser.
func initialised(f func(context.Context, *webhook.Draft) webhook.HookAnswers) webhook.Options {
	return webhook.Options{Initialisers: func() func(context.Context, *webhook.Draft) webhook.HookAnswers { return f }}
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
	none.Initialisers = func() func(context.Context, *webhook.Draft) webhook.HookAnswers { return nil }
	if a, b := allocations(without), allocations(none); a != b {
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
