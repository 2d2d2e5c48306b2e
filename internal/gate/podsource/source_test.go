package podsource_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const app = "repo.test/team/app:v1"

func (w *world) byUID(uid string) *podsource.Pod {
	w.Helper()
	p, ok := w.source.ByUID(uid)
	if !ok {
		w.Fatalf("ByUID(%s) is not known", uid)
	}
	return p
}

// wantCredentials compares the credentials of a pod for an image. whole means that no error is expected.
func (w *world) wantCredentials(uid, image string, whole bool, want ...tracker.Secret) {
	w.Helper()
	got, err := w.byUID(uid).Credentials(w.Context(), imageref.New(image))
	if diff := cmp.Diff(want, got); diff != "" || whole != (err == nil) || err != nil &&
		!errors.Is(err, podsource.ErrNotKnown) {
		w.Errorf("Credentials(%s) of %s = %v; want whole %v (-want +got):\n%s", image, uid, err, whole, diff)
	}
}

func (w *world) cred(secret, uid, registry string) tracker.Secret {
	return tracker.Secret{
		Credential: w.id(registry, uid), Ref: records.SecretRef{UID: uid, Namespace: "team-a", Name: secret},
	}
}

func TestPullPoliciesOfEachUse(t *testing.T) {
	inWorld(t, func(w *world) {
		p := pod("web", "u1", app)
		p.Spec.InitContainers = []corev1.Container{{
			Name: "prepare", Image: "repo.test/team/app:v1", ImagePullPolicy: "Always",
		}, {Name: "other", Image: "busybox", ImagePullPolicy: "Never"}}
		debug := corev1.EphemeralContainerCommon{Name: "debug", Image: "busybox:latest", ImagePullPolicy: "IfNotPresent"}
		p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: debug}}
		p.Spec.Volumes = []corev1.Volume{
			{Name: "data", VolumeSource: corev1.VolumeSource{
				Image: &corev1.ImageVolumeSource{Reference: "docker.io/library/busybox", PullPolicy: "Always"},
			}},
			{Name: "empty"},
		}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "broken", Image: "no image"})
		w.api.change("ADDED", p)
		w.start()
		got := w.byUID("u1")
		if want := (tracker.Pod{UID: "u1", Namespace: "team-a", Name: "web"}); got.Pod != want {
			t.Errorf("pod = %v; want %v", got.Pod, want)
		}
		busybox := []string{"Never", "IfNotPresent", "Always"}
		for image, want := range map[string][]string{
			app:                                      {"Always", "IfNotPresent"},
			"busybox":                                busybox,
			"busybox:latest":                         busybox,
			"index.docker.io/library/busybox:latest": busybox,
			"busybox:1":                              nil,
			"repo.test/app":                          nil,
			"no image":                               nil,
			"":                                       nil,
			"repo.test/team/ap":                      nil,
		} {
			if got, _ := w.source.PullPolicies("u1", imageref.New(image)); !slices.Equal(got, want) {
				t.Errorf("PullPolicies(%q) = %q; want %q", image, got, want)
			}
		}
		var of []string
		for _, u := range got.Uses(imageref.New("busybox")) {
			of = append(of, u.Container)
		}
		if want := []string{"other", "debug", ""}; !slices.Equal(of, want) {
			t.Errorf("Uses by %q; want %q", of, want)
		}
	})
}

