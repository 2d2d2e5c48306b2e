package daemon

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
	adminv1 "github.com/pullgate/pullgate/proto/pullgate/admin/v1"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

// A fakePolicyd is a pullgate-policyd with the policy files of a folder. Its backends deny the images in denied.
type policyd struct {
	policyv1.UnimplementedPolicyServer

	folder string
	mu     sync.Mutex
	denied []string
	asked  int
}

func (p *policyd) Review(_ context.Context, r *policyv1.ReviewRequest) (*policyv1.ReviewResponse, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked++
	set, err := policyfiles.Read(policyfiles.Paths{Folder: p.folder})
	if err != nil || set.Hash != r.GetPolicyHash() {
		return nil, status.Error(codes.FailedPrecondition, "other policy files")
	}
	response := &policyv1.ReviewResponse{PolicyHash: set.Hash}
	for _, b := range policyfiles.BackendsOf(set) {
		if b.Namespaces != nil && !slices.Contains(b.Namespaces, r.GetNamespace()) {
			continue
		}
		for _, image := range append(r.GetImages(), r.GetVolumeImages()...) {
			response.Results = append(response.Results, &policyv1.ReviewResult{
				Backend: b.Name, Image: image, Allowed: !slices.Contains(p.denied, image), Reason: "of the backend",
				AuditAnnotations: map[string]string{"scan": b.Name},
			})
		}
	}
	return response, nil
}

// serve serves on a socket until the returned function is called, or the test ends.
func (p *policyd) serve(t *testing.T, path string) (stop func()) {
	t.Helper()
	return servePolicyd(t, p, path)
}

func servePolicyd(t *testing.T, p policyv1.PolicyServer, path string) (stop func()) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", path)
	testkit.Must(t, err)
	s := grpc.NewServer(grpc.WaitForHandlers(true))
	policyv1.RegisterPolicyServer(s, p)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	stop = sync.OnceFunc(func() { s.Stop(); <-done })
	t.Cleanup(stop)
	return stop
}

func (p *policyd) requests() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.asked
}

// putBackend writes a policy file that names a backend.
func putBackend(t *testing.T, dir, name, content string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, name+".yaml"),
		[]byte("imagePolicy: {kubeConfigFile: /etc/scanner.kubeconfig"+content), 0o644))
}

// newReviewTest returns policies, with pullgate-policyd at a socket.
func newReviewTest(t *testing.T) (*policyTest, *policyd) {
	t.Helper()
	p := newPolicyTest(t)
	dir := criproxytest.SocketDir(t)
	p.options.Config.Admission.PolicydSocket = "unix://" + filepath.Join(dir, "s")
	return p, &policyd{folder: p.dir}
}

func (p *policyTest) socket() string {
	return strings.TrimPrefix(p.options.Config.Admission.PolicydSocket, "unix://")
}

// review asks the chain about a container in a namespace.
func (p *policyTest) review(namespace string) admission.Decision {
	return p.chain.Evaluate(p.Context(), admission.Subject{
		Pod: admission.Pod{
			UID: "uid", Namespace: namespace, Name: "app", HostNetwork: admission.Set(false),
			ReviewAnnotations: admission.Set(map[string]string(nil)),
		},
		Container: &admission.Container{
			Name: "main", Image: admission.Set("app:1"),
			Mounts: admission.Set([]admission.Mount{}),
		},
	})
}

func (p *policyTest) reviews(when, namespace string, want admission.Reason) {
	p.Helper()
	if reason, text := p.review(namespace).Refusal(); reason != want {
		p.Errorf("%s: %s, %q; want %q", when, reason, text, want)
	}
}

