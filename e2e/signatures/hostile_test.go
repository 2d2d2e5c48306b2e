package signatures_test

import (
	"bytes"
	"crypto/ecdsa"
	"encoding/json"
	"net/http"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit/sigstoretest"

	"github.com/pullgate/pullgate/e2e/node"
	"github.com/pullgate/pullgate/e2e/signing"
)

// More reasons of pullgate-policyd.
const (
	content     = "CONTENT_MISMATCH"
	tooMuch     = "LIMIT_EXCEEDED"
	deniedThere = "REGISTRY_DENIED"
	unavailable = "REGISTRY_UNAVAILABLE"
)

const (
	manifestType = "application/vnd.oci.image.manifest.v1+json"
	indexType    = "application/vnd.oci.image.index.v1+json"
)

// A dishonest registry is one whose answers can be replaced, by repository. It has a log of its requests.
type dishonest struct {
	http.Handler
	mu       sync.Mutex
	faults   map[string]http.HandlerFunc
	requests map[string][]string
}

// pass is what a fault calls to have the registry answer.
type pass func(http.ResponseWriter, *http.Request)

func (d *dishonest) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(r.URL.Path, "/") // /v2/case/app/…
	d.mu.Lock()
	var fault http.HandlerFunc
	if len(parts) > 4 {
		fault = d.faults[parts[2]]
		d.requests[parts[2]] = append(d.requests[parts[2]], r.Method+" "+r.URL.Path)
	}
	d.mu.Unlock()
	if fault != nil {
		fault(w, r)
		return
	}
	d.Handler.ServeHTTP(w, r)
}

// A trial is one case at the dishonest registry.
type trial struct {
	*testing.T
	*dishonest
	key, other *ecdsa.PrivateKey
	name       string
	repository *signing.Repository
	image      node.Pushed // signed in the present form
}

// fault replaces answers from now on. at is a part of the path.
func (c *trial) fault(at string, answer func(http.ResponseWriter, *http.Request, pass)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults[c.name] = func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, at) {
			answer(w, r, c.Handler.ServeHTTP)
			return
		}
		c.Handler.ServeHTTP(w, r)
	}
}

// serves replaces what the registry has under a digest or a tag.
func (c *trial) serves(at, mediaType string, data []byte) {
	c.fault(at, func(w http.ResponseWriter, _ *http.Request, _ pass) {
		w.Header().Set("Content-Type", mediaType)
		_, _ = w.Write(data) // the client may have gone
	})
}

// unsigned is another image of the repository, without a signature.
func (c *trial) unsigned(tag string) node.Pushed {
	c.Helper()
	image, err := c.repository.Image(c.Context(), tag, runtime.GOARCH, c.Name()+tag)
	must(c.T, err)
	return image
}

func (c *trial) manifest(reference string) (data []byte, mediaType string) {
	c.Helper()
	data, mediaType, err := c.repository.Manifest(c.Context(), reference)
	must(c.T, err)
	return data, mediaType
}

// multi makes a signed index of the image.
func (c *trial) multi() {
	c.Helper()
	var err error
	c.image, err = c.repository.Index(c.Context(), "multi", c.unsigned("platform").Digest, runtime.GOARCH, otherArchitecture())
	must(c.T, err)
	c.repository.Sign(c, c.key, c.image.Digest)
}

// What a dishonest registry serves never makes an image count as signed, and a denial never becomes a failure, which a
// grace period would forgive.
func TestDishonestRegistry(t *testing.T) {
	t.Parallel()
	key, other := sigstoretest.NewKey(t), sigstoretest.NewKey(t)
	d := &dishonest{Handler: withReferrers(), faults: map[string]http.HandlerFunc{}, requests: map[string][]string{}}
	host := serve(t, d)
	w := start(t, map[string]string{"all": kyvernoPolicy("all", host+"/", kyvernoKeys(0, string(sigstoretest.PublicPEM(t, key))))}, nil, "limits: {time: 5s}")
	login := node.Alice()
	for name, tc := range dishonestCases() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &trial{T: t, dishonest: d, key: key, other: other, name: strings.ReplaceAll(strings.ToLower(name), " ", "-")}
			c.repository = open(t, host+"/"+c.name+"/app", nil)
			c.image = c.unsigned("1")
			c.repository.Sign(t, key, c.image.Digest)
			if tc.prepare != nil {
				tc.prepare(c)
			}
			d.mu.Lock()
			delete(d.requests, c.name)
			d.mu.Unlock()
			began := time.Now()
			got, err := w.verify(t.Context(), c.image, &login, false)
			must(t, err)
			result := got.Results[0]
			if result.Met != (tc.reasons == nil) || !result.Met && !slices.Contains(tc.reasons, result.Reason) {
				t.Errorf("%+v; want reasons %q", result, tc.reasons)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("answered after %v; the limit is 5 s", took)
			}
			d.mu.Lock()
			requests := d.requests[c.name]
			d.mu.Unlock()
			limit := tc.requests
			if limit == 0 {
				limit = 20
			}
			if len(requests) > limit {
				t.Errorf("%d requests; want at most %d: %q", len(requests), limit, requests[:min(30, len(requests))])
			}
			t.Logf("%d requests; %s", len(requests), result.Message)
		})
	}
}