func TestNothingIsKnownBeforeTheFirstList(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.change("ADDED", pod("web", "u1", app))
		w.api.refusing(func(*http.Request) int { return 403 })
		for range 2 {
			if _, ok := w.source.ByUID("u1"); ok || w.source.Synced() {
				t.Error("a pod is known, or the source synced, before any list")
			}
			if found, ok := w.source.Candidates(nil, imageref.New(app)); ok || found != nil {
				t.Errorf("Candidates = %v, %v before any list; want nothing known", found, ok)
			}
			w.start()
		}
		if _, err := (*podsource.Pod)(nil).Credentials(w.Context(), imageref.New(app)); !errors.Is(err,
			podsource.ErrNotKnown) {
			t.Errorf("Credentials of no pod = %v; want ErrNotKnown", err)
		}
		w.api.refusing(func(*http.Request) int { return 0 })
		w.pass(time.Minute)
		if !w.source.Synced() || w.failed(podsource.Forbidden) == 0 {
			t.Errorf("synced %v, %d times forbidden; want true after some", w.source.Synced(), w.failed(podsource.Forbidden))
		}
		w.byUID("u1")
	})
}

func TestCredentialsComeInTheOrderOfTheKubelet(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.put(secret("first", "s1", "repo.test", "other.test"))
		w.api.put(secret("second", "s2", "repo.test/team", "repo.test"))
		old := secret("old", "s3")
		old.Type, old.Data = corev1.SecretTypeDockercfg,
			map[string][]byte{corev1.DockerConfigKey: []byte(`{"https://repo.test/v1/":{"auth":"cmVwby50ZXN0OnMz"}}`)}
		w.api.put(old)
		w.api.change("ADDED", pod("web", "u1", app, "first", "", "second", "old"))
		w.start()
		w.wantCredentials("u1", app, true, w.cred("second", "s2", "repo.test/team"), w.cred("first", "s1", "repo.test"),
			w.cred("second", "s2", "repo.test"), w.cred("old", "s3", "repo.test"))
		w.wantCredentials("u1", "other.test/app", true, w.cred("first", "s1", "other.test"))
		w.wantCredentials("u1", "busybox", true)
		w.wantCredentials("u1", "no image", false)
		if n := w.api.requests("/secrets/first"); n != 1 {
			t.Errorf("%d requests for one Secret; want 1, when the pod arrived", n)
		}
	})
}

func TestASecretThatCannotBeReadIsNotKnown(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(w *world)
		reason  podsource.Reason
	}{
		"missing":   {func(*world) {}, podsource.Missing},
		"forbidden": {func(w *world) { w.api.refusing(refuseSecret("bad", 403)) }, podsource.Forbidden},
		"failing":   {func(w *world) { w.api.refusing(refuseSecret("bad", 500)) }, podsource.Server},
		"malformed": {func(w *world) {
			s := secret("bad", "s2")
			s.Data[corev1.DockerConfigJsonKey] = []byte(`{"auths":{"repo.test":{"auth":"%"}}}`)
			w.api.put(s)
		}, podsource.Malformed},
		"no answer": {func(w *world) {
			w.api.refusing(func(r *http.Request) int {
				if strings.HasSuffix(r.URL.Path, "/bad") {
					<-r.Context().Done()
				}
				return 0
			})
		}, podsource.Timeout},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				tc.prepare(w)
				w.api.put(secret("good", "s1", "repo.test"))
				w.api.change("ADDED", pod("web", "u1", app, "bad", "good"))
				w.api.change("ADDED", pod("lone", "u2", app, "bad"))
				w.start()
				began := time.Now()
				w.wantCredentials("u1", app, false, w.cred("good", "s1", "repo.test"))
				w.wantCredentials("u2", app, false)
				if took := time.Since(began); took > 4*time.Second {
					t.Errorf("two questions took %v; want at most two seconds each", took)
				}
				w.pass(time.Minute)
				if w.failed(tc.reason) == 0 {
					t.Errorf("reasons %v; want some %s", w.reasons, tc.reason)
				}
			})
		})
	}
}

func refuseSecret(name string, code int) func(*http.Request) int {
	return func(r *http.Request) int {
		if strings.HasSuffix(r.URL.Path, "/secrets/"+name) {
			return code
		}
		return 0
	}
}

