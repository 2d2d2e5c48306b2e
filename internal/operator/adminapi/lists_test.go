package adminapi_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/pullgate/pullgate/internal/records"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

func listen(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	must(t, err)
	return l
}

// images returns the images of all pages of ListImages.
func (w *world) images(f *adminv1.ImageFilter, size int32) (found []*adminv1.Image) {
	w.t.Helper()
	for token := ""; ; {
		resp, err := w.ListImages(w.t.Context(), &adminv1.ListImagesRequest{Filter: f, PageSize: size, PageToken: token})
		if err != nil {
			w.t.Fatalf("ListImages(%v) = %v; want nil", f, err)
		}
		if token = resp.GetNextPageToken(); token != "" && len(resp.GetImages()) != int(size) {
			w.t.Fatalf("a page of %d of %d, and another", len(resp.GetImages()), size)
		}
		if found = append(found, resp.GetImages()...); token == "" {
			return found
		}
	}
}

func ids(images []*adminv1.Image) (all []string) {
	for _, i := range images {
		all = append(all, i.GetImageId())
	}
	return all
}

func TestListImagesSelectsByEveryField(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.node.do(func(n *node) {
		n.images = []tracker.Image{
			tracker.NewImage(id2, "repo.test/pre:1"),
			tracker.NewImage(id1, app+":1", "repo.test/other:1"),
		}
	})
	if err := w.tracker.Sync(t.Context()); err != nil { // marks the present images
		t.Fatal(err)
	}
	w.pulled(aPod("alice"), "repo.test/gone:1", id3, "alice")
	w.pulled(aPod("bob"), app+":1", id1, "bob")
	past, soon := timestamppb.New(time.Now().Add(-time.Hour)), timestamppb.New(time.Now().Add(time.Hour))
	for name, tc := range map[string]struct {
		filter *adminv1.ImageFilter
		want   []string
	}{
		"all, by ID":                {nil, []string{id1, id3, id2}},
		"repository":                {&adminv1.ImageFilter{Repository: app + ":other-tag"}, []string{id1}},
		"repository without images": {&adminv1.ImageFilter{Repository: "nothing"}, nil},
		"beginning of an ID":        {&adminv1.ImageFilter{ImageId: "1111111"}, []string{id1, id3}},
		"beginning with sha256":     {&adminv1.ImageFilter{ImageId: "sha256:11111113"}, []string{id3}},
		"Secret by UID":             {&adminv1.ImageFilter{Secret: &adminv1.SecretRef{Uid: "uid-bob"}}, []string{id1}},
		"Secret by name":            {&adminv1.ImageFilter{Secret: &adminv1.SecretRef{Name: "alice"}}, []string{id3}},
		"namespace":                 {&adminv1.ImageFilter{Namespace: "team"}, []string{id1, id3}},
		"another namespace":         {&adminv1.ImageFilter{Namespace: "others"}, nil},
		"repository and Secret":     {&adminv1.ImageFilter{Repository: app, Secret: &adminv1.SecretRef{Name: "alice"}}, nil},
		"created before long":       {&adminv1.ImageFilter{CreatedBefore: past}, nil},
		"created before soon":       {&adminv1.ImageFilter{CreatedBefore: soon}, []string{id1, id3, id2}},
		"unused since long":         {&adminv1.ImageFilter{UnusedSince: past}, nil},
		"unused since then, marks":  {&adminv1.ImageFilter{UnusedSince: soon}, []string{id1, id3}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int32{1, 2, 0} {
				if size == 0 && len(tc.want) > 100 {
					continue
				}
				if got := ids(w.images(tc.filter, size)); !slices.Equal(got, tc.want) {
					t.Errorf("ListImages by pages of %d = %v; want %v", size, got, tc.want)
				}
			}
		})
	}
	// An answer about one repository does not show the others.
	i := w.images(&adminv1.ImageFilter{Repository: "repo.test/other"}, 1)[0]
	if len(i.GetNames()) != 1 || len(i.GetRecords()) != 0 || len(i.GetMarks()) != 1 || len(i.GetUntracked()) != 0 {
		t.Errorf("image = %v; want the name and the mark of the one repository", i)
	}
	// If the runtime does not answer, the presence is unknown.
	w.node.do(func(n *node) { n.images, n.err = nil, status.Error(codes.Unavailable, "down") })
	for _, i := range w.images(nil, 10) {
		if i.GetPresence() != adminv1.Presence_PRESENCE_UNSPECIFIED {
			t.Errorf("presence of %s = %v while the runtime is unavailable; want it open", i.GetImageId(), i.GetPresence())
		}
	}
}

func TestListsRefusePageTokensOfOthers(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.pulled(aPod("a"), app+":1", id1, "a")
	w.pulled(aPod("b"), app+":2", id2, "b")
	first, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{PageSize: 1})
	if err != nil || first.GetNextPageToken() == "" {
		t.Fatal(first, err)
	}
	token := first.GetNextPageToken()
	for name, call := range map[string]func() error{
		"garbage": func() error {
			_, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{PageToken: "%%%"})
			return err
		},
		"another filter": func() error {
			_, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{PageToken: token, Filter: &adminv1.ImageFilter{Namespace: "team"}})
			return err
		},
		"another list": func() error {
			_, err := w.ListGrants(t.Context(), &adminv1.ListGrantsRequest{PageToken: token})
			return err
		},
		"negative": func() error {
			_, err := w.ListPreloaded(t.Context(), &adminv1.ListPreloadedRequest{PageSize: -1})
			return err
		},
		"no name": func() error {
			_, err := w.ListIntents(t.Context(), &adminv1.ListIntentsRequest{Repository: "UPPER CASE"})
			return err
		},
		"two namespaces": func() error {
			_, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{Filter: &adminv1.ImageFilter{Namespace: "a", Secret: &adminv1.SecretRef{Namespace: "b"}}})
			return err
		},
	} {
		if err := call(); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s = %v; want InvalidArgument", name, err)
		}
	}
}

