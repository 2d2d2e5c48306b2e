package verify_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/requirement"
)

// pinned returns a policy that adds digests to images.
func pinned(name, images, fields string) string {
	return fmt.Sprintf(`apiVersion: kyverno.io/v1
kind: ClusterPolicy
metadata: {name: %s}
spec:
  %s
  rules:
  - name: digest
    match: {any: [{resources: {kinds: [Pod]}}]}
    exclude: {any: [{resources: {namespaces: [free]}}]}
    verifyImages: [{imageReferences: ['%s'], digestMutate: true}]
`, name, fields, images)
}

func tagged(images ...string) (all []verify.Tagged) {
	for _, i := range images {
		all = append(all, verify.Tagged{Image: i})
	}
	return all
}

func (w *world) digests(t *testing.T, namespace string, images ...string) (
	digests []string, findings []admission.Finding, unresolved []string,
) {
	t.Helper()
	return w.Digests(t.Context(), w.rules, namespace, tagged(images...))
}

// digestFor returns a digest that the registry of a test has for a number.
func digestFor(n int) string { return fmt.Sprintf("sha256:%064d", n) }

func TestDigests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pinned("pin", "r.test/*", ""), fmt.Sprintf(digest, ""))
		w.resolve = func(_, tag string) (string, error) { return digestFor(len(tag)), nil }
		for _, tc := range []struct {
			namespace, image, want string
			asked                  int64
		}{
			{"team", "r.test/a:1", digestFor(1), 1},
			{"team", "r.test/a:1", digestFor(1), 0},
			{"other", "r.test/a:1", digestFor(1), 0},
			{"team", "r.test/a", digestFor(6), 1},
			{"team", "r.test/a:latest", digestFor(6), 0},
			{"free", "r.test/b:1", "", 0},
			{"team", "digest.test/b:1", "", 0},
			{"team", "r.test/a:1@" + someDigest, "", 0},
			{"team", "r.test/a@" + someDigest, "", 0},
		} {
			before := w.resolved.Load()
			got, findings, unresolved := w.digests(t, tc.namespace, tc.image)
			if asked := w.resolved.Load() - before; !slices.Equal(got, []string{tc.want}) || asked != tc.asked ||
				len(findings) > 0 || len(unresolved) > 0 {
				t.Errorf("%s in %s: %q, asked %d times, %v %q; want %s, %d", tc.image, tc.namespace, got, asked, findings,
					unresolved, tc.want, tc.asked)
			}
		}
		time.Sleep(11 * time.Second) // the tag can have moved
		w.resolve = func(string, string) (string, error) { return digestFor(7), nil }
		if got, _, _ := w.digests(t, "team", "r.test/a:1"); got[0] != digestFor(7) {
			t.Errorf("after the lifetime of a tag: %q", got)
		}
		before := w.resolved.Load()
		got, _, _ := w.Digests(t.Context(), w.rules, "team", []verify.Tagged{
			{Image: "r.test/s:1", Stored: digestFor(8)},
			{Image: "r.test/s:1"},
			{Image: "r.test/s:1"},
			{Image: "free.test/s:1", Stored: digestFor(8)},
		})
		if want := []string{digestFor(8), digestFor(7), digestFor(7), ""}; !slices.Equal(got, want) ||
			w.resolved.Load() != before+1 {
			t.Errorf("with stored digests: %q; want %q, and one request", got, want)
		}
	})
}

func TestImagesThatCannotBeResolved(t *testing.T) {
	const sentence = `image %q: its digest, which rule digest of policy %s adds, is not known: pullgate-policyd could ` +
		`not read it from the registry`
	const unnamed = `image %q is an image ID or not a valid name, and rule digest of policy %s may be for it; name the ` +
		`image by its repository with a tag or digest`
	failed := errors.New("connection refused by 10.0.0.1")
	for fields, denies := range map[string]bool{
		"failurePolicy: Fail": true,
		"failurePolicy: Fail\n  validationFailureAction: Audit":                false,
		"failurePolicy: Ignore":                                                false,
		"background: true":                                                     false,
		"failurePolicy: Ignore\n  webhookConfiguration: {failurePolicy: Fail}": true,
	} {
		for _, image := range []string{"r.test/gone:1", strings.Repeat("a", 64), "sha256:abcdef", "r.test/A:1", "a b"} {
			w := newWorld(t, pinned("pin", "r.test/*", fields), pinned("a-weak", "*", "failurePolicy: Ignore"))
			w.resolve = func(string, string) (string, error) { return "", failed }
			got, findings, unresolved := w.digests(t, "team", image, image)
			if !slices.Equal(got, []string{"", ""}) {
				t.Errorf("%s: %q", image, got)
			}
			policy := map[bool]string{true: "pin", false: "a-weak"}[denies]
			text, reason, otherwise := sentence, admission.DigestRequired, "; the image keeps its tag"
			if image != "r.test/gone:1" {
				text, reason, otherwise = unnamed, admission.FieldUnknown, ""
			}
			text = fmt.Sprintf(text, image, policy)
			switch {
			case denies && (len(findings) != 1 || len(unresolved) > 0 || findings[0].Message != text ||
				findings[0].Answer != admission.Deny || findings[0].Reason != reason || findings[0].Audit),
				!denies && (len(findings) > 0 || !slices.Equal(unresolved, []string{text + otherwise})):
				t.Errorf("%s: %s: %+v, %q", fields, image, findings, unresolved)
			}
			if asked := image == "r.test/gone:1"; asked != strings.Contains(w.logged(t), failed.Error()) ||
				asked != (w.resolved.Load() == 1) {
				t.Errorf("%s: asked %d times, log %s; want the reason", image, w.resolved.Load(), w.logged(t))
			}
		}
	}
}