func TestASecretOfAnotherTypeHasNoCredentials(t *testing.T) {
	inWorld(t, func(w *world) {
		opaque := secret("opaque", "s1", "repo.test")
		opaque.Type = corev1.SecretTypeOpaque
		empty := secret("empty", "s2")
		empty.Data = nil
		w.api.put(opaque)
		w.api.put(empty)
		w.api.change("ADDED", pod("web", "u1", app, "opaque", "empty"))
		w.start()
		w.wantCredentials("u1", app, true)
	})
}

func TestASecretIsReadAgainWhenItIsOld(t *testing.T) {
	inWorld(t, func(w *world) {
		w.startWithPull()
		w.wantCredentials("u1", app, true, w.cred("pull", "s1", "repo.test"))
		w.api.put(secret("pull", "s2", "repo.test")) // deleted and created again: another UID
		w.pass(9 * time.Second)
		w.wantCredentials("u1", app, true, w.cred("pull", "s1", "repo.test"))
		w.pass(2 * time.Second)
		w.wantCredentials("u1", app, true, w.cred("pull", "s2", "repo.test"))
		w.api.remove("team-a/pull")
		w.pass(11 * time.Second)
		w.wantCredentials("u1", app, false)
		w.api.put(secret("pull", "s3", "repo.test"))
		w.pass(3 * time.Second)
		w.wantCredentials("u1", app, true, w.cred("pull", "s3", "repo.test"))
		// When a pod arrives, the Secret is read at once.
		w.api.put(secret("pull", "s4", "repo.test"))
		w.api.change("ADDED", pod("new", "u2", app, "pull"))
		w.pass(0)
		w.wantCredentials("u2", app, true, w.cred("pull", "s4", "repo.test"))
		w.wantCredentials("u1", app, true, w.cred("pull", "s4", "repo.test"))
		if n := w.api.requests("/secrets/pull"); n != 5 {
			t.Errorf("%d requests for the Secret; want 5", n)
		}
		w.pass(time.Hour)
		if n := w.api.requests("/secrets/pull"); n != 5 {
			t.Errorf("%d requests for the Secret after an hour of silence; want no more", n)
		}
	})
}

func TestWhatIsKnownStaysKnownDuringAnOutageOfTheAPIServer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.startWithPull()
		w.net.cut(true)
		w.pass(time.Hour)
		if w.source.Synced() || w.failed(podsource.Unreachable) == 0 {
			t.Errorf("synced %v, %d times unreachable; want false after some", w.source.Synced(),
				w.failed(podsource.Unreachable))
		}
		if found, ok := w.source.Candidates(map[string]string{"app": "web"}, imageref.New(app)); ok || found != nil {
			t.Errorf("Candidates = %v, %v; want nothing known: there may be others", found, ok)
		}
		w.wantCredentials("u1", app, true, w.cred("pull", "s1", "repo.test"))
		began := time.Now()
		w.wantCredentials("u1", app, true, w.cred("pull", "s1", "repo.test"))
		if took := time.Since(began); took != 0 {
			t.Errorf("a second question took %v; want none, the API server was just asked", took)
		}
		// In the meantime one pod was deleted and one was created.
		w.api.change("DELETED", pod("web", "u1", app, "pull"))
		w.api.change("ADDED", pod("next", "u2", app, "pull"))
		w.net.cut(false)
		w.pass(time.Minute)
		if _, ok := w.source.ByUID("u1"); ok || !w.source.Synced() {
			t.Errorf("synced %v, the deleted pod is known: %v; want true, false", w.source.Synced(), ok)
		}
		w.wantCredentials("u2", app, true, w.cred("pull", "s1", "repo.test"))
	})
}

// refusesFor returns what refuses every request with a code, for a minute.
func refusesFor(code int) func(w *world) {
	return func(w *world) {
		w.api.refusing(func(*http.Request) int { return code })
		w.api.hangUp()
		w.pass(time.Minute)
		w.api.refusing(func(*http.Request) int { return 0 })
	}
}

