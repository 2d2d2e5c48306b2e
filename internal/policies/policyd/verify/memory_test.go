package verify_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	ocidigest "github.com/opencontainers/go-digest"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// hostile returns a registry in which an image has signatures of nearly the allowed size with very many subjects, and
// the digests of its manifest and configuration.
func hostile() (h http.Handler, manifest, image string) {
	contents := map[string][]byte{}
	add := func(kind string, content any) string {
		data, ok := content.([]byte)
		if !ok {
			data, _ = json.Marshal(content)
		}
		d := ocidigest.FromBytes(data).String()
		contents["/v2/app/"+kind+"/"+d] = data
		return d
	}
	image = ocidigest.FromString("image").String()
	manifest = add("manifests", map[string]any{"config": map[string]any{"digest": image}})
	var statement strings.Builder
	fmt.Fprintf(&statement,
		`{"_type":"https://in-toto.io/Statement/v1","predicateType":"https://sigstore.dev/cosign/sign/v1","subject":[{}`)
	for n := range 33_000 {
		fmt.Fprintf(&statement, `,{"digest":{"a%d":"%s"}}`, n, strings.Repeat("b", 120))
	}
	statement.WriteString("]}")
	bundle, _ := json.Marshal(map[string]any{
		"mediaType":            "application/vnd.dev.sigstore.bundle.v0.3+json",
		"verificationMaterial": map[string]any{"publicKey": map[string]any{"hint": "x"}},
		"dsseEnvelope": map[string]any{
			"payload":     base64.StdEncoding.EncodeToString([]byte(statement.String())),
			"payloadType": "application/vnd.in-toto+json",
			"signatures":  []any{map[string]any{"sig": base64.StdEncoding.EncodeToString([]byte("nothing"))}},
		},
	})
	layer := map[string]any{
		"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "digest": add("blobs", bundle),
		"size": len(bundle),
	}
	var referrers []any
	for n := range 2 {
		referrers = append(referrers, map[string]any{"digest": add("manifests", map[string]any{
			"config": map[string]any{"digest": image}, "layers": []any{layer}, "annotations": map[string]any{"n": fmt.Sprint(n)},
		})})
	}
	list, _ := json.Marshal(map[string]any{"manifests": referrers})
	contents["/v2/app/referrers/"+manifest] = list
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, ok := contents[r.URL.Path]
		w.Header().Set("Content-Type", "application/json")
		if !ok {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(content)))
		_, _ = w.Write(content)
	}), manifest, image
}

// As many images as are verified at a time, with signatures that a tenant has made, leave the memory that the unit
// and the Deployment of pullgate-policyd have.
func TestMemoryOfHostileSignatures(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	percent, limit := debug.SetGCPercent(50), debug.SetMemoryLimit(128<<20) // as the program does
	defer func() { debug.SetGCPercent(percent); debug.SetMemoryLimit(limit) }()
	s, rules, hash := realService(t, config.DefaultPolicyd())
	h, manifest, image := hostile()
	r := verify.Request{Image: verify.Image{ID: image, Digests: []string{manifest}}, Requirements: []string{hash}}
	var hosts []string
	for range 3 {
		server := httptest.NewServer(h)
		defer server.Close()
		hosts = append(hosts, server.Listener.Addr().String())
	}
	runtime.GC()
	used := func() uint64 {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapInuse + stats.StackInuse
	}
	before, peak := used(), uint64(0)
	done := make(chan struct{})
	var all sync.WaitGroup
	for n := range 24 {
		all.Go(func() {
			r := r
			r.Name = imageref.New(fmt.Sprintf("%s/app:%d", hosts[n%len(hosts)], n))
			report, err := s.Verify(t.Context(), rules, r)
			if err != nil || !strings.Contains(report.Results[0].Message, "a statement of") {
				t.Errorf("Verify = %+v, %v; want a signature that is read and does not count", report, err)
			}
		})
	}
	go func() { all.Wait(); close(done) }()
	for sample := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case <-sample.C:
			peak = max(peak, used())
			continue
		case <-done:
			sample.Stop()
		}
		break
	}
	t.Logf("at most %d MiB above the beginning", (peak-before)>>20)
	if most := uint64(128 << 20); peak > before+most {
		t.Errorf("%d MiB above the beginning; want at most %d", (peak-before)>>20, most>>20)
	}
}

// What waits for memory that other images take is no answer about its image, so that no tenant has the image of
// another denied.
func TestWaitForMemoryIsNoAnswer(t *testing.T) {
	c := config.DefaultPolicyd()
	c.Limits.Time = "1s"
	s, rules, hash := realService(t, c)
	h, manifest, image := hostile()
	r := verify.Request{Image: verify.Image{ID: image, Digests: []string{manifest}}, Requirements: []string{hash}}
	server := httptest.NewServer(h)
	defer server.Close()
	r.Name = imageref.New(server.Listener.Addr().String() + "/app:1")
	defer s.TakeMemory()()
	if report, err := s.Verify(t.Context(), rules, r); !errors.Is(err, verify.ErrBusy) {
		t.Errorf("Verify without memory = %+v, %v; want ErrBusy", report.Results, err)
	}
}
