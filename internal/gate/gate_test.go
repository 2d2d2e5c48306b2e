package gate_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/gate/podindex"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// Of the ImageStatus calls only pre-checks are judged: if the user of an image cannot be read, the container runs as
// root.
func TestCallsThatAreNoPrecheckAreNeverAltered(t *testing.T) {
	p := newProxy(t, tracker.Options{VerifyUntracked: true}, exact())
	p.runtime.SetImages(img(id1, app))
	bob := p.Pod("bob")
	if got := p.Precheck(bob, app); got == id1 {
		// The very first scan marks the present images, so use a name that came later.
		p.runtime.SetImages(img(id2, app))
	}
	p.wantPrecheck(bob, app, "", "pre-check (or this test shows nothing)")
	seen := map[string]string{podindex.SeenAnnotation: bob.Config.GetAnnotations()[podindex.SeenAnnotation]}
	source := map[string]string{podindex.SourceAnnotation: "api"}
	for name, req := range map[string]*runtimeapi.ImageStatusRequest{
		"no annotations": {Image: &runtimeapi.ImageSpec{Image: app}},
		"no source":      {Image: &runtimeapi.ImageSpec{Image: app, Annotations: seen}},
		"no config.seen": {Image: &runtimeapi.ImageSpec{Image: app, Annotations: source}},
		"verbose precheck": {
			Image: &runtimeapi.ImageSpec{Image: app, Annotations: bob.Config.GetAnnotations()}, Verbose: true,
		},
	} {
		resp, err := p.Images.ImageStatus(t.Context(), req)
		if err != nil || resp.GetImage().GetId() != id2 {
			t.Errorf("%s: %q, %v; want the image", name, resp.GetImage().GetId(), err)
		}
	}
	all, err := p.Images.ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	if err != nil || len(all.GetImages()) != 1 {
		t.Errorf("ListImages = %v, %v; want it untouched", all, err)
	}
}

func TestImageIDsAndTheirPrefixesAreAbsent(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	p.runtime.SetImages(img(id1, app), img(id2, "repo.test/any:2"), img(id3, "repo.test/any:3"))
	bob := p.Pod("bob")
	for _, name := range []string{"sha256:1", "sha256:2", "sha256:9", id1, strings.TrimPrefix(id1, "sha256:"), "1", "2"} {
		p.wantPrecheck(bob, name, "", "pre-check of %s", name)
		p.wantCreate(bob, id1, name, codes.PermissionDenied, "container by %s", name)
	}
	p.wantPrecheck(p.Pod("carol"), app, id1, "pre-check of %s", app)
}

// Two concurrent PullImage calls for one image, one with a good and one with a bad credential.
func TestConcurrentPullsNeverShareAResult(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	rounds := 200
	if testkit.Raced { // make race runs all of them without the detector
		rounds = 60
	}
	p := newProxy(t, tracker.Options{}, exact())
	p.serves(app, "good", img(id1))
	for round := range rounds {
		good, bad := p.Pod(fmt.Sprintf("good%d", round)), p.Pod(fmt.Sprintf("bad%d", round))
		var wg sync.WaitGroup
		for x, password := range map[*criproxytest.Pod]string{good: "good", bad: "bad"} {
			wg.Go(func() {
				_, err := p.Pull(t.Context(), x, app, password)
				if (err == nil) != (password == "good") {
					t.Errorf("round %d: pull with %s credential = %v", round, password, err)
				}
			})
		}
		wg.Wait()
		p.wantPrecheck(good, app, id1, "round %d: good pod's pre-check", round)
		p.wantPrecheck(bad, app, "", "round %d: bad pod's pre-check", round)
	}
}

// The runtime removes an image, but the client has disconnected when the runtime answers: the records are deleted
// nevertheless.
func TestRemovalWhoseAnswerIsLostTakesTheRecords(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	alice := p.Pod("alice")
	for name, id := range map[string]string{app: id1, "repo.test/stays:1": id2} {
		p.serves(name, "good", criproxytest.Image{ID: id})
		p.MustPull(alice, name, "good")
	}
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan struct{})
	defer close(answer)
	p.beforeAnswer("RemoveImage", func() {
		cancel()
		<-answer
	})
	_, err := p.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: id1}})
	p.wantCode(err, codes.Canceled, "removal")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		stats := testkit.Value(p.store.Stats())(p.t)
		if stats.Records == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("records = %d; want that of the image that is still there alone", stats.Records)
		}
	}
}