// Otherwise an alert about verifications could be caused by tags that do not exist.
func TestOnlyFailedVerificationsAreCounted(t *testing.T) {
	w := newWorld(t, pinned("pin", "r.test/*", ""), signed("a", "r.test/**", ""))
	failed := errors.New("failed")
	w.resolve = func(string, string) (string, error) { return "", failed }
	w.digests(t, "team", "r.test/gone:1")
	if n := len(w.outcomes); n != 0 {
		t.Errorf("outcomes after a resolution: %v; want none", w.outcomes)
	}
	w.judge(t, "r.test/gone:1")
	if w.outcomes[verify.Failed] != 1 || len(w.outcomes) != 1 {
		t.Errorf("outcomes after a verification: %v; want one that failed", w.outcomes)
	}
}

// What the registry has under the tag when the pod is changed is verified, and nothing else, although the tag moves.
func TestTheAddedDigestIsVerified(t *testing.T) {
	w := newWorld(t, pinned("pin", "r.test/*", ""), signed("a", "r.test/**", ""))
	w.resolve = func(string, string) (string, error) { return digestFor(1), nil }
	got, _, _ := w.digests(t, "team", "r.test/app:1")
	w.resolve = func(_, reference string) (string, error) {
		t.Errorf("asked for %s again", reference)
		return digestFor(2), nil
	}
	var asked []string
	w.verify = func(_ context.Context, i verify.Image) (requirement.Result, error) {
		asked = append(asked, i.Name.String())
		return requirement.Result{Met: true, Digest: digestFor(1)}, nil
	}
	findings, undetermined := w.judge(t, "r.test/app:1@"+got[0])
	want := []string{"r.test/app@" + digestFor(1)}
	if describe(findings) != "Admit a" || len(undetermined) > 0 || !slices.Equal(asked, want) {
		t.Errorf("%s, %q, asked about %q", describe(findings), undetermined, asked)
	}
}

// A template of pods may have a tag where the pods get a digest.
func TestTemplatesOfPodsThatGetDigests(t *testing.T) {
	w := newWorld(t, fmt.Sprintf(digest, ""), pinned("pin", "digest.test/pinned*", ""))
	for image, want := range map[string]string{
		"digest.test/app:1": "Deny DIGEST_REQUIRED digest", "digest.test/pinned:1": "Admit digest",
		"digest.test/pinned:1@" + someDigest: "Admit digest",
	} {
		findings, _ := w.Judge(t.Context(), w.rules, "team", []string{image}, true, nil)
		if got := describe(findings); got != want {
			t.Errorf("%s in a template: %q; want %q", image, got, want)
		}
	}
	podsOnly := strings.Replace(pinned("pin", "digest.test/pinned*", ""), "{name: pin}",
		"{name: pin, annotations: {pod-policies.kyverno.io/autogen-controllers: none}}", 1)
	only := newWorld(t, fmt.Sprintf(digest, ""), podsOnly)
	for image, want := range map[string]string{"app": "Deny DIGEST_REQUIRED digest", "pinned": "Admit digest"} {
		findings, _ := only.Judge(t.Context(), only.rules, "team", []string{"digest.test/" + image + ":1"}, true, nil)
		if got := describe(findings); got != want {
			t.Errorf("%s in a template, with a rule that is for pods only: %q; want %q", image, got, want)
		}
	}
	findings, _ := w.judge(t, "digest.test/pinned:1")
	if got := describe(findings); got != "Deny DIGEST_REQUIRED digest" {
		t.Errorf("in a pod: %q; want a denial", got)
	}
}

