package tracker_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

const (
	app  = "repo.test/team/app"
	id1  = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	id2  = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
	id3  = "sha256:3333333333333333333333333333333333333333333333333333333333333333"
	appD = app + "@sha256:38a8906435c4dd5f4258899d46621bfd8eea3ad6ff494ee3c2f17ef0321625bd"
)

// A fakeRuntime is the image list of a runtime. The store is always a real one.
type fakeRuntime struct {
	mu     sync.Mutex
	images []tracker.Image
	err    error
	during func() // called in the middle of each list
	lists  int
}

func (f *fakeRuntime) Images(context.Context) ([]tracker.Image, error) {
	f.mu.Lock()
	during := f.during
	f.lists++
	images, err := slices.Clone(f.images), f.err
	f.mu.Unlock()
	if during != nil {
		during()
	}
	return images, err
}

// Image fails like the list, so that the tracker has to do without it.
func (f *fakeRuntime) Image(context.Context, string) (tracker.Image, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return tracker.Image{}, f.err
	}
	return tracker.Image{}, errors.New("not supported")
}

func (f *fakeRuntime) set(images ...tracker.Image) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.images = images
}

func (f *fakeRuntime) listed() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lists
}

// A world is a tracker on a real store, with a runtime that returns the images of the test.
type world struct {
	*tracker.Tracker
	t       *testing.T
	path    string
	store   *records.Store
	key     credential.Key
	runtime *fakeRuntime
	options tracker.Options
	synced  func() // called when something is on disk, before the tracker continues; nil is allowed
}

func newWorld(t *testing.T, o tracker.Options) *world {
	t.Helper()
	w := &world{
		t: t, path: filepath.Join(t.TempDir(), "records.db"), key: credential.NewKey(),
		runtime: &fakeRuntime{}, options: o,
	}
	w.options.Log = klog.Background().V(99)
	w.open()
	t.Cleanup(func() { w.close() })
	return w
}

func (w *world) open() {
	w.t.Helper()
	store, _, err := records.Open(w.path, records.Options{Now: time.Now(), OnSync: func(time.Duration) {
		if w.synced != nil {
			w.synced()
		}
	}})
	if err != nil {
		w.t.Fatalf("Open(%s) = %v; want a store", w.path, err)
	}
	w.store = store
	w.Tracker = tracker.New(store, w.key, w.runtime, w.options)
}

func (w *world) close() {
	w.t.Helper()
	if err := w.store.Close(); err != nil {
		w.t.Errorf("Close = %v; want nil", err)
	}
}

// loseStore opens a new store in place of one that was lost.
func (w *world) loseStore() {
	w.t.Helper()
	w.close()
	w.path += ".lost"
	store, _, err := records.Open(w.path, records.Options{KeyExists: true})
	testkit.Must(w.t, err)
	testkit.Must(w.t, store.Close())
	w.open()
}

// contents returns the records and marks of the store.
func (w *world) contents() (all []records.Record, marks []records.Mark) {
	w.t.Helper()
	for _, i := range testkit.Value(w.store.Images())(w.t) {
		all, marks = append(all, i.Records...), append(marks, i.Marks...)
	}
	return all, marks
}

// restart closes the store and opens it again, as after a crash: the state in memory is lost.
func (w *world) restart() {
	w.t.Helper()
	w.close()
	w.open()
}

// damage makes the stored record of a pair unreadable, and restarts.
func (w *world) damage(p records.Pair) {
	w.t.Helper()
	w.close()
	defer w.open()
	testkit.Must(w.t, testkit.Damage(w.path, p.ImageID+"\x00"+p.Repository))
}

func image(id string, names ...string) tracker.Image { return tracker.NewImage(id, names...) }

func pod(uid string) tracker.Pod { return tracker.Pod{UID: uid, Namespace: "team-" + uid} }

// secret returns the credential with the password; "" gives an empty one.
func secret(password string) credential.Credential {
	if password == "" {
		return credential.New(credential.Login{})
	}
	return credential.New(credential.Login{Username: "tenant", Password: password})
}

// begin begins a pull of a name that no image has.
func (w *world) begin(name string) *tracker.Pull {
	w.t.Helper()
	pull, err := w.BeginPull(w.t.Context(), imageref.New(name), tracker.Image{})
	if err != nil {
		w.t.Fatalf("BeginPull(%s) = %v; want nil", name, err)
	}
	return pull
}

// pulled makes a complete successful pull.
func (w *world) pulled(p tracker.Pod, name, id, password string) tracker.Verdict {
	w.t.Helper()
	pull := w.begin(name)
	v, err := pull.Proved(tracker.Proof{ImageID: id, Sent: w.Sent(secret(password), p), Pod: p})
	if err != nil {
		w.t.Fatalf("Proved(%s) = %v; want nil", id, err)
	}
	return v
}

// check judges with the passwords of the pod's credentials.
func (w *world) check(p tracker.Pod, name string, img tracker.Image, passwords ...string) tracker.Verdict {
	w.t.Helper()
	r := tracker.Request{Pod: p, Name: imageref.New(name), Image: img}
	for i, pw := range passwords {
		if i == 0 {
			r.Sent = w.Sent(secret(pw), p)
		} else {
			r.Secrets = append(r.Secrets, tracker.Secret{Credential: w.id(pw)})
		}
	}
	return w.Check(w.t.Context(), r)
}

// id returns the ID of the credential with the password.
func (w *world) id(password string) credential.ID { return w.key.ID(secret(password)) }

func (w *world) sent(password string) tracker.Sent { return w.Sent(secret(password), tracker.Pod{}) }

// accept marks what is selected, proved or not, and returns the pairs.
func (w *world) accept(of records.Selection, dryRun bool) ([]records.Pair, error) {
	got, err := w.AcceptMarks(w.t.Context(), tracker.Acceptance{Selection: of, DryRun: dryRun, IncludingProved: true})
	return got.Pairs, err
}

// asking is the request of a pod for app:1, which is id1.
func asking(p tracker.Pod) tracker.Request {
	return tracker.Request{Pod: p, Name: imageref.New(app + ":1"), Image: image(id1, app+":1")}
}

// provedAt writes a proof of access to app, which is id1, with a time of its own.
func (w *world) provedAt(by credential.ID, at time.Time, from ...records.SecretRef) {
	w.t.Helper()
	r := records.Result{Pair: pairOf(id1, app), Credential: by, Secrets: from, At: at}
	testkit.Must(w.t, w.store.Prove(records.Intent{}, r))
}

func (w *world) want(v tracker.Verdict, verdict policy.Verdict, reason policy.Reason) {
	w.t.Helper()
	if v.Verdict != verdict || v.Reason != reason {
		w.t.Errorf("verdict = %v by %s; want %v by %s", v.Verdict, v.Reason, verdict, reason)
	}
}

func (w *world) intents() []string {
	w.t.Helper()
	var names []string
	for _, in := range testkit.Value(w.store.Intents())(w.t) {
		state := " unresolved"
		if in.Ended.IsZero() {
			state = " under way"
		}
		names = append(names, strings.TrimPrefix(in.Name, "repo.test/")+state)
	}
	return names
}