func TestTheWatchSurvives(t *testing.T) {
	for name, tc := range map[string]struct {
		harm    func(w *world)
		reasons []podsource.Reason
	}{
		"a watch that ends":   {func(w *world) { w.api.hangUp() }, nil},
		"a broken connection": {func(w *world) { w.net.cut(false) }, nil},
		"410 in the stream": {
			func(w *world) { w.api.send(event{"ERROR", status(410)}) },
			[]podsource.Reason{podsource.Expired},
		},
		"500 in the stream": {
			func(w *world) { w.api.send(event{"ERROR", status(500)}) },
			[]podsource.Reason{podsource.Server},
		},
		"invalid data in the stream": {func(w *world) { w.api.send(event{"ADDED", "x"}) }, nil},
		"403 for a while":            {refusesFor(403), []podsource.Reason{podsource.Forbidden}},
		"401 for a while":            {refusesFor(401), []podsource.Reason{podsource.Unauthorized}},
		"410 to the list": {func(w *world) {
			n := 0
			w.api.refusing(func(r *http.Request) int {
				if n++; n < 4 && r.URL.Query().Get("resourceVersion") != "" {
					return 410
				}
				return 0
			})
			w.api.hangUp()
		}, []podsource.Reason{podsource.Expired}},
		"silence": {func(w *world) {
			w.api.refusing(func(r *http.Request) int {
				<-r.Context().Done()
				return 0
			})
			w.api.hangUp()
			w.pass(5 * time.Minute)
			w.api.refusing(func(*http.Request) int { return 0 })
		}, []podsource.Reason{podsource.Timeout}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(w *world) {
				w.api.change("ADDED", pod("web", "u1", app))
				w.start()
				tc.harm(w)
				w.pass(time.Second)
				w.byUID("u1")
				w.api.change("ADDED", pod("next", "u2", app))
				w.pass(2 * time.Minute)
				w.byUID("u2")
				if !w.source.Synced() {
					t.Error("not synced two minutes later")
				}
				for _, r := range tc.reasons {
					if w.failed(r) == 0 {
						t.Errorf("reasons %v; want some %s", w.reasons, r)
					}
				}
			})
		})
	}
}

func TestAnUnavailableAPIServerIsRetriedAtGrowingIntervals(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.refusing(func(*http.Request) int { return 503 })
		w.api.change("ADDED", pod("web", "u1", app))
		w.start()
		w.pass(time.Hour)
		if n := w.failed(podsource.Server); n < 60 || n > 400 {
			t.Errorf("%d failures in an hour; want some each minute, and no storm", n)
		}
	})
}

func TestAPodThatIsMadeAgainHasAnotherUID(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.put(secret("pull", "s1", "repo.test"))
		w.api.put(secret("next", "s2", "repo.test"))
		w.api.change("ADDED", pod("web", "u1", app, "pull"))
		w.start()
		deleting := pod("web", "u1", app, "pull")
		now := metav1.Now()
		deleting.DeletionTimestamp = &now
		w.api.change("MODIFIED", deleting)
		w.pass(0)
		w.byUID("u1") // it stays known until it is deleted
		old := w.byUID("u1")
		w.api.change("ADDED", pod("web", "u2", app, "next")) // the watch missed the end of the old one
		w.pass(0)
		if _, ok := w.source.ByUID("u1"); ok {
			t.Error("the pod that was replaced is known")
		}
		if p := w.source.Find("", "team-a", "web"); len(p) != 1 || p[0].UID != "u2" || len(w.source.Pods()) != 1 {
			t.Errorf("Find = %v of %d pods; want the one that replaced it, alone", p, len(w.source.Pods()))
		}
		if p := w.source.Find("", "team-b", "web"); len(p) > 0 {
			t.Errorf("Find of another namespace = %v; want none", p)
		}
		w.wantCredentials("u2", app, true, w.cred("next", "s2", "repo.test"))
		if got, err := old.Credentials(w.Context(), imageref.New(app)); len(got) != 0 ||
			!errors.Is(err, podsource.ErrNotKnown) {
			t.Errorf("Credentials of the pod that is gone = %v, %v; want none, ErrNotKnown", got, err)
		}
		if _, n := w.source.Size(); n != 1 {
			t.Errorf("%d Secrets are kept; want 1, no pod names the other", n)
		}
		w.api.change("DELETED", pod("web", "u2", app, "next"))
		w.pass(0)
		if bytes, n := w.source.Size(); n != 0 || bytes != 0 {
			t.Errorf("%d Secrets of %d bytes are kept; want none", n, bytes)
		}
	})
}