func TestSandboxesTellWhoAsks(t *testing.T) {
	p, _ := newProxyOfAlice(t, tracker.Options{
		Rules: tracker.Rules{ExemptNamespaces: []string{"system"}, ExemptStaticPods: true}, VerifyUntracked: true,
	}, exact())
	system := p.Pod("system")
	p.wantPrecheck(system, app, id1, "exempt namespace's pre-check")
	p.wantPrecheck(p.PodFrom("kube-system", "file"), app, id1, "static pod's pre-check (though its sandbox is not known)")
	unlisted := p.PodFrom("system", "api")
	p.wantPrecheck(unlisted, app, "", "pre-check of a value that no sandbox carries")
	before := p.runtime.Calls("PullImage")
	p.wantPull(unlisted, app, "", id1, "its pull (the call has its namespace)")
	p.wantPrecheck(unlisted, app, id1, "its next pre-check (the value is known now)")
	if p.runtime.Calls("PullImage") != before {
		t.Error("the registry was asked for an exempt pod")
	}
	// The grant of a pod ends with its last sandbox.
	alice := p.Pod("alice")
	p.MustPull(alice, app, "good")
	p.wantPrecheck(alice, app, id1, "alice's pre-check")
	p.done(p.Runtime.RemovePodSandbox(t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: alice.Sandbox}))
	p.wantPrecheck(alice, app, "", "pre-check of a pod that has ended")
	// The same if the sandbox was removed without the gate and only a list shows it.
	dora := p.Pod("dora")
	p.MustPull(dora, app, "good")
	p.done(criproxytest.Call[*runtimeapi.RemovePodSandboxResponse](p.runtime,
		&runtimeapi.RemovePodSandboxRequest{PodSandboxId: dora.Sandbox}))
	_, err := p.Runtime.ListPodSandbox(t.Context(),
		&runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{Id: "sandbox-1"}})
	p.must(err)
	p.wantPrecheck(dora, app, id1, "pre-check after a filtered list (such a list ends no pod)")
	p.done(p.Runtime.ListPodSandbox(t.Context(), &runtimeapi.ListPodSandboxRequest{}))
	p.wantPrecheck(dora, app, "", "pre-check after a full list")
}

// The grpc version in the user agent shows which kubelet asks; this client's version is new.
// Shows: 001-04, 001-06
func TestKubeletThatPrechecksAlwaysReachesTheRegistry(t *testing.T) {
	for _, tc := range []struct {
		name  string
		mode  gate.AlwaysPrecheck
		asked int
	}{
		{"configured as new", gate.AlwaysSkipped, 0},
		{"configured as old", gate.AlwaysSent, 1},
		{"by its user agent", gate.AlwaysAuto, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, _ := newProxyOfAlice(t, tracker.Options{}, gate.Config{AlwaysPrecheck: tc.mode, OutageFallback: true})
			before := p.runtime.Calls("PullImage")
			carol := p.Pod("carol")
			p.Precheck(carol, app)
			p.MustPull(carol, app, "good")
			if got := p.runtime.Calls("PullImage") - before; got != tc.asked {
				t.Errorf("the runtime was asked %d times; want %d", got, tc.asked)
			}
			// A pull without a hidden pre-check is a real one on every kubelet.
			before = p.runtime.Calls("PullImage")
			p.MustPull(carol, app, "good")
			if got := p.runtime.Calls("PullImage") - before; got != 1 {
				t.Errorf("a pull with policy Always asked the runtime %d times; want once", got)
			}
			// A pull without a pod is also a real one, and is recorded.
			p.MustPull(nil, app, "good")
		})
	}
}

