package adminapi_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/gate/podsource"
	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/internal/operator/adminapi"
	"github.com/pullgate/pullgate/internal/policies/imageaccess"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/pkg/imageref"
	"github.com/pullgate/pullgate/pkg/tracker"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
)

// accessFile returns a file of kind ImageAccess.
func accessFile(name, spec string) strictyaml.File {
	return strictyaml.File{Name: name, Data: []byte("apiVersion: policy.pullgate.dev/v1alpha1\nkind: ImageAccess\n" +
		"metadata: {name: " + name + "}\nspec: {" + spec + "}\n")}
}

func (w *world) use(files ...strictyaml.File) {
	w.t.Helper()
	w.access = testkit.Value(imageaccess.Load(files))(w.t)
	must(w.t, w.tracker.SetAccess(w.access, nil))
}

func lines(rights []*adminv1.ImageRight) (all []string) {
	for _, r := range rights {
		line := r.GetRepository() + " " + r.GetRight()
		if r.GetRight() != "proof" {
			line += " by " + r.GetBy()
		}
		if r.GetGrant() != "" {
			line += " " + r.GetGrant()
		}
		if who := append(r.GetNamespaces(), r.GetServiceAccounts()...); len(who) > 0 {
			line += ", " + strings.Join(who, ",")
		}
		if r.GetWaits() {
			line += " waits"
		}
		if r.GetInGrace() {
			line += " in grace"
		}
		all = append(all, line)
	}
	return all
}

func TestGetImageListsRights(t *testing.T) {
	w := aNode(t)
	rights := func(name string) []string {
		t.Helper()
		r, err := w.GetImage(t.Context(), &adminv1.GetImageRequest{Image: name})
		must(t, err)
		return lines(r.GetImage().GetRights())
	}
	testkit.Equal(t, "rights to a preloaded image", rights("repo.test/pre:1"), []string{
		"repo.test/pre preloaded by NeverVerifyPreloadedImages", "repo.test/pre policy by exempt, exempt",
	})
	w.use(accessFile("base", "images: [repo.test/*, repo.test/pre], grant: Share, from: [{namespaces: [b]}, "+
		"{serviceAccounts: [{namespace: c, name: d}]}]"),
		accessFile("only", "images: ["+strings.TrimSuffix(app, ":1")+"], grant: Fence, from: [{namespaces: [b]}]"))
	repository := strings.TrimSuffix(app, ":1")
	testkit.Equal(t, "rights to an image with a proof", rights(app+":1"), []string{
		"repo.test/other policy by exempt, exempt", "repo.test/other access by base Share, b,c/d waits",
		repository + " proof", repository + " policy by exempt, exempt", repository + " access by base Share, b,c/d",
		repository + " access by only Fence, b",
	})
	w.pulled(tracker.Pod{UID: "anon", Namespace: "anon"}, "repo.test/pre:1", id2, "")
	testkit.Equal(t, "rights to an open image", rights("repo.test/pre:1"), []string{
		"repo.test/pre open by a pull without a credential",
		"repo.test/pre preloaded by NeverVerifyPreloadedImages", "repo.test/pre policy by exempt, exempt",
		"repo.test/pre access by base Share, b,c/d",
	})
}

func TestTestImageAccess(t *testing.T) {
	w := aNode(t, func(*adminapi.Config) {})
	uses := func(pod, namespace, image string) podsource.Listed {
		return podsource.Listed{
			Pod:  tracker.Pod{UID: "uid-" + pod, Namespace: namespace, Name: pod},
			Uses: []podsource.Use{{Container: "main", Image: imageref.New(image), PullPolicy: "IfNotPresent"}},
		}
	}
	always := uses("always", "team-b", app+":1") // a Share does not help it
	always.Uses[0].PullPolicy = "Always"
	w.node.do(func(n *node) {
		n.listed = []podsource.Listed{
			uses("b", "team-b", app+":1"), uses("c", "team-c", "repo.test/pre:1"), uses("s", "team-s", app+":1"),
			uses("e", "exempt", "repo.test/pre:1"), uses("absent", "team-c", "repo.test/absent:1"),
			always,
		}
	})
	ask := func(files ...strictyaml.File) *adminv1.TestImageAccessResponse {
		t.Helper()
		req := &adminv1.TestImageAccessRequest{}
		for _, f := range files {
			req.Files = append(req.Files, &adminv1.PolicyFile{Name: f.Name, Data: f.Data})
		}
		r, err := w.TestImageAccess(t.Context(), req)
		must(t, err)
		return r
	}
	pods := func(r *adminv1.TestImageAccessResponse) (all []string) {
		for _, c := range r.GetPods() {
			all = append(all, fmt.Sprintf("%s/%s: %s, then %s", c.GetNow().GetNamespace(), c.GetNow().GetPod(),
				c.GetNow().GetState(), c.GetState()))
		}
		return all
	}
	repository := strings.TrimSuffix(app, ":1")
	share := accessFile("base", "images: ["+repository+"], grant: Share, from: [{namespaces: [team-b]}, "+
		"{serviceAccounts: [{namespace: team-s, name: builder}]}]")
	fence := accessFile("only",
		"images: [repo.test/pre, repo.test/absent], grant: Fence, from: [{namespaces: [team-b]}]")
	r := ask(share, fence)
	testkit.Equal(t, "gained", lines(r.GetGained()), []string{
		"repo.test/pre access by only Fence, team-b", repository + " access by base Share, team-b,team-s/builder",
	})
	testkit.Equal(t, "pods", pods(r), []string{
		"team-b/b: needs proof, then runs", "team-c/absent: unknown, then denied by only",
		"team-c/c: runs, then denied by only", "team-s/s: needs proof, then runs",
	})
	if len(r.GetLost()) > 0 {
		t.Errorf("lost %v", r.GetLost())
	}
	// Nothing has changed.
	if got := strings.Join(w.podRows(false), "\n"); strings.Contains(got, "denied") {
		t.Error(got)
	}
	w.use(share, fence)
	r = ask(share)
	testkit.Equal(t, "lost", lines(r.GetLost()), []string{"repo.test/pre access by only Fence, team-b"})
	testkit.Equal(t, "pods without the fence", pods(r), []string{
		"team-c/absent: denied by only, then unknown", "team-c/c: denied by only, then runs",
	})
	r = ask()
	if len(r.GetPods()) != 4 {
		t.Errorf("%q; want that all four end", pods(r))
	}
	if r = ask(share, fence); len(r.GetPods())+len(r.GetGained())+len(r.GetLost()) > 0 {
		t.Errorf("%v; want that the files in use change nothing", r)
	}
	_, err := w.TestImageAccess(t.Context(), &adminv1.TestImageAccessRequest{
		Files: []*adminv1.PolicyFile{{Name: "wrong", Data: []byte("kind: ImageAccess")}},
	})
	if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "wrong") {
		t.Errorf("%v; want the errors of the file", err)
	}
}
