package reviewbackend_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/api/imagepolicy/v1alpha1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pullgate/pullgate/e2e/reviewbackend"
)

// ask sends a review by a kubeconfig, and returns the status and what was read of the answer in half a second.
func ask(t *testing.T, kubeconfig, body string) (int, string, error) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := rest.TransportFor(config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, config.Host+config.APIPath, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	return resp.StatusCode, string(text), err
}

func body(image, annotations string) string {
	return `{"spec":{"containers":[{"image":"other"},{"image":"` + image + `"}],"annotations":{` + annotations + `},"namespace":"n"}}`
}

func TestAnswers(t *testing.T) {
	b := reviewbackend.New(t)
	token, certificate := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	if err := errors.Join(b.Kubeconfig(token, "one"), b.CertificateKubeconfig(certificate, "two")); err != nil {
		t.Fatal(err)
	}
	b.Set("bad", reviewbackend.Answer{Deny: true, Reason: "not scanned", Override: "x.image-policy.k8s.io/y", AuditAnnotations: map[string]string{"by": "test"}})
	b.Set("bad-of-one", reviewbackend.Answer{Deny: true, Client: "one"})
	for name, c := range map[string]struct{ kubeconfig, body, want string }{
		"allowed":           {token, body("good", ""), `"status":{"allowed":true}}`},
		"denied":            {token, body("bad", ""), `"status":{"allowed":false,"reason":"not scanned","auditAnnotations":{"by":"test"}}}`},
		"overridden":        {certificate, body("bad", `"x.image-policy.k8s.io/y":""`), `"allowed":true`},
		"denied to one":     {token, body("bad-of-one", ""), `"allowed":false`},
		"not denied to two": {certificate, body("bad-of-one", ""), `"allowed":true`},
	} {
		if code, text, err := ask(t, c.kubeconfig, c.body); err != nil || code != http.StatusOK || !strings.Contains(text, c.want) {
			t.Errorf("%s: %d %s, %v; want %s", name, code, text, err, c.want)
		}
	}
	requests := b.Requests("good")
	want := v1alpha1.ImageReviewContainerSpec{Image: "good"}
	if len(requests) != 1 || requests[0].Client != "one" || requests[0].Review.Spec.Containers[1] != want || !bytes.Equal(requests[0].Body, []byte(body("good", ""))) {
		t.Errorf("recorded %+v", requests)
	}
}

func TestFailures(t *testing.T) {
	b := reviewbackend.New(t)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := b.Kubeconfig(kubeconfig, "one"); err != nil {
		t.Fatal(err)
	}
	fails := func(name string) {
		t.Helper()
		code, text, err := ask(t, kubeconfig, body("a", ""))
		if err == nil && code == http.StatusOK && strings.HasSuffix(text, `"status":{"allowed":true}}`) {
			t.Errorf("%s: answered %s", name, text)
		}
	}
	for name, f := range reviewbackend.Failures() {
		b.Set("a", reviewbackend.Answer{Failure: f})
		fails(name)
	}
	b.Set("a", reviewbackend.Answer{})
	for _, c := range []reviewbackend.Certificate{reviewbackend.OtherAuthority, reviewbackend.Expired} {
		if err := b.UseCertificate(c); err != nil {
			t.Fatal(err)
		}
		fails("certificate")
	}
	if err := errors.Join(b.UseCertificate(reviewbackend.Valid), b.Stop()); err != nil {
		t.Fatal(err)
	}
	fails("stopped")
	if err := b.Restart(); err != nil {
		t.Fatal(err)
	}
	if code, _, err := ask(t, kubeconfig, body("a", "")); code != http.StatusOK || err != nil {
		t.Errorf("after the restart: %d, %v; want 200", code, err)
	}
	if n := len(b.Requests()); n != len(reviewbackend.Failures())+1 {
		t.Errorf("%d requests recorded", n)
	}
}
