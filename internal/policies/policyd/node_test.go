package policyd_test

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	imagepolicyv1alpha1 "k8s.io/api/imagepolicy/v1alpha1"

	"github.com/pullgate/pullgate/internal/policies/policyfiles"
	"github.com/pullgate/pullgate/internal/testkit"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

func TestReviewPassesRequestAndResults(t *testing.T) {
	seen := make(chan imagepolicyv1alpha1.ImageReviewSpec, 100)
	b := serveBackend(t, func(path string, s imagepolicyv1alpha1.ImageReviewSpec) verdict {
		if path == "/first" {
			seen <- s
		}
		switch image := s.Containers[0].Image; {
		case path == "/fails":
			return nil
		case image == "app:1":
			return &imagepolicyv1alpha1.ImageReviewStatus{Allowed: true, AuditAnnotations: map[string]string{"k": "v"}}
		}
		return &imagepolicyv1alpha1.ImageReviewStatus{Reason: "not signed"}
	})
	p := prepareWith(t, b)
	p.write("fails.kubeconfig", b.kubeconfig("/fails"))
	fails := policy(p.path("fails.kubeconfig"))
	p.write("policies/closed.yaml", fails+"includeImageVolumes: false\n")
	p.write("policies/open.yaml", strings.Replace(fails, "false", "true", 1)+"match: {namespaces: [team]}\n")
	p.write("policies/others.yaml", fails+"match: {namespaces: [other]}\n")
	p.start()
	request := p.request()
	request.Images, request.VolumeImages = []string{"app:1", "app:1"}, []string{"vol:1", "app:1"}
	const mine = "x.image-policy.k8s.io/a"
	request.Annotations = map[string]string{mine: "1", "image-policy.k8s.io/b": "2", "other": "secret"}
	results := testkit.Value(p.client().Review(t.Context(), request))(t)
	var got []string
	for _, r := range results {
		got = append(got, fmt.Sprintf("%s %s allowed=%v cached=%v failed=%v open=%v %v", r.Backend, r.Image, r.Allowed,
			r.Cached, r.Failure != "", r.Allowed && r.Failure != "", r.AuditAnnotations))
		if r.Failure != "" && r.Reason != "" || r.Reason != "" && r.Reason != "not signed" {
			t.Errorf("%s: reason %q, failure %q", r.Backend, r.Reason, r.Failure)
		}
	}
	slices.Sort(got)
	want := []string{
		"closed app:1 allowed=false cached=false failed=true open=false map[]",
		"open app:1 allowed=true cached=false failed=true open=true map[]",
		"open vol:1 allowed=true cached=false failed=true open=true map[]",
		"scan app:1 allowed=true cached=false failed=false open=false map[k:v]",
		"scan vol:1 allowed=false cached=false failed=false open=false map[]",
	}
	testkit.Equal(t, "results", got, want)
	if len(seen) != 2 {
		t.Errorf("%d requests; want one for each image", len(seen))
	}
	for range len(seen) {
		s := <-seen
		wanted := imagepolicyv1alpha1.ImageReviewSpec{
			Namespace: "team", Containers: s.Containers, Annotations: map[string]string{mine: "1"},
		}
		if diff := cmp.Diff(wanted, s); diff != "" || len(s.Containers) != 1 {
			t.Errorf("request (-want +got):\n%s", diff)
		}
	}
	again := testkit.Value(p.client().Review(t.Context(), request))(t)
	known := func(r policyfiles.Answer) bool { return r.Cached && r.Backend == "scan" && r.Allowed }
	if !slices.ContainsFunc(again, known) {
		t.Errorf("again: %+v; want an answer of the cache", again)
	}
	for _, line := range []string{
		`{cached="true",outcome="allowed"} 1`, `{cached="false",outcome="failed_open"} 4`,
		`{cached="false",outcome="failed_closed"} 2`, `{cached="false",outcome="denied"} 1`,
	} {
		p.has("pullgate_policyd_reviews_total" + line)
	}
}

