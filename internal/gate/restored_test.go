package gate_test

import (
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/gate"
	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	"github.com/pullgate/pullgate/pkg/policy"
	"github.com/pullgate/pullgate/pkg/tracker"
)

// checkpointImage is the name of mallory's own image, which is a checkpoint.
const checkpointImage = "repo.test/mallory/checkpoint:1"

// aliceAndMallory returns a proxy with alice's image on the node, and a pod of mallory that may use mallory's
// checkpoint image.
func aliceAndMallory(t *testing.T, o tracker.Options, c gate.Config, checkpoint criproxytest.Image) (p *proxy,
	mallory *criproxytest.Pod,
) {
	t.Helper()
	p, _ = newProxyOfAlice(t, o, c)
	return p, p.withCheckpoint(checkpoint)
}

func (p *proxy) withCheckpoint(checkpoint criproxytest.Image) (mallory *criproxytest.Pod) {
	p.t.Helper()
	checkpoint.ID = id2
	p.serves(checkpointImage, "mallorys", checkpoint)
	mallory = p.Pod("mallory")
	p.MustPull(mallory, checkpointImage, "mallorys")
	return mallory
}

// pairs returns the pairs that have a mark, and those that have a record with nothing proved.
func (p *proxy) pairs() (marked, closed []records.Pair) {
	p.t.Helper()
	images := testkit.Value(p.store.Images())(p.t)
	for _, i := range images {
		for _, m := range i.Marks {
			marked = append(marked, m.Pair)
		}
		for _, r := range i.Records {
			if !r.Open && len(r.Proofs) == 0 {
				closed = append(closed, r.Pair)
			}
		}
	}
	return marked, closed
}

// The runtime reports mallory's own image for a container with the root file system of alice's image.
func TestRestoredContainerIsRefusedWhateverImageItReports(t *testing.T) {
	for _, mode := range []policy.Mode{
		policy.ModeAlwaysVerify, policy.ModeNeverVerify,
		policy.ModeNeverVerifyPreloadedImages,
	} {
		t.Run(string(mode), func(t *testing.T) {
			rules := testkit.Value(policy.New(string(mode), nil))(t)
			k, c := kept(exact())
			p, mallory := aliceAndMallory(t, tracker.Options{Rules: tracker.Rules{Policy: rules}}, c,
				criproxytest.Image{Restores: id1, Claims: id2})
			k.since()
			_, err := p.Create(t.Context(), mallory, id2, checkpointImage)
			wantDenied(t, "container", err, "CONTAINER_NOT_CREATED", "mallory/"+mallory.UID, checkpointImage, "checkpoint",
				"allowRestores")
			p.wantNoContainers("the restored one removed")
			if got := p.counts.get(); got["creation refused restored"] != 1 || got["refused CreateContainer"] != 1 {
				t.Errorf("counted %v; want one denial and one restored container", got)
			}
			if got := k.since(); !slices.ContainsFunc(got, func(s string) bool {
				return strings.Contains(s, "Reverify restored")
			}) {
				t.Errorf("decisions = %v; want one by restored", got)
			}
		})
	}
}

func TestRestoredContainerIsRefusedAtItsStartAndByRestorePod(t *testing.T) {
	p, mallory := aliceAndMallory(t, tracker.Options{}, exact(), criproxytest.Image{Restores: id1, Claims: id2})
	made := p.behind(mallory, id2, checkpointImage)
	wantDenied(t, "start of a container that was not read back", p.Start(t.Context(), made),
		"RESTORE_NOT_ALLOWED", "allowRestores")
	p.wantNoContainers("the restored one removed")
	denies(t, "RestorePod", "RESTORE_NOT_ALLOWED", "allowRestores")(p.restorePod(mallory, container(id2, checkpointImage)))
	if got := p.runtime.Calls("RestorePod"); got != 0 {
		t.Errorf("the runtime got RestorePod %d times; want it refused before", got)
	}
	if got := p.counts.get(); got["creation refused restored"] != 2 || got["refused StartContainer"] != 1 ||
		got["refused RestorePod"] != 1 {
		t.Errorf("counted %v; want a denial of StartContainer and of RestorePod, both as restored", got)
	}
}

func TestRestoredContainerIsAllowedByExemptionShadowModeAndAllowRestores(t *testing.T) {
	shadow := exact()
	shadow.Shadow = true
	for name, tc := range map[string]struct {
		rules  tracker.Rules
		config gate.Config
	}{
		"exempt namespace": {tracker.Rules{ExemptNamespaces: []string{"mallory"}}, exact()},
		"shadow mode":      {tracker.Rules{}, shadow},
		"allowRestores":    {tracker.Rules{}, restoring()},
	} {
		t.Run(name, func(t *testing.T) {
			p, mallory := aliceAndMallory(t, tracker.Options{Rules: tc.rules}, tc.config,
				criproxytest.Image{Restores: id1, Claims: id2})
			id, err := p.Create(t.Context(), mallory, id2, checkpointImage)
			if err != nil {
				t.Fatalf("container = %v; want it created", err)
			}
			p.wantCode(p.Start(t.Context(), id), codes.OK, "start")
		})
	}
}