func TestASecretThatWasRefusedAtFirstIsReadLater(t *testing.T) {
	// The Node authorizer receives a pod a little later than its kubelet does.
	inWorld(t, func(w *world) {
		w.api.refusing(refuseSecret("pull", 403))
		w.startWithPull()
		time.AfterFunc(700*time.Millisecond, func() { w.api.refusing(func(*http.Request) int { return 0 }) })
		w.wantCredentials("u1", app, true, w.cred("pull", "s1", "repo.test"))
	})
}

func TestRunEndsDuringAnOutageOfTheAPIServer(t *testing.T) {
	inWorld(t, func(w *world) {
		w.net.cut(true)
		w.start()
		w.pass(10 * time.Minute)
		began := time.Now()
		w.stop()
		w.stop = func() {}
		if took := time.Since(began); took > time.Second {
			t.Errorf("Run took %v to end; want none", took)
		}
	})
}

func TestNotSyncedBetweenTwoWatches(t *testing.T) {
	inWorld(t, func(w *world) {
		w.api.change("ADDED", pod("web", "u1", app))
		w.start()
		w.api.hangUp() // sooner than a server does, so that the next watch does not start at once
		w.pass(0)
		if w.source.Synced() {
			t.Error("synced while nothing is watched; a pod may be missed")
		}
		w.pass(5 * time.Second)
		if !w.source.Synced() || len(w.reasons) != 0 {
			t.Errorf("synced %v, reasons %v; want true and none, watches end", w.source.Synced(), w.reasons)
		}
	})
}

func TestAPodThatArrivesIsNotAnsweredWithAnOlderSecret(t *testing.T) {
	inWorld(t, func(w *world) {
		w.startWithPull()
		w.api.refusing(func(*http.Request) int {
			time.Sleep(time.Second)
			return 0
		})
		w.api.put(secret("pull", "s2", "repo.test"))
		w.api.change("ADDED", pod("next", "u2", app, "pull"))
		w.pass(0)
		w.wantCredentials("u2", app, true, w.cred("pull", "s2", "repo.test"))
	})
}

// A tenant deletes its pod while a GET of a Secret that does not exist yet is in progress, then creates the Secret and
// the pod again. The late answer to the first GET must not be used as the answer to the second.
func TestLateAnswerDoesNotReplaceANewerOne(t *testing.T) {
	inWorld(t, func(w *world) {
		var gets atomic.Int32
		late := make(chan struct{})
		w.start()
		w.api.refusing(func(r *http.Request) int {
			switch {
			case !strings.Contains(r.URL.Path, "/secrets/"):
			case gets.Add(1) == 1:
				<-late
				return http.StatusNotFound
			default:
				time.Sleep(time.Second)
			}
			return 0
		})
		first := pod("web", "u1", app, "pull")
		w.api.change("ADDED", first)
		synctest.Wait()
		w.api.change("DELETED", first)
		w.api.put(secret("pull", "s2", "repo.test"))
		w.api.change("ADDED", pod("web", "u2", app, "pull"))
		synctest.Wait()
		close(late)
		synctest.Wait()
		w.wantCredentials("u2", app, true, w.cred("pull", "s2", "repo.test"))
	})
}