func TestListsArePagedInOrder(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	w.node.do(func(n *node) { n.pods = []tracker.Pod{aPod("one"), aPod("two")} })
	for i := range 25 {
		img := numbered(i)
		name := img.Names[0].String()
		w.node.do(func(n *node) { n.images = append(n.images, img) })
		if _, err := w.store.Begin(name, "repo.test/lost", time.Now()); err != nil {
			t.Fatal(err)
		}
		w.pulled(aPod([]string{"one", "two"}[i%2]), "repo.test/pulled:1", img.ID, "x")
	}
	must(t, w.store.Drop(records.Intent{}))
	if _, err := w.store.AcceptMarks(pairsOf(25), "operator", time.Now()); err != nil {
		t.Fatal(err)
	}
	walk := func(list func(token string) (n int, keys []string, next string)) (all []string, pages int) {
		for token := ""; ; pages++ {
			_, keys, next := list(token)
			all = append(all, keys...)
			if token = next; token == "" {
				return all, pages + 1
			}
		}
	}
	for name, list := range map[string]func(token string) (int, []string, string){
		"intents": func(token string) (int, []string, string) {
			resp, err := w.ListIntents(t.Context(), &adminv1.ListIntentsRequest{PageSize: 10, PageToken: token, Repository: "repo.test/lost"})
			must(t, err)
			var keys []string
			for _, in := range resp.GetIntents() {
				keys = append(keys, in.GetRepository()+string(rune(in.GetId())))
			}
			return 0, keys, resp.GetNextPageToken()
		},
		"marks": func(token string) (int, []string, string) {
			resp, err := w.ListPreloaded(t.Context(), &adminv1.ListPreloadedRequest{PageSize: 10, PageToken: token})
			must(t, err)
			var keys []string
			for _, m := range resp.GetMarks() {
				keys = append(keys, m.GetPair().GetImageId()+m.GetPair().GetRepository())
			}
			return 0, keys, resp.GetNextPageToken()
		},
		"grants": func(token string) (int, []string, string) {
			resp, err := w.ListGrants(t.Context(), &adminv1.ListGrantsRequest{PageSize: 10, PageToken: token, Pod: &adminv1.PodRef{Namespace: "team"}})
			must(t, err)
			var keys []string
			for _, g := range resp.GetGrants() {
				keys = append(keys, g.GetPod().GetUid()+g.GetPair().GetImageId())
			}
			return 0, keys, resp.GetNextPageToken()
		},
	} {
		all, pages := walk(list)
		if len(all) != 25 || pages != 3 || !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != 25 {
			t.Errorf("%s: %d entries on %d pages: %s; want 25 on 3, in order", name, len(all), pages, strings.Join(all, "\n"))
		}
	}
	resp, err := w.ListGrants(t.Context(), &adminv1.ListGrantsRequest{Pod: &adminv1.PodRef{Name: "two"}})
	if err != nil || len(resp.GetGrants()) != 12 {
		t.Errorf("grants of one pod: %d, %v; want 12", len(resp.GetGrants()), err)
	}
}

func pairsOf(n int) (all []records.Pair) {
	for i := range n {
		all = append(all, records.Pair{ImageID: numbered(i).ID, Repository: "repo.test/marked"})
	}
	return all
}

// A page of images with many proofs ends early: the size of an answer is bounded.
func TestPageOfLargeImagesEndsEarly(t *testing.T) {
	w := newWorld(t, tracker.Options{})
	for i := range 2 {
		for c := range 20 {
			r := records.Result{Pair: records.Pair{ImageID: numbered(i).ID, Repository: app}, Credential: w.id(fmt.Sprint(c)), At: time.Now()}
			for s := range records.MaxSecrets {
				r.Secrets = append(r.Secrets, records.SecretRef{UID: fmt.Sprintf("%036d", c*1000+s), Namespace: strings.Repeat("n", 63), Name: strings.Repeat("s", 253)})
			}
			must(t, w.store.Prove(records.Intent{}, r))
		}
	}
	first, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{})
	if err != nil || len(first.GetImages()) != 1 || first.GetNextPageToken() == "" {
		t.Fatalf("ListImages = %d images, %v; want one, and another page", len(first.GetImages()), err)
	}
	second, err := w.ListImages(t.Context(), &adminv1.ListImagesRequest{PageToken: first.GetNextPageToken()})
	if err != nil || len(second.GetImages()) != 1 || second.GetNextPageToken() != "" || second.GetImages()[0].GetImageId() != numbered(1).ID {
		t.Errorf("the next page = %d images, %v; want the other one, and the end", len(second.GetImages()), err)
	}
}

// 10 000 images are listed page by page.
func TestTenThousandImagesAreListedPageByPage(t *testing.T) {
	w := newWorld(t, tracker.Options{VerifyUntracked: true})
	const n = 10_000
	var all []tracker.Image
	for i := range n {
		all = append(all, numbered(i))
	}
	w.node.do(func(n *node) { n.images = all })
	must(t, w.tracker.Sync(t.Context()))
	began := time.Now()
	got := w.images(nil, 1000)
	if len(got) != n || !slices.IsSorted(ids(got)) {
		t.Errorf("%d images; want %d in order", len(got), n)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
}