// A pull that may be for Always is treated as such: the registry decides, also at the next attempt.
func TestProvedPullThatTheRegistryRefusesLeavesNoGrant(t *testing.T) {
	p, _ := newProxyOfAlice(t, tracker.Options{Rules: tracker.Rules{ExemptNamespaces: []string{"system"}}},
		gate.Config{AlwaysPrecheck: gate.AlwaysSent, OutageFallback: true})
	carol := p.Pod("carol")
	p.wantPrecheck(carol, app, "", "pre-check (or this test shows nothing)")
	p.serves(app, "another", img(id1))
	for range 2 {
		p.wantNoPull(carol, app, "good", "pull that the registry refuses")
		p.wantPrecheck(carol, app, "", "pre-check after a refused pull")
	}
	// An exempt pod does not depend on pullgate, and an unreachable registry does not refuse a pod.
	unlisted := p.PodFrom("system", "api")
	p.Precheck(unlisted, app)
	p.wantPull(unlisted, app, "bad", id1, "exempt pod's pull")
	p.outage()
	p.wantPull(carol, app, "good", id1, "pull during an outage")
}

func TestRequestThatCannotBeReadIsRefused(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	for _, method := range []string{
		runtimeapi.ImageService_ImageStatus_FullMethodName, runtimeapi.ImageService_PullImage_FullMethodName,
		runtimeapi.RuntimeService_CreateContainer_FullMethodName, runtimeapi.RuntimeService_StartContainer_FullMethodName,
		runtimeapi.RuntimeService_RunPodSandbox_FullMethodName, runtimeapi.RuntimeService_RestorePod_FullMethodName,
	} {
		_, err := criproxytest.CallRaw(t.Context(), p.Conn, method, []byte{0xff, 0xff, 0xff})
		p.wantCode(err, codes.InvalidArgument, "%s", method)
	}
	if got := p.counts.get()["panic"]; got != 0 {
		t.Errorf("%d panics; want none", got)
	}
}

// The order of a pull: intent on disk → call to the runtime → record on disk → answer to the kubelet.
// Shows: 001-28
func TestIntentIsOnDiskBeforeTheRuntimeIsAskedAndTheRecordBeforeTheAnswer(t *testing.T) {
	p := newProxy(t, tracker.Options{VerifyUntracked: true}, exact())
	var events []string
	p.runtime.Do(func(r *criproxytest.Runtime) {
		r.Registry = func(string, *runtimeapi.AuthConfig) (criproxytest.Image, error) {
			events = append(events, "runtime asked with "+p.onDisk())
			return img(id1), nil
		}
	})
	alice := p.Pod("alice")
	events = append(events, "before: "+p.onDisk())
	p.MustPull(alice, app, "good")
	events = append(events, "answered with "+p.onDisk())
	want := []string{
		"before: 0 intents, 0 records", "runtime asked with 1 intents, 0 records", "answered with 0 intents, 1 records",
	}
	testkit.Equal(t, "order", events, want)
}

// The record of an image is deleted with the image, and with it the revocation in the record.
func TestNoGrantIsRestoredForAnImageThatIsGone(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	other := img(id2, "repo.test/other:1")
	p.runtime.SetImages(other)
	p.serves(app, "good", img(id1, app))
	a := p.Pod("team-a")
	p.done(p.Pull(t.Context(), a, app, "good"))
	c := testkit.Value(p.Create(t.Context(), a, id1, app))(p.t)
	p.must(p.Start(t.Context(), c))
	p.runtime.SetImages(other)
	p.restart()
	p.must(p.gate.Sync(t.Context()))
	p.done(p.Pull(t.Context(), p.Pod("team-b"), app, "good"))
	if id := p.Precheck(a, app); id != "" {
		t.Errorf("pre-check of the pod whose image was gone at the restart = %q; want the empty answer", id)
	}
}

func TestUserAgentShowsWhetherAlwaysIsPrechecked(t *testing.T) {
	for agent, want := range map[string]bool{
		"grpc-go/1.58.3": false, "grpc-go/1.65.0": false, "grpc-go/1.68.0": true, "grpc-go/1.72.1": true,
		"grpc-go/1.79.0-dev":          true,
		"kubelet/1.34 grpc-go/1.72.1": true, "grpc-go/2.1.0": false, "grpc-go/": false, "grpc-go/1": false,
		"grpc-go/1.x": false, "": false, "grpc-c++/1.72.1": false,
	} {
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("user-agent", agent))
		if got := gate.AlwaysAuto.Skips(ctx); got != want {
			t.Errorf("skips(%q) = %v; want %v", agent, got, want)
		}
		if !gate.AlwaysSkipped.Skips(ctx) || gate.AlwaysSent.Skips(ctx) {
			t.Errorf("%q overrules what was configured", agent)
		}
	}
	if gate.AlwaysAuto.Skips(t.Context()) {
		t.Error("a call without a user agent is taken for a new kubelet's")
	}
}

