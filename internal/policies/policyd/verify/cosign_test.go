package verify_test

import (
	"crypto/x509"
	"encoding/pem"
	"io"
	"log" //nolint:depguard // the logger of go-containerregistry's registry
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	ggcr "github.com/google/go-containerregistry/pkg/registry"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
	"github.com/pullgate/pullgate/internal/policies/requirement"
	"github.com/pullgate/pullgate/internal/testkit"
	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"
	"github.com/pullgate/pullgate/pkg/imageref"
)

func recorded(t *testing.T, name string) []byte {
	t.Helper()
	return testkit.Value(os.ReadFile(filepath.Join("testdata", "cosign", name)))(t)
}

// recordedKey requires a signature with the key of the recorded ones.
func recordedKey(t *testing.T) *requirement.Requirement {
	t.Helper()
	block, _ := pem.Decode(recorded(t, "cosign.pub"))
	if _, err := x509.ParsePKIXPublicKey(block.Bytes); err != nil {
		t.Fatal(err)
	}
	return &requirement.Requirement{SignedBy: &requirement.Signer{Key: &requirement.Key{
		Public: block.Bytes,
		Hash:   "sha256",
	}}}
}

const (
	recordedID       = "sha256:ec2e457ecfa52daff15a9ec22083af5649d0ba207b2ddd32f25b5a566c0e7abe"
	recordedIndex    = "application/vnd.oci.image.index.v1+json"
	recordedManifest = "application/vnd.oci.image.manifest.v1+json"
)

// Signatures that cosign has written, at a registry over HTTP. At most 7 requests are made, as the registry counts
// them.
func TestRecordedSignatures(t *testing.T) {
	index := digestOf(recorded(t, "index.json"))
	fallback := strings.Replace(index, ":", "-", 1)
	for name, tc := range map[string]struct {
		api   bool
		files map[string]string // by tag, "" for the digest
		want  string
		by    string
	}{
		"present form": {true, map[string]string{"": "bundle-manifest.json"}, "met", "referrers"},
		"present form by fallback tag": {
			false,
			map[string]string{"": "bundle-manifest.json", fallback: ""},
			"met",
			"fallback-tag",
		},
		"older form":                 {true, map[string]string{fallback + ".sig": "simple-manifest.json"}, "met", "sig-tag"},
		"older form without the API": {false, map[string]string{fallback + ".sig": "simple-manifest.json"}, "met", "sig-tag"},
		"none":                       {true, nil, "SIGNATURE_MISSING", ""},
	} {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			handler := ggcr.New(ggcr.WithReferrersSupport(tc.api), ggcr.Logger(log.New(io.Discard, "", 0)))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet && r.URL.Path != "/v2/" {
					requests.Add(1)
				}
				handler.ServeHTTP(w, r)
			}))
			defer server.Close()
			put := func(reference, kind string, data []byte) {
				t.Helper()
				if reference == "" {
					reference = digestOf(data)
				}
				send(t, http.MethodPut, server.URL+"/v2/team/app/manifests/"+reference, kind, data)
			}
			for _, blob := range []string{"bundle.json", "simple-payload.json"} {
				data := recorded(t, blob)
				send(t, http.MethodPost, server.URL+"/v2/team/app/blobs/uploads/?digest="+digestOf(data),
					"application/octet-stream", data)
			}
			put("", recordedManifest, recorded(t, "manifest.json"))
			put("", recordedManifest, recorded(t, "other-manifest.json"))
			put("1", recordedIndex, recorded(t, "index.json"))
			for _, tag := range slices.Sorted(maps.Keys(tc.files)) { // an index after what it refers to
				if file := tc.files[tag]; file != "" {
					put(tag, recordedManifest, recorded(t, file))
					continue
				}
				put(tag, recordedIndex, encode(t, object{"schemaVersion": 2, "mediaType": recordedIndex, "manifests": []object{{
					"mediaType": recordedManifest, "digest": digestOf(recorded(t, "bundle-manifest.json")),
					"size": len(recorded(t, "bundle-manifest.json")),
				}}}))
			}
			requests.Store(0)

			client := testkit.Value(registry.New(registry.Options{}))(t)
			defer client.Close()
			c := check{
				image: verify.Image{
					Name: imageref.New(strings.TrimPrefix(server.URL, "http://") + "/team/app:1"), ID: recordedID,
					Digests: []string{index},
				},
				want: []*requirement.Requirement{recordedKey(t)},
			}
			c.options.Open = func(name string, cred admission.Login) verify.Repository { return client.Repository(name, cred) }
			expect(t, c.result(t), tc.want)
			if n := requests.Load(); tc.want == "met" && n > 7 {
				t.Errorf("%d requests; want at most 7", n)
			}
			c.list = true
			if found := c.report(t).Signatures; tc.by != "" &&
				(len(found) != 1 || found[0].FoundBy != tc.by || !found[0].Counts) {
				t.Errorf("found %+v; want one by %s", found, tc.by)
			}
			c.list, c.want = false, []*requirement.Requirement{keyLeaf(t, sigstoretest.NewKey(t))}
			if tc.by != "" {
				expect(t, c.result(t), "SIGNATURE_INVALID")
			}
		})
	}
}

func send(t *testing.T, method, url, kind string, data []byte) {
	t.Helper()
	request := testkit.Value(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(string(data))))(t)
	request.Header.Set("Content-Type", kind)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	defer http.DefaultClient.CloseIdleConnections()
	if response.StatusCode >= 300 {
		t.Fatalf("%s %s: %s", method, url, response.Status)
	}
}