// What allowed a restored pod may be revoked before the runtime creates its containers, which a restart could not
// detect.
func TestRevocationDuringARestoreIsSeen(t *testing.T) {
	for _, repository := range []string{"repo.test/other", "repo.test/team/app"} {
		p, alice := newProxyOfAlice(t, tracker.Options{}, restoring())
		p.beforeAnswer("RestorePod", func() {
			p.done(p.tracker.Revoke(t.Context(), tracker.Revocation{Revocation: records.Revocation{Repository: repository}}))
		})
		_, err := p.restorePod(alice, container(id1, app))
		if repository != "repo.test/team/app" {
			p.wantCode(err, codes.OK, "restore during a revocation of another repository")
			continue
		}
		p.wantCode(err, codes.PermissionDenied, "restore during a revocation")
		p.wantNoContainers("the restored one removed")
	}
}

func TestAllowRestoresTakesEffectWithoutARestart(t *testing.T) {
	p, mallory := aliceAndMallory(t, tracker.Options{}, restoring(), criproxytest.Image{Restores: id1, Claims: id2})
	p.gate.SetAllowRestores(false)
	p.wantCreate(mallory, id2, checkpointImage, codes.PermissionDenied, "container")
}

// planted is the image that mallory's checkpoint brings: mallory's content under a name of alice.
const planted = "repo.test/team/app:2"

func planting(fails error) criproxytest.Image {
	return criproxytest.Image{
		Restores: id3, Brings: []criproxytest.Image{{ID: id3, Names: []string{planted}}}, Fails: fails,
	}
}

// A runtime itself pulls the image that a checkpoint names and gives it the name from the checkpoint. That image must
// not count as preloaded for any pod.
func TestImageThatCameWithACheckpointNeedsProof(t *testing.T) {
	failed := status.Error(codes.Unknown, "no such device")
	for name, tc := range map[string]struct {
		config     gate.Config
		checkpoint criproxytest.Image
	}{
		"refused":            {exact(), planting(nil)},
		"failed":             {exact(), planting(failed)},
		"allowed":            {restoring(), planting(nil)},
		"allowed and failed": {restoring(), planting(failed)},
		"in shadow mode":     {gate.Config{Shadow: true}, planting(nil)},
	} {
		t.Run(name, func(t *testing.T) {
			p, mallory := aliceAndMallory(t, tracker.Options{}, tc.config, tc.checkpoint)
			var during []records.Pair
			p.beforeAnswer("CreateContainer", func() { // a scan while the runtime restores
				p.must(p.tracker.Sync(t.Context()))
				during, _ = p.pairs()
			})
			_, _ = p.Create(t.Context(), mallory, id2, checkpointImage)
			p.must(p.tracker.Sync(t.Context()))
			want := records.Pair{ImageID: id3, Repository: "repo.test/team/app"}
			marked, closed := p.pairs()
			if slices.Contains(during, want) || slices.Contains(marked, want) {
				t.Errorf("marked while and after the container was created: %v and %v; want neither to have %v", during, marked,
					want)
			}
			if !slices.Contains(closed, want) {
				t.Errorf("records with nothing proved: %v; want %v among them", closed, want)
			}
			if got := p.Precheck(p.Pod("alice"), planted); tc.config.Shadow != (got != "") {
				t.Errorf("alice's pre-check of the planted image = %q; want it hidden, but for shadow mode", got)
			}
			if left, err := p.store.Creations(); err != nil || len(left) != 0 {
				t.Errorf("Creations = %v, %v; want none left", left, err)
			}
		})
	}
}

// pullgated is killed while the runtime restores a checkpoint, or the answer is lost.
func TestImageThatCameWithALostCreateIsNotMarkedAfterARestart(t *testing.T) {
	p, mallory := aliceAndMallory(t, tracker.Options{}, exact(), planting(nil))
	imported := criproxytest.Image{ID: "sha256:4", Names: []string{"repo.test/imported:1"}}
	crashed := ""
	p.beforeAnswer("CreateContainer", func() {
		crashed = p.copied()
	})
	if _, err := p.Create(t.Context(), mallory, id2, checkpointImage); err == nil {
		t.Fatal("the restored container is not refused")
	}
	store, _, err := records.Open(crashed, records.Options{})
	p.must(err)
	defer func() { p.must(store.Close()) }()
	p.runtime.SetImages(img(id3, planted), imported)
	restarted := tracker.New(store, p.key, gate.NewRuntime(p.up, p.up), tracker.Options{})
	p.must(restarted.Sync(t.Context()))
	marks, err := store.Marks()
	if p.must(err); len(marks) > 0 {
		t.Errorf("marked after the restart: %v", marks)
	}
}