func TestPodsMatchesByPresentAnnotationsAndImage(t *testing.T) {
	inWorld(t, func(w *world) {
		for _, p := range []*corev1.Pod{
			pod("a", "u1", app), pod("b", "u2", app), pod("c", "u3", app),
			pod("d", "u4", "repo.test/other"), pod("m", "u5", app), pod("n", "u6", app),
		} {
			p.Annotations = map[string]string{"k": "v", "config.kubernetes.io/x": ""}
			switch p.Name {
			case "b": // a tenant that sets the kubelet's annotations
				p.Annotations[podindex.SeenAnnotation], p.Annotations[podindex.SourceAnnotation] = "x", "file"
			case "c":
				p.Annotations["k"] = "w"
			case "m":
				p.Annotations[corev1.MirrorPodAnnotationKey] = "hash"
			case "n":
				p.Annotations = nil
			}
			w.api.change("ADDED", p)
		}
		w.start()
		if found, _ := w.source.Candidates(nil, imageref.New(app)); len(found) != 5 {
			t.Errorf("Candidates = %v at the start; want all five: what they had before is not known", found)
		}
		w.pass(time.Minute)
		asks := func(extra ...string) map[string]string {
			m := map[string]string{
				"k": "v", "config.kubernetes.io/x": "", podindex.SeenAnnotation: "2026-01-01T00:00:00.1Z",
				podindex.SourceAnnotation: "api",
			}
			for i := 0; i < len(extra); i += 2 {
				m[extra[i]] = extra[i+1]
			}
			return m
		}
		for name, tc := range map[string]struct {
			annotations map[string]string
			image       string
			want        []string
		}{
			"equal":                    {asks(), app, []string{"u1", "u2"}},
			"as the kubelet sends it":  {asks(), "repo.test/other:latest", []string{"u4"}},
			"one more":                 {asks("new", ""), app, []string{}},
			"another value":            {asks("k", "w"), app, []string{"u3"}},
			"another image":            {asks(), "repo.test/team/app:v2", []string{}},
			"a hash is a tenant's own": {asks("kubernetes.io/config.hash", "h"), app, []string{}},
			"none": {
				map[string]string{podindex.SeenAnnotation: "x", podindex.SourceAnnotation: "api"}, app, []string{"u6"},
			},
			"moved between key, value": {map[string]string{"k": "vconfig.kubernetes.io/x"}, app, []string{}},
		} {
			found, ok := w.source.Candidates(tc.annotations, imageref.New(tc.image))
			if !slices.Equal(found, tc.want) || !ok {
				t.Errorf("%s: %q, ok %v; want %q", name, found, ok, tc.want)
			}
		}
		if _, ok := w.source.ByUID("u5"); ok {
			t.Error("a mirror pod is known; no kubelet runs it")
		}
		if found, ok := w.source.Candidates(asks(), imageref.New("no image")); ok || found != nil {
			t.Errorf("Pods of no image = %v, %v; want nothing known", found, ok)
		}
		// A tenant edits its pod so that it equals another one: from then on both are found.
		p := pod("c", "u3", app)
		p.Annotations = map[string]string{"k": "v", "config.kubernetes.io/x": ""}
		w.api.change("MODIFIED", p)
		w.pass(0)
		if found, _ := w.source.Candidates(asks(), imageref.New(app)); len(found) != 3 {
			t.Errorf("Candidates = %v after a third became equal; want three", found)
		}
		// Its kubelet may not have the change yet, so this pod may be the one that asks.
		if found, _ := w.source.Candidates(asks("k", "w"), imageref.New(app)); !slices.Equal(found, []string{"u3"}) {
			t.Errorf("Candidates = %v of what it had before; want it", found)
		}
		w.pass(time.Minute)
		if found, _ := w.source.Candidates(asks("k", "w"), imageref.New(app)); len(found) != 0 {
			t.Errorf("Candidates = %v of what it had a minute ago; want none", found)
		}
		// The same for its image.
		p.Spec.Containers[0].Image = "repo.test/next"
		w.api.change("MODIFIED", p)
		w.pass(0)
		if found, _ := w.source.Candidates(asks(), imageref.New(app)); len(found) != 3 {
			t.Errorf("Candidates = %v of the image that it had before; want it too", found)
		}
		// A pod that is new to the node had no other state before.
		w.api.change("ADDED", pod("new", "u7", "repo.test/new"))
		w.pass(0)
		if found, _ := w.source.Candidates(asks("k", "w"), imageref.New(app)); !slices.Equal(found, []string{"u3"}) {
			t.Errorf("Candidates = %v; want none that is new and uses another image", found)
		}
	})
}