// An allowed call reaches the runtime byte for byte: unknown fields are still in it.
func TestJudgedRequestReachesTheRuntimeAsItCame(t *testing.T) {
	p := newProxy(t, tracker.Options{}, restoring())
	p.serves(app, "good", img(id1))
	alice := p.Pod("alice")
	container := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
		Image:    &runtimeapi.ImageSpec{Image: id1, UserSpecifiedImage: app},
	}
	var created runtimeapi.CreateContainerResponse
	for _, tc := range []struct {
		method  string
		request func() proto.Message
		answer  proto.Message
	}{
		{runtimeapi.ImageService_PullImage_FullMethodName, func() proto.Message {
			return &runtimeapi.PullImageRequest{
				Image: &runtimeapi.ImageSpec{Image: app}, Auth: &runtimeapi.AuthConfig{Username: "u", Password: "good"},
				SandboxConfig: alice.Config,
			}
		}, &runtimeapi.PullImageResponse{}},
		{runtimeapi.RuntimeService_CreateContainer_FullMethodName, func() proto.Message {
			return &runtimeapi.CreateContainerRequest{
				PodSandboxId: alice.Sandbox, SandboxConfig: alice.Config, Config: container,
			}
		}, &created},
		{runtimeapi.RuntimeService_StartContainer_FullMethodName, func() proto.Message {
			return &runtimeapi.StartContainerRequest{ContainerId: created.GetContainerId()}
		}, &runtimeapi.StartContainerResponse{}},
		{runtimeapi.RuntimeService_RestorePod_FullMethodName, func() proto.Message {
			return &runtimeapi.RestorePodRequest{
				Config: alice.Config, ContainerConfigs: []*runtimeapi.ContainerConfig{container},
			}
		}, &runtimeapi.RestorePodResponse{}},
	} {
		name := tc.method[strings.LastIndex(tc.method, "/")+1:]
		request := testkit.Value(proto.Marshal(tc.request()))(p.t)
		request = append(request, 0xfa, 0x3e, 0x03, 'n', 'e', 'w')
		answer, err := criproxytest.CallRaw(t.Context(), p.Conn, tc.method, request)
		if err != nil {
			t.Errorf("%s = %v; want it let through", name, err)
			continue
		}
		p.must(proto.Unmarshal(answer, tc.answer))
		if got := p.runtime.Requests(name); len(got) != 1 || !bytes.Equal(got[0], request) {
			t.Errorf("%s reached the runtime as %x; want once, %x", name, got, request)
		}
	}
}

// The runtime completes the pull, and the connection to it breaks before it answers.
func TestConnectionThatBreaksBeforeTheAnswerLeavesAnIntent(t *testing.T) {
	p := newProxy(t, tracker.Options{}, exact())
	p.serves(app, "good", img(id1))
	alice, bob := p.Pod("alice"), p.Pod("bob")
	p.beforeAnswer("PullImage", func() {
		p.runtime.Stop()
	})
	if _, err := p.Pull(t.Context(), alice, app, "good"); status.Code(err) != codes.Unavailable {
		t.Errorf("pull whose answer is lost = %v; want Unavailable", err)
	}
	p.runtime.Do(func(r *criproxytest.Runtime) { r.BeforeAnswer = nil })
	p.runtime.Start(t)
	for _, x := range []*criproxytest.Pod{bob, alice} {
		if got := eventually(t, p, x); got != "" {
			t.Errorf("%s's pre-check = %q; want it hidden, because the outcome of the pull is unknown", x.UID, got)
		}
	}
	if got := p.onDisk(); got != "1 intents, 0 records" {
		t.Errorf("on disk: %s; want the one intent and nothing else", got)
	}
}

// eventually sends pre-checks of app until the runtime is back.
func eventually(t *testing.T, p *proxy, x *criproxytest.Pod) string {
	t.Helper()
	for back := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		id, err := p.TryPrecheck(t.Context(), x, app)
		if err == nil {
			return id
		}
		if status.Code(err) != codes.Unavailable || time.Since(back) > 10*time.Second {
			t.Fatalf("pre-check %v after the runtime is back = %v", time.Since(back), err)
		}
	}
}