// A namespace with many images leaves turns of a registry to others, and cannot fill the queue, also if its requests
// are given up.
func TestNamespacesShareTheTurnsOfRegistries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pinned("pin", "*", "failurePolicy: Fail"))
		w.resolve = func(string, string) (string, error) {
			time.Sleep(time.Second)
			return digestFor(1), nil
		}
		for i := range 40 {
			go func() {
				var images []string
				for j := range 10 {
					images = append(images, fmt.Sprintf("r.test/greedy-%d:%d", i, j))
				}
				for range 5 {
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					w.Digests(ctx, w.rules, "greedy", tagged(images...))
					cancel()
				}
			}()
		}
		time.Sleep(450 * time.Millisecond)
		if _, findings, _ := w.digests(t, "greedy", "r.test/one-more:1"); len(findings) != 1 ||
			!strings.Contains(w.logged(t), "too much work in flight") {
			t.Errorf("%v, log %s; want the namespace to wait", findings, w.logged(t))
		}
		began := time.Now()
		got, findings, _ := w.digests(t, "team", "r.test/app:1")
		if got[0] != digestFor(1) || len(findings) > 0 || time.Since(began) > 1500*time.Millisecond {
			t.Errorf("%q, %v after %v; want the digest after a second", got, findings, time.Since(began))
		}
		time.Sleep(time.Minute)
	})
}

// The turns of a namespace are not those of one with its name in another cluster.
func TestNamespacesOfClustersHaveTheirOwnTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pinned("pin", "*", "failurePolicy: Fail"))
		w.resolve = func(string, string) (string, error) {
			time.Sleep(time.Second)
			return digestFor(1), nil
		}
		one, two := admission.InCluster(t.Context(), "one"), admission.InCluster(t.Context(), "two")
		for i := range 32 { // 4 at a time
			go func() { w.Digests(one, w.rules, "team", tagged(fmt.Sprintf("r.test/greedy:%d", i))) }()
		}
		time.Sleep(100 * time.Millisecond)
		for _, ctx := range []context.Context{two, t.Context()} {
			began := time.Now()
			got, findings, _ := w.Digests(ctx, w.rules, "team", tagged("r.test/app:"+admission.ClusterOf(ctx)+"1"))
			if got[0] != digestFor(1) || len(findings) > 0 || time.Since(began) > 1500*time.Millisecond {
				t.Errorf("cluster %q: %q, %v after %v; want the digest after a second", admission.ClusterOf(ctx), got, findings,
					time.Since(began))
			}
		}
		// Facts about images are for all clusters.
		if got, _, _ := w.Digests(one, w.rules, "team", tagged("r.test/app:two1")); got[0] != digestFor(1) {
			t.Errorf("%q; want the digest that another cluster has asked for", got)
		}
		time.Sleep(time.Minute)
	})
}

// A tenant with many namespaces leaves room for the images of others.
func TestManyGreedyNamespacesDoNotFillTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pinned("pin", "*", "failurePolicy: Fail"))
		w.resolve = func(string, string) (string, error) {
			time.Sleep(time.Second)
			return digestFor(1), nil
		}
		for i := range 16 * 40 { // from 16 namespaces, each with more than it may have in flight
			go func() {
				var images []string
				for j := range 8 {
					images = append(images, fmt.Sprintf("r.test/greedy-%d:%d", i, j))
				}
				w.Digests(t.Context(), w.rules, fmt.Sprint("greedy-", i%16), tagged(images...))
			}()
		}
		time.Sleep(50 * time.Millisecond)
		if got, findings, _ := w.digests(t, "victim", "victim.test/app:1"); got[0] != digestFor(1) || len(findings) > 0 {
			t.Errorf("%q, %v, log %s; want the digest", got, findings, w.logged(t))
		}
		time.Sleep(time.Minute)
	})
}

// A request that is given up does not start to resolve the rest of its images.
func TestNothingIsResolvedForARequestThatHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pinned("pin", "*", "failurePolicy: Fail"))
		w.resolve = func(string, string) (string, error) {
			time.Sleep(time.Second)
			return digestFor(1), nil
		}
		var images []string
		for i := range 400 {
			images = append(images, fmt.Sprintf("r.test/app:%d", i))
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		got, findings, _ := w.Digests(ctx, w.rules, "team", tagged(images...))
		if len(findings) != 400 || !slices.Equal(got, make([]string, 400)) {
			t.Errorf("%d findings, %q; want one for each image", len(findings), got)
		}
		time.Sleep(time.Minute)
		if asked := w.resolved.Load(); asked != 8 {
			t.Errorf("%d images were resolved; want those that had begun, 8", asked)
		}
	})
}

// An API server that does not wait gets the digest when it repeats the request.
func TestResolutionsGoOnWithoutTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, pinned("pin", "*", ""))
		w.resolve = func(string, string) (string, error) {
			time.Sleep(5 * time.Second)
			return digestFor(1), nil
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if got, _, unresolved := w.Digests(ctx, w.rules, "team", tagged("r.test/app:1")); got[0] != "" ||
			len(unresolved) != 1 || !strings.Contains(w.logged(t), "not answered in time") {
			t.Errorf("%q, %q, log %s", got, unresolved, w.logged(t))
		}
		time.Sleep(5 * time.Second)
		if got, _, _ := w.digests(t, "team", "r.test/app:1"); got[0] != digestFor(1) || w.resolved.Load() != 1 {
			t.Errorf("%q after %d requests; want one", got, w.resolved.Load())
		}
	})
}