// A dishonestCase is what a registry does. It has signed the image that prepare leaves.
type dishonestCase struct {
	prepare  func(*trial)
	reasons  []string // one of them; none if the image meets the rule all the same
	requests int      // at most; 0 is 20
}

func dishonestCases() map[string]dishonestCase {
	denials := []string{missing, invalid, content}
	return map[string]dishonestCase{
		"one signature of an image": {requests: 7},
		"one signature of an index": {prepare: (*trial).multi, requests: 7},
		"the tag moves to an unsigned image": {prepare: func(c *trial) {
			data, mediaType := c.manifest(c.unsigned("2").Digest)
			_, err := c.repository.PutManifest(c.Context(), "1", mediaType, data)
			must(c.T, err)
		}},
		"the tag moves to a signed image": {reasons: denials, prepare: func(c *trial) {
			signed := c.image
			c.image = c.unsigned("2")
			data, mediaType := c.manifest(signed.Digest)
			_, err := c.repository.PutManifest(c.Context(), "2", mediaType, data)
			must(c.T, err)
		}},
		"the runtime says the digest of a signed image": {reasons: denials, prepare: func(c *trial) {
			c.image.ID = c.unsigned("2").ID
		}},
		"another manifest": {reasons: denials, prepare: func(c *trial) {
			pulled := c.unsigned("2")
			data, mediaType := c.manifest(pulled.Digest)
			c.serves("/manifests/"+c.image.Digest, mediaType, data)
			c.image.ID = pulled.ID
		}},
		"another config": {reasons: denials, prepare: func(c *trial) {
			pulled := c.unsigned("2")
			data, mediaType := c.manifest(c.image.Digest)
			c.serves("/manifests/"+c.image.Digest, mediaType, bytes.ReplaceAll(data, []byte(c.image.ID), []byte(pulled.ID)))
			c.image.ID = pulled.ID
		}},
		"another platform entry": {reasons: denials, prepare: func(c *trial) {
			pulled := c.unsigned("2")
			c.multi()
			data, mediaType := c.manifest(c.image.Digest)
			platform := c.unsigned("platform").Digest
			c.serves("/manifests/"+c.image.Digest, mediaType, bytes.ReplaceAll(data, []byte(platform), []byte(pulled.Digest)))
			c.image.ID = pulled.ID
		}},
		"signed in another repository": {reasons: []string{missing}, prepare: func(c *trial) {
			elsewhere := open(c, strings.TrimSuffix(c.repository.String(), "/app")+"/elsewhere", nil)
			image, err := elsewhere.Image(c.Context(), "1", runtime.GOARCH, "everywhere")
			must(c.T, err)
			elsewhere.Sign(c, c.key, image.Digest)
			elsewhere.SignLegacy(c, c.key, image.Digest)
			c.image, err = c.repository.Image(c.Context(), "2", runtime.GOARCH, "everywhere")
			must(c.T, err)
			if c.image.Digest != image.Digest {
				c.Fatalf("%s and %s; want the same bytes", c.image.Digest, image.Digest)
			}
		}},
		"a thousand signatures": {reasons: []string{tooMuch}, requests: 120, prepare: func(c *trial) {
			c.image = c.unsigned("2")
			c.attachMany(1000)
		}},
		"endless referrers": {reasons: []string{tooMuch, invalid}, prepare: func(c *trial) {
			c.fault("/referrers/", endless(`{"schemaVersion":2,"mediaType":indexType,"manifests":[`))
		}},
		"endless signature": {reasons: []string{tooMuch, invalid}, prepare: func(c *trial) { c.fault("/blobs/", endless("{")) }},
		"slow signature": {reasons: []string{tooMuch, invalid}, prepare: func(c *trial) {
			c.fault("/blobs/", func(w http.ResponseWriter, r *http.Request, _ pass) {
				for r.Context().Err() == nil {
					if _, err := w.Write([]byte(" ")); err != nil {
						return
					}
					_ = http.NewResponseController(w).Flush()
					time.Sleep(100 * time.Millisecond)
				}
			})
		}},
		"redirects for ever": {reasons: []string{tooMuch, invalid, deniedThere}, requests: 40, prepare: func(c *trial) {
			c.fault("/blobs/", func(w http.ResponseWriter, r *http.Request, _ pass) {
				http.Redirect(w, r, r.URL.Path+"x", http.StatusTemporaryRedirect)
			})
		}},
		"redirect to another host": {prepare: func(c *trial) {
			elsewhere := serve(c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if value := r.Header.Get("Authorization"); value != "" {
					c.Errorf("another host got a credential: %s", value)
				}
				c.Handler.ServeHTTP(w, r)
			}))
			c.fault("/blobs/", func(w http.ResponseWriter, r *http.Request, _ pass) {
				http.Redirect(w, r, "http://"+elsewhere+r.URL.Path, http.StatusTemporaryRedirect)
			})
		}},
		"redirect of a manifest": {reasons: []string{invalid, content, missing, deniedThere}, prepare: func(c *trial) {
			c.fault("/manifests/", func(w http.ResponseWriter, r *http.Request, _ pass) {
				http.Redirect(w, r, "http://192.0.2.1"+r.URL.Path, http.StatusTemporaryRedirect)
			})
		}},
		"401 after 200": {reasons: []string{deniedThere}, prepare: func(c *trial) {
			c.fault("/blobs/", func(w http.ResponseWriter, _ *http.Request, _ pass) { w.WriteHeader(http.StatusUnauthorized) })
		}},
		"401 for referrers": {reasons: []string{deniedThere}, prepare: func(c *trial) {
			c.fault("/referrers/", func(w http.ResponseWriter, _ *http.Request, _ pass) { w.WriteHeader(http.StatusUnauthorized) })
		}},
		"an outage": {reasons: []string{unavailable}, prepare: func(c *trial) {
			c.fault("/", func(w http.ResponseWriter, _ *http.Request, _ pass) { w.WriteHeader(http.StatusBadGateway) })
		}},
	}
}