// The runtime's answers for a checkpoint must not reveal which images are on the node.
func TestFailedCreateIsAnsweredTheSameWhetherOrNotTheOtherImageIsPresent(t *testing.T) {
	invalid := status.Error(codes.Unknown, `error parsing reference: "INVALID NAME" is not a valid repository/tag`)
	for name, config := range map[string]gate.Config{"default": exact(), "allowRestores": restoring()} {
		var answers []string
		for _, checkpoint := range []criproxytest.Image{
			{Restores: id1}, {Restores: "absent"}, {Restores: id1, Fails: invalid}, {Restores: "absent", Fails: invalid},
		} {
			p, mallory := aliceAndMallory(t, tracker.Options{}, config, checkpoint)
			_, err := p.Create(t.Context(), mallory, id2, checkpointImage)
			if err == nil {
				t.Fatalf("%s: container on a checkpoint of %s was created", name, checkpoint.Restores)
			}
			answers = append(answers, strings.ReplaceAll(status.Convert(err).Proto().String(), mallory.UID, "mallory"))
		}
		if len(slices.Compact(slices.Clone(answers))) != 1 {
			t.Errorf("%s: the answer reveals whether the image is present:\n%s", name, strings.Join(answers, "\n"))
		}
	}
}

func TestErrorOfACreateFromAnOrdinaryImagePassesUnchanged(t *testing.T) {
	device := status.Error(codes.Internal, "no such device")
	for name, tc := range map[string]struct {
		release [2]string
		exempt  bool
		before  func(p *proxy, alice *criproxytest.Pod) // what happens before the runtime fails
		passes  bool
	}{
		"first container of the image": {before: func(*proxy, *criproxytest.Pod) {}},
		"after another container": {passes: true, before: func(p *proxy, alice *criproxytest.Pod) {
			p.done(p.Create(t.Context(), alice, id1, app))
		}},
		"after a restart, a container is running": {passes: true, before: func(p *proxy, alice *criproxytest.Pod) {
			id := testkit.Value(p.Create(t.Context(), alice, id1, app))(p.t)
			p.must(p.Start(t.Context(), id))
			p.restart()
		}},
		"after another container, and a checkpoint was restored": {before: func(p *proxy, alice *criproxytest.Pod) {
			p.done(p.Create(t.Context(), alice, id1, app))
			mallory := p.withCheckpoint(criproxytest.Image{Restores: id1})
			if _, err := p.Create(t.Context(), mallory, id2, checkpointImage); err == nil {
				t.Error("the checkpoint is restored")
			}
		}},
		"the image has another name since": {before: func(p *proxy, alice *criproxytest.Pod) {
			p.done(p.Create(t.Context(), alice, id1, app))
			p.runtime.SetImages(img(id1, app, "repo.test/given:1"))
		}},
		"containerd 1.6": {
			release: [2]string{"containerd", "1.6.20~ds1"}, passes: true,
			before: func(*proxy, *criproxytest.Pod) {},
		},
		"containerd 2.2": {release: [2]string{"containerd", "v2.2.3"}, before: func(*proxy, *criproxytest.Pod) {}},
		"exempt":         {exempt: true, passes: true, before: func(*proxy, *criproxytest.Pod) {}},
	} {
		t.Run(name, func(t *testing.T) {
			o := tracker.Options{}
			if tc.exempt {
				o.Rules.ExemptNamespaces = []string{"alice"}
			}
			p := newProxy(t, o, exact())
			p.runtime.Do(func(r *criproxytest.Runtime) { r.Release = tc.release })
			p.serves(app, "good", img(id1))
			alice := p.Pod("alice")
			p.MustPull(alice, app, "good")
			tc.before(p, alice)
			p.fails("CreateContainer", device)
			_, err := p.Create(t.Context(), alice, id1, app)
			if passed := status.Code(err) == codes.Internal &&
				strings.Contains(err.Error(), "no such device"); passed != tc.passes || err == nil {
				t.Errorf("container = %v; want the error of the runtime to pass: %v", err, tc.passes)
			}
			p.fails("CreateContainer", status.Error(codes.DeadlineExceeded, "took too long"))
			p.wantCreate(alice, id1, app, codes.DeadlineExceeded, "container")
		})
	}
}

// A create from an image that is known to be ordinary writes nothing and requests no image list.
func TestOrdinaryCreateCostsNoWriteAndNoList(t *testing.T) {
	p, alice := newProxyOfAlice(t, tracker.Options{}, exact())
	p.wantCreate(alice, id1, app, codes.OK, "container")
	before := testkit.Value(p.store.LastWrite())(p.t)
	lists := p.runtime.Calls("ListImages")
	for range 5 {
		p.wantCreate(alice, id1, app, codes.OK, "container")
	}
	after := testkit.Value(p.store.LastWrite())(p.t)
	if after != before || p.runtime.Calls("ListImages") != lists {
		t.Errorf("%d writes and %d lists of images; want none", after-before, p.runtime.Calls("ListImages")-lists)
	}
}