// Shows: 000-23
func TestReviews(t *testing.T) {
	p, d := newReviewTest(t)
	p.put("r", noHostNetwork)
	p.open()
	d.serve(t, p.socket())
	p.reviews("without a backend", "team", "")
	if d.requests() != 0 {
		t.Errorf("%d requests; want none without a backend", d.requests())
	}
	putBackend(t, p.dir, "scanner", ", defaultAllow: false}\nmatch: {namespaces: [team]}")
	p.change(func(*config.Admission) {})
	p.says("with a backend", 1,
		`"Image review backend in use" logger="policies" backend="scanner" file="`+p.dir+`/scanner.yaml" defaultAllow=false `+
			`defaultAllowAbsent=false allowTTL="1h0m0s" denyTTL="30s" namespaces=["team"] includeImageVolumes=true`)
	p.shows("with a backend", `pullgate_admission_policies{kind="ImagePolicy"} 1`,
		`pullgate_admission_failed_open_total{validator="review"} 0`)
	p.reviews("of another namespace", "else", "")
	if d.requests() != 0 {
		t.Errorf("%d requests; want none before a container is reviewed", d.requests())
	}
	p.reviews("allowed", "team", "")
	d.mu.Lock()
	d.denied = []string{"app:1"}
	d.mu.Unlock()
	p.reviews("denied", "team", admission.ReviewDenied)
	if want := []string{
		"reviewAnnotations", "spec.spec.containers[].image[]",
		"spec.spec.volumes[]",
	}; !slices.Equal(p.fields()[1:], want) {
		t.Errorf("fields %q; want those of the restriction and %q", p.fields(), want)
	}

	// Both processes have the same files, which the labels of namespaces are not among.
	labels := filepath.Join(t.TempDir(), "labels.yaml")
	testkit.Must(t, os.WriteFile(labels, []byte("team: {tier: dev}\n"), 0o644))
	p.change(func(c *config.Admission) { c.NamespaceLabels = labels })
	p.reviews("with labels of namespaces", "team", admission.ReviewDenied)

	// Files that pullgated has not read yet.
	putBackend(t, p.dir, "scanner", "}")
	p.reviews("with changed files", "team", admission.ReviewDenied)
	p.says("with changed files", 1, "defaultAllowAbsent=true")
	p.says("with changed files", 1, `"Policy file is valid, but may not do what you intend"`)
	putBackend(t, p.dir, "scanner", "}\nmatch: {namespaces: [else]}")
	p.reviews("with files by which no backend applies", "team", "")
	testkit.Must(t, os.Remove(filepath.Join(p.dir, "scanner.yaml")))
	p.reviews("without a backend again", "else", "")
	if n := len(p.fields()); n != 1 {
		t.Errorf("%d fields; want that of the restriction", n)
	}
	p.change(func(c *config.Admission) { c.Policies = "" })
	if p.chain != nil {
		t.Error("a chain without policies")
	}
}

// A folder that pullgated does not use: it is invalid, or pullgate-policyd has another one.
func TestReviewsWithOtherFiles(t *testing.T) {
	p, d := newReviewTest(t)
	putBackend(t, p.dir, "scanner", ", defaultAllow: false}")
	p.open()
	d.serve(t, p.socket())
	testkit.Must(t, os.WriteFile(filepath.Join(p.dir, "typo.yaml"), []byte("imagePolici: {}\n"), 0o644))
	p.reviews("invalid", "team", admission.ReviewUnavailable)
	testkit.Must(t, os.Remove(filepath.Join(p.dir, "typo.yaml")))
	d.folder = t.TempDir()
	before := d.requests()
	p.reviews("another folder", "team", admission.ReviewUnavailable)
	if n := d.requests() - before; n != 1 {
		t.Errorf("%d requests; want 1", n)
	}
	p.says("other files", 1, `"Failed to review an image: falling back to defaultAllow of the backend"`)
}

// A failure is logged once a minute for each backend, with the number of those that were not logged.
// Shows: 000-22
func TestFailuresOfReviewsAreLoggedOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPolicyTest(t)
		d := &policydClient{log: p.options.Log, failed: map[string]*failing{}}
		report := func(backend string) {
			d.notReviewed(policyfiles.Answer{Backend: backend, Failure: "cause of " + backend}, "", "")
		}
		for range 5 {
			report("a")
		}
		report("b")
		p.says("within a minute", 1, "cause of a")
		p.says("within a minute", 1, "cause of b")
		time.Sleep(failureInterval)
		report("a")
		p.says("after a minute", 2, "cause of a")
		p.says("after a minute", 1, "repeated=4")
		d.keep(nil)
		report("a")
		p.says("after the backend was removed", 3, "cause of a")
	})
}

// 50 reviews that find other files read the folder, and all of them are answered by the new ones.
func TestReviewsFollowNewFilesTogether(t *testing.T) {
	p, d := newReviewTest(t)
	putBackend(t, p.dir, "scanner", ", defaultAllow: false}")
	p.open()
	d.serve(t, p.socket())
	putBackend(t, p.dir, "second", ", defaultAllow: false}")
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if got := p.review("team"); !got.Admitted() || len(got.Findings) != 2 {
				t.Errorf("%+v; want Admit by both backends", got)
			}
		})
	}
	for range 20 {
		p.poll() // as the daemon does meanwhile
	}
	all.Wait()
}

// Shows: 000-23
func TestBackendsAreListed(t *testing.T) {
	p := newPolicyTest(t, noHostNetwork)
	putBackend(t, p.dir, "scanner", ", denyTTL: -1}\nincludeImageVolumes: false\nmatch: {namespaces: [team]}")
	p.open()
	l := p.list()
	want := &adminv1.Policy{
		Kind: "ImagePolicy", Name: "scanner", Namespaces: []string{"team"},
		ReviewBackend: &adminv1.ReviewBackend{
			AllowTtl: durationpb.New(time.Hour), DenyTtl: durationpb.New(0), DefaultAllow: true, DefaultAllowAbsent: true,
		},
	}
	if got := l.GetPolicies(); len(got) != 2 || !proto.Equal(got[0], want) || got[1].GetReviewBackend() != nil ||
		len(l.GetWarnings()) != 1 {
		t.Errorf("list %v; want %v and a warning", l, want)
	}
}