// attachMany makes the registry list many signatures of the image by another key.
func (c *trial) attachMany(n int) {
	c.Helper()
	statement := sigstoretest.Statement{Digests: []string{c.image.Digest}}.JSON(c)
	data := sigstoretest.BundleJSON(c, sigstoretest.KeyBundle(c, c.other, statement))
	layer, err := c.repository.PutBlob(c.Context(), signing.BundleMediaType, data)
	must(c.T, err)
	manifests := map[string][]byte{}
	var list []map[string]any
	for i := range n {
		data, err := json.Marshal(map[string]any{
			"schemaVersion": 2, "mediaType": manifestType, "artifactType": signing.BundleMediaType, "config": layer, "layers": []any{layer},
			"annotations": map[string]string{"number": strconv.Itoa(i)},
		})
		must(c.T, err)
		digest := signing.Digest(data)
		manifests[digest] = data
		list = append(list, map[string]any{
			"mediaType": manifestType, "digest": digest, "size": len(data), "artifactType": signing.BundleMediaType,
		})
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": indexType, "manifests": list})
	must(c.T, err)
	c.fault("/", func(w http.ResponseWriter, r *http.Request, otherwise pass) {
		if strings.Contains(r.URL.Path, "/referrers/") {
			w.Header().Set("Content-Type", indexType)
			_, _ = w.Write(index)
			return
		}
		if data, ok := manifests[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]; ok {
			w.Header().Set("Content-Type", manifestType)
			_, _ = w.Write(data)
			return
		}
		otherwise(w, r)
	})
}

// endless answers with a text, and with spaces without end.
func endless(text string) func(http.ResponseWriter, *http.Request, pass) {
	return func(w http.ResponseWriter, _ *http.Request, _ pass) {
		w.Header().Set("Content-Type", indexType)
		_, err := w.Write([]byte(text))
		for spaces := bytes.Repeat([]byte(" "), 64<<10); err == nil; {
			_, err = w.Write(spaces)
		}
	}
}
