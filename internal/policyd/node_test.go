package policyd_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/pullgate/pullgate/internal/policyclient"
	"github.com/pullgate/pullgate/internal/policyd"
	"github.com/pullgate/pullgate/pkg/admission/files"
	policyv1 "github.com/pullgate/pullgate/proto/pullgate/policy/v1"
)

func TestReviewPassesRequestAndResults(t *testing.T) {
	var got policyd.Request
	p := prepare(t)
	p.options.Reviewer = reviewer(func(_ context.Context, _ *files.Set, r policyd.Request) ([]policyd.Result, error) {
		got = r
		return []policyd.Result{
			{Backend: "a.yaml", Image: "app:1", Allowed: true, Reason: "ok", AuditAnnotations: map[string]string{"k": "v\xff"}, Cached: true, Duration: time.Second},
			{Backend: "b.yaml", Image: "vol:1", Allowed: true, Failed: true, Reason: "not \xffUTF-8"},
			{Backend: "c.yaml", Image: "vol:1", Failed: true},
			{Backend: "d.yaml", Image: "vol:1"},
		}, nil
	})
	p.start()
	request := p.request()
	request.VolumeImages = []string{"vol:1"}
	request.Annotations = map[string]string{"x.image-policy.k8s.io/a": "1", "image-policy.k8s.io/b": "2", "other": "secret"}
	results, err := p.client().Review(t.Context(), request)
	want := []policyclient.Result{
		{Backend: "a.yaml", Image: "app:1", Allowed: true, Reason: "ok", AuditAnnotations: map[string]string{"k": "v\ufffd"}, Cached: true, Duration: time.Second},
		{Backend: "b.yaml", Image: "vol:1", Allowed: true, Failed: true, Reason: "not \ufffdUTF-8"},
		{Backend: "c.yaml", Image: "vol:1", Failed: true},
		{Backend: "d.yaml", Image: "vol:1"},
	}
	if diff := cmp.Diff(want, results); err != nil || diff != "" {
		t.Errorf("Review: %v (-want +got):\n%s", err, diff)
	}
	if !results[1].FailedOpen() || results[0].FailedOpen() || results[2].FailedOpen() {
		t.Error("FailedOpen is not true for the second alone")
	}
	wanted := policyd.Request{Namespace: "team", Images: []string{"app:1"}, VolumeImages: []string{"vol:1"}, Annotations: map[string]string{"x.image-policy.k8s.io/a": "1"}}
	if diff := cmp.Diff(wanted, got); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	for _, line := range []string{`{cached="true",outcome="allowed"} 1`, `{cached="false",outcome="failed_open"} 1`, `{cached="false",outcome="failed_closed"} 1`, `{cached="false",outcome="denied"} 1`} {
		p.has("pullgate_policyd_reviews_total" + line)
	}
}

func TestReviewRefusesRequests(t *testing.T) {
	p := prepare(t)
	p.start()
	conn, err := grpc.NewClient(p.config.Node.Listen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	hash := p.hash()
	for name, tc := range map[string]struct {
		request *policyv1.ReviewRequest
		want    codes.Code
	}{
		"no hash":      {&policyv1.ReviewRequest{Namespace: "a", Images: []string{"b"}}, codes.InvalidArgument},
		"no namespace": {&policyv1.ReviewRequest{PolicyHash: hash, Images: []string{"b"}}, codes.InvalidArgument},
		"no image":     {&policyv1.ReviewRequest{PolicyHash: hash, Namespace: "a"}, codes.InvalidArgument},
		"257 images":   {&policyv1.ReviewRequest{PolicyHash: hash, Namespace: "a", Images: make([]string, 200), VolumeImages: make([]string, 57)}, codes.InvalidArgument},
		"2 MiB":        {&policyv1.ReviewRequest{PolicyHash: hash, Namespace: "a", Images: []string{strings.Repeat("x", 2<<20)}}, codes.ResourceExhausted},
		"a valid one":  {&policyv1.ReviewRequest{PolicyHash: hash, Namespace: "a", VolumeImages: []string{"b"}}, codes.OK},
	} {
		if _, err := policyv1.NewPolicyClient(conn).Review(t.Context(), tc.request); status.Code(err) != tc.want {
			t.Errorf("%s: %v; want %v", name, err, tc.want)
		}
	}
}

func TestReviewerThatFailsOrPanics(t *testing.T) {
	t.Parallel()
	p := prepare(t)
	p.options.Reviewer = reviewer(func(ctx context.Context, _ *files.Set, r policyd.Request) ([]policyd.Result, error) {
		switch r.Images[0] {
		case "panic":
			panic("secret")
		case "wait":
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return nil, errors.New("secret")
	})
	p.start()
	c := p.client()
	for _, image := range []string{"panic", "fail"} {
		request := p.request()
		request.Images[0] = image
		if _, err := c.Review(t.Context(), request); !errors.Is(err, policyclient.ErrFailed) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v; want ErrFailed without the cause", image, err)
		}
	}
	p.has("pullgate_policyd_panics_total 1")
	request := p.request()
	request.Images[0] = "wait"
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := c.Review(ctx, request); !errors.Is(err, policyclient.ErrTimedOut) {
		t.Errorf("a review that takes too long: %v; want ErrTimedOut", err)
	}
}

// Clients that send nothing, or anything but gRPC, or open many connections, do not keep pullgated out for long.
func TestNodeServerSurvivesHostileClients(t *testing.T) {
	t.Parallel()
	p := prepare(t)
	p.start()
	path := strings.TrimPrefix(p.config.Node.Listen, "unix://")
	dial := func() net.Conn {
		c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	silent, garbage := dial(), dial()
	_, _ = io.WriteString(garbage, strings.Repeat("GET / HTTP/1.1\r\n", 1000))
	if _, err := p.client().Review(t.Context(), p.request()); err != nil {
		t.Errorf("Review beside hostile clients = %v; want nil", err)
	}
	for range 100 {
		dial()
	}
	p.until("connections beyond the limit are closed", func() bool { return strings.Contains(p.log.String(), "Too many connections") })
	for name, c := range map[string]net.Conn{"silent": silent, "garbage": garbage} {
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		_, err := io.Copy(io.Discard, c)
		var timeout net.Error
		if errors.As(err, &timeout) && timeout.Timeout() {
			t.Errorf("%s: still connected after the limit of the handshake", name)
		}
	}
	// The silent ones are gone, so that a new client is accepted.
	p.until("a review of a new client", func() bool {
		_, err := p.client().Review(t.Context(), p.request())
		return err == nil
	})
}