func TestAwaitWaitsForAPodThatTheKubeletKnowsFirst(t *testing.T) {
	inWorld(t, func(w *world) {
		w.start()
		began := time.Now()
		if _, ok := w.source.Await(w.Context(), "u1"); ok || time.Since(began) != time.Second {
			t.Errorf("a pod that never comes is known: %v, after %v; want false after a second", ok, time.Since(began))
		}
		time.AfterFunc(time.Second/2, func() { w.api.change("ADDED", pod("web", "u1", app)) })
		if p, ok := w.source.Await(w.Context(), "u1"); !ok || p.Name != "web" {
			t.Errorf("Await = %v, %v; want the pod that came", p.Name, ok)
		}
		late := pod("late", "u2", app)
		late.Spec.ServiceAccountName = "builder"
		time.AfterFunc(time.Second/2, func() { w.api.change("ADDED", late) })
		if got := w.source.ServiceAccount(w.Context(), "u2", late.Namespace); got != "builder" {
			t.Errorf("ServiceAccount of a pod that comes = %q; want builder", got)
		}
		if got := w.source.ServiceAccount(w.Context(), "u2", "other"); got != "" {
			t.Errorf("ServiceAccount in another namespace = %q; want none", got)
		}
		began = time.Now()
		if _, ok := w.source.Await(w.Context(), "u1"); !ok || time.Since(began) != 0 {
			t.Errorf("a pod that is known: %v after %v; want true at once", ok, time.Since(began))
		}
	})
}

// Policies can use other fields while the source runs. It lists the pods again, and knows them all the time.
func TestFieldsThatChangeAreReadAgain(t *testing.T) {
	inWorld(t, func(w *world) {
		p := pod("web", "u1", app)
		p.Spec.RestartPolicy, p.Spec.DNSPolicy = "Always", "Default"
		w.api.change("ADDED", p)
		w.source.KeepFields([]string{"spec.spec.restartPolicy"})
		w.start()
		view := func() admission.Pod {
			view, _, ok := w.source.View(w.Context(), "u1")
			if !ok {
				w.Fatal("the pod has no view")
			}
			return view
		}
		if v := view(); v.RestartPolicy != admission.Set("Always") || v.DNSPolicy.State() != admission.StateUnknown {
			w.Errorf("view %+v; want the restart policy alone", v)
		}
		w.api.mu.Lock() // the next list waits
		w.source.KeepFields([]string{"spec.spec.dnsPolicy"})
		if v := view(); v.DNSPolicy.State() != admission.StateUnknown {
			w.Errorf("view %+v before the pods are listed again; want no DNS policy", v)
		}
		w.api.mu.Unlock()
		w.pass(100 * time.Millisecond)
		if v := view(); v.DNSPolicy != admission.Set("Default") || v.RestartPolicy.State() != admission.StateUnknown {
			w.Errorf("view %+v; want the DNS policy alone", v)
		}
		if !w.source.Synced() {
			w.Error("the source is not synced")
		}
		w.source.KeepFields(nil)
		w.pass(100 * time.Millisecond)
		if _, _, ok := w.source.View(w.Context(), "u1"); ok {
			w.Error("the view is kept without policies")
		}
	})
}