// What backends say must not keep the denial of another one from pullgated.
func TestDenialArrivesBesideLongTexts(t *testing.T) {
	long := strings.Repeat("x", 8000)
	b := serveBackend(t, func(path string, s imagepolicyv1alpha1.ImageReviewSpec) verdict {
		if path == "/first" {
			allowed := s.Containers[0].Image != "image-255"
			return &imagepolicyv1alpha1.ImageReviewStatus{Allowed: allowed, Reason: "not signed"}
		}
		return &imagepolicyv1alpha1.ImageReviewStatus{Allowed: true, AuditAnnotations: map[string]string{"k": long}}
	})
	p := prepareWith(t, b)
	p.write("long.kubeconfig", b.kubeconfig("/long"))
	for _, name := range []string{"a", "b", "c"} {
		p.write("policies/"+name+".yaml", policy(p.path("long.kubeconfig")))
	}
	p.start()
	request := p.request()
	request.Images, request.Backends = nil, 4
	for i := range 256 {
		request.VolumeImages = append(request.VolumeImages, fmt.Sprint("image-", i))
	}
	results, err := p.client().Review(t.Context(), request)
	if err != nil || len(results) != 4*256 {
		t.Fatalf("%d results, %v; want 1024", len(results), err)
	}
	denied := slices.DeleteFunc(results, func(r policyfiles.Answer) bool { return r.Allowed })
	if len(denied) != 1 || denied[0].Backend != "scan" || denied[0].Reason != "not signed" {
		t.Errorf("denied: %+v; want one", denied)
	}
}

func TestReviewRefusesRequests(t *testing.T) {
	p := prepare(t)
	p.start()
	conn := p.connect()
	hash := p.hash()
	for name, tc := range map[string]struct {
		request *policyv1.ReviewRequest
		want    codes.Code
	}{
		"no hash":      {&policyv1.ReviewRequest{Namespace: "a", Images: []string{"b"}}, codes.InvalidArgument},
		"no namespace": {&policyv1.ReviewRequest{PolicyHash: hash, Images: []string{"b"}}, codes.InvalidArgument},
		"no image":     {&policyv1.ReviewRequest{PolicyHash: hash, Namespace: "a"}, codes.OK},
		"other files":  {&policyv1.ReviewRequest{PolicyHash: "other", Namespace: "a"}, codes.FailedPrecondition},
		"257 images": {&policyv1.ReviewRequest{
			PolicyHash: hash, Namespace: "a", Images: make([]string, 200), VolumeImages: make([]string, 57),
		}, codes.InvalidArgument},
		"2 MiB": {&policyv1.ReviewRequest{
			PolicyHash: hash, Namespace: "a", Images: []string{strings.Repeat("x", 2<<20)},
		}, codes.ResourceExhausted},
		"a valid one": {&policyv1.ReviewRequest{PolicyHash: hash, Namespace: "a", VolumeImages: []string{"b"}}, codes.OK},
	} {
		if _, err := policyv1.NewPolicyClient(conn).Review(t.Context(), tc.request); status.Code(err) != tc.want {
			t.Errorf("%s: %v; want %v", name, err, tc.want)
		}
	}
}

// Clients that send nothing, or anything but gRPC, or open many connections, do not keep pullgated out for long.
func TestNodeServerSurvivesHostileClients(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for limits and intervals")
	}
	t.Parallel()
	p := prepare(t)
	p.start()
	path := strings.TrimPrefix(p.config.Node.Listen, "unix://")
	dial := func() net.Conn { return p.dial("unix", path) }
	silent, garbage := dial(), dial()
	_, _ = io.WriteString(garbage, strings.Repeat("GET / HTTP/1.1\r\n", 1000))
	if _, err := p.client().Review(t.Context(), p.request()); err != nil {
		t.Errorf("Review beside hostile clients = %v; want nil", err)
	}
	for range 100 {
		dial()
	}
	p.until("connections beyond the limit are closed", func() bool {
		return strings.Contains(p.log.String(), "Too many connections")
	})
	p.closes(map[string]net.Conn{"silent": silent, "garbage": garbage})
	// The silent ones are gone, so that a new client is accepted.
	p.until("a review of a new client", func() bool {
		_, err := p.client().Review(t.Context(), p.request())
		return err == nil
	})
}
