package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify/registry"
)

func TestContentIsReadByTagAndDigest(t *testing.T) {
	n, h := newNetwork(t), images(true)
	n.https("registry.test", h)
	data := manifest("image", "", "")
	d := put(t, h, "team/app", "1.4", ociManifest, data)
	blob := put(t, h, "team/app", "", "", []byte("a blob"))
	r := n.repository()
	for _, ref := range []string{"1.4", d} {
		if got, err := r.Manifest(t.Context(), ref); err != nil || !bytes.Equal(got, data) {
			t.Errorf("Manifest(%s) = %s, %v; want %s", ref, got, err, data)
		}
	}
	if got, err := r.Blob(t.Context(), blob, 6); err != nil || string(got) != "a blob" {
		t.Errorf("Blob = %q, %v", got, err)
	}
	if _, err := r.Blob(t.Context(), blob, 5); !errors.Is(err, registry.ErrTooLarge) {
		t.Errorf("Blob of one byte less = %v; want ErrTooLarge", err)
	}
	const named = "1.5 of registry.test/team/app at registry.test"
	_, err := r.Manifest(t.Context(), "1.5")
	if !errors.Is(err, registry.ErrNotFound) || !strings.Contains(err.Error(), named) {
		t.Errorf("Manifest of an unknown tag = %v; want ErrNotFound", err)
	}
	if want := map[string]int{"ok": 3, "too_large": 1, "not_found": 1}; !cmp.Equal(n.outcomes, want) {
		t.Errorf("outcomes %v; want %v", n.outcomes, want)
	}
	if got := n.leaked(); got != nil {
		t.Errorf("%v received a credential without a challenge", got)
	}
	if got := n.seen(); len(got) != 5 {
		t.Errorf("%d requests, want 5: %v", len(got), got)
	}
}

func TestNamesAreChecked(t *testing.T) {
	n := newNetwork(t)
	c := n.client(registry.Options{})
	for _, name := range []string{
		"", "busybox", "library/busybox", "registry.test", "registry.test/a:1", "registry.test/../a", "registry.test/A",
		"u:p@registry.test/a", "registry.test/a?b",
	} {
		if err := tagged(t, c.Repository(name, admission.Login{})); !errors.Is(err, registry.ErrMalformed) {
			t.Errorf("Manifest of %q = %v; want ErrMalformed", name, err)
		}
	}
	r := c.Repository(repository, admission.Login{})
	for _, ref := range []string{
		"", "a/b", "../b", "a?b", "sha256:1234", "sha256:" + strings.Repeat("A", 64), "md5:d41d8cd98f00b204e9800998ecf8427e",
		"sha256:../../x",
	} {
		_, manifest := r.Manifest(t.Context(), ref)
		_, blob := r.Blob(t.Context(), ref, 10)
		_, _, referrers := r.Referrers(t.Context(), ref)
		for _, err := range []error{manifest, blob, referrers} {
			if !errors.Is(err, registry.ErrMalformed) {
				t.Errorf("%q: %v; want ErrMalformed", ref, err)
			}
		}
	}
	if got := n.seen(); got != nil {
		t.Errorf("requests %v; want none", got)
	}
}

// Shows: 002-54
func TestReferrersAreFoundByAPIAndByTag(t *testing.T) {
	subject := digest.FromString("subject").String()
	signature := manifest("signature", "application/signature", subject)
	tag := strings.Replace(subject, ":", "-", 1)
	const list = `{"mediaType":%q,"manifests":[{"mediaType":%q,"artifactType":"a","digest":%q,"size":%d}]}`
	index := fmt.Appendf(nil, list, ociIndex, ociManifest, digest.FromBytes(signature), len(signature))
	for _, api := range []bool{true, false} {
		n, h := newNetwork(t), images(api)
		n.https("registry.test", h)
		put(t, h, "team/app", "1", ociManifest, manifest("image", "", ""))
		r := n.repository()
		const path = "registry.test/v2/team/app/"
		by, requests := registry.ByTag, []string{path + "referrers/" + subject, path + "manifests/" + tag}
		if api {
			by, requests = registry.ByAPI, requests[:1]
		}
		list, foundBy, err := r.Referrers(t.Context(), subject)
		if err != nil || len(list) != 0 || foundBy != by {
			t.Errorf("API %v: Referrers without any = %v, %s, %v; want none, %s", api, list, foundBy, err, by)
		}
		if got := n.seen(); !cmp.Equal(got, requests) {
			t.Errorf("API %v: requests %v; want %v", api, got, requests)
		}
		put(t, h, "team/app", "", ociManifest, signature)
		if !api {
			put(t, h, "team/app", tag, ociIndex, index)
		}
		list, foundBy, err = r.Referrers(t.Context(), subject)
		want := digest.FromBytes(signature).String()
		if err != nil || len(list) != 1 || foundBy != by || list[0].Digest.String() != want ||
			list[0].MediaType != ociManifest {
			t.Errorf("API %v: Referrers = %v, %s, %v; want the signature by %s", api, list, foundBy, err, by)
		}
		// A host that does not have the API is not asked for it again.
		if got := n.seen(); len(got) != 1 {
			t.Errorf("API %v: requests %v; want one", api, got)
		}
	}
}

// pages answers with pages of referrers, each with entries, of which the last is number last.
func pages(entries, last int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		page := 0
		_, _ = fmt.Sscanf(r.URL.Query().Get("page"), "%d", &page)
		w.Header().Set("Content-Type", ociIndex)
		if page != last {
			w.Header().Set("Link", fmt.Sprintf(`<%s?page=%d>; rel="next"`, r.URL.Path, page+1))
		}
		var list []string
		for i := range entries {
			d := digest.FromString(fmt.Sprint(page, i))
			list = append(list, fmt.Sprintf(`{"mediaType":%q,"digest":%q,"size":1}`, ociManifest, d))
		}
		_, _ = fmt.Fprintf(w, `{"schemaVersion":2,"manifests":[%s]}`, strings.Join(list, ","))
	})
}

// Shows: 002-56
func TestPagesOfReferrersAreBounded(t *testing.T) {
	subject := digest.FromString("subject").String()
	for _, tc := range []struct {
		name          string
		entries, last int
		want          int
		err           error
		requests      int
	}{
		{"two pages", 3, 1, 6, nil, 2},
		{"a thousand", 500, 1, 1000, nil, 2},
		{"more than a thousand on one page", 1001, 0, 0, registry.ErrTooLarge, 1},
		{"more than a thousand on all pages", 501, 1, 0, registry.ErrTooLarge, 2},
		{"pages without end", 1, -1, 0, registry.ErrTooLarge, 20},
		{"empty pages without end", 0, -1, 0, registry.ErrTooLarge, 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t)
			n.https("registry.test", pages(tc.entries, tc.last))
			list, _, err := n.repository().Referrers(t.Context(), subject)
			if len(list) != tc.want || !errors.Is(err, tc.err) {
				t.Errorf("Referrers = %d entries, %v; want %d, %v", len(list), err, tc.want, tc.err)
			}
			if got := n.seen(); len(got) != tc.requests {
				t.Errorf("%d requests, want %d", len(got), tc.requests)
			}
		})
	}
}

// The entries of a list are counted before it is decoded: each takes far more memory than its text.
func TestALongListOfReferrersIsNotDecoded(t *testing.T) {
	n := newNetwork(t)
	body := `{"manifests":[{}` + strings.Repeat(",{}", 1_300_000) + "]}"
	n.https("registry.test", answerWith(http.StatusOK, body, "Content-Type", ociIndex))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err := n.repository().Referrers(t.Context(), digest.FromString("subject").String())
	runtime.ReadMemStats(&after)
	if used := (after.TotalAlloc - before.TotalAlloc) >> 20; !errors.Is(err, registry.ErrTooLarge) || used > 64 {
		t.Errorf("Referrers = %v, with %d MiB; want ErrTooLarge with little memory", err, used)
	}
}

// answerWith answers with a status, a header and a body.
func answerWith(code int, body string, header ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(body))
	})
}

func TestHostileAnswers(t *testing.T) {
	d := digest.FromString("content").String()
	endless := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", ociIndex)
		for range 1 << 12 {
			if _, err := w.Write([]byte(strings.Repeat(" ", 1<<14))); err != nil {
				return
			}
		}
	})
	cut := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = w.Write([]byte("short"))
	})
	notHTTP := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack() //nolint:errcheck,forcetypeassert // a server of HTTP/1
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte("\x1b[2Jno answer of " + canary + "\r\n\r\n"))
		_ = conn.Close()
	})
	closed := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := w.(http.Hijacker).Hijack(); err == nil { //nolint:errcheck,forcetypeassert // as above
			_ = conn.Close()
		}
	})
	denied, notFound, malformed := registry.ErrDenied, registry.ErrNotFound, registry.ErrMalformed
	unavailable, mismatch, tooLarge := registry.ErrUnavailable, registry.ErrMismatch, registry.ErrTooLarge
	index := func(body string, header ...string) http.Handler {
		return answerWith(200, body, append(header, "Content-Type", ociIndex)...)
	}
	for _, tc := range []struct {
		name                      string
		h                         http.Handler
		manifest, blob, referrers error
	}{
		{"401 without challenge", status(401), denied, denied, denied},
		{"401 with an unknown challenge", answerWith(401, "", "Www-Authenticate", "Negotiate x"), denied, denied, denied},
		{"403", status(403), denied, denied, denied},
		{"404", status(404), notFound, notFound, nil},
		{"418", status(418), malformed, malformed, malformed},
		{"429", status(429), denied, denied, denied},
		{"503", status(503), unavailable, unavailable, unavailable},
		{"204", status(204), malformed, malformed, malformed},
		{"other content", answerWith(200, "other"), mismatch, mismatch, malformed},
		{"compressed", answerWith(200, "\x1f\x8b\x08\x00", "Content-Encoding", "gzip"), mismatch, mismatch, malformed},
		{"no JSON", index("["), mismatch, mismatch, malformed},
		{"an invalid digest", index(`{"manifests":[{"digest":"sha256:/../"}]}`), mismatch, mismatch, malformed},
		{"next page elsewhere", index("{}", "Link", `<https://other.test/>; rel="next"`), mismatch, mismatch, malformed},
		{"endless", endless, tooLarge, tooLarge, tooLarge},
		{"length", index("", "Content-Length", "5000000"), tooLarge, tooLarge, tooLarge},
		{"cut", cut, malformed, malformed, malformed},
		{"a large header", answerWith(200, "", "X-Large", strings.Repeat("x", 100<<10)), malformed, malformed, malformed},
		{"not HTTP", notHTTP, malformed, malformed, malformed},
		{"closed", closed, unavailable, unavailable, unavailable},
		{"redirect to itself", answerWith(307, "", "Location", "/v2/"), malformed, malformed, malformed},
		{"redirect without location", status(307), malformed, malformed, malformed},
		{"redirect to an invalid location", answerWith(307, "", "Location", "https://%zz"), malformed, malformed, malformed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t)
			n.https("registry.test", tc.h)
			r := n.repository()
			_, manifest := r.Manifest(t.Context(), d)
			_, blob := r.Blob(t.Context(), d, 1<<20)
			_, _, referrers := r.Referrers(t.Context(), d)
			for _, errs := range [][2]error{{manifest, tc.manifest}, {blob, tc.blob}, {referrers, tc.referrers}} {
				text := fmt.Sprint(errs[0])
				if !errors.Is(errs[0], errs[1]) || strings.Contains(text, canary) || strings.ContainsAny(text, "\x1b\n") {
					t.Errorf("%q; want %v", errs[0], errs[1])
				}
			}
			if got := n.leaked(); got != nil {
				t.Errorf("%v received the credential", got)
			}
		})
	}
}

func TestNoConnectionIsUnavailable(t *testing.T) {
	n := newNetwork(t)
	_, err := n.repository().Manifest(t.Context(), "latest")
	if !errors.Is(err, registry.ErrUnavailable) || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("Manifest = %v; want ErrUnavailable with its cause", err)
	}
}

func TestTime(t *testing.T) {
	// An answer that is given when the client has gone could still be read.
	hang := func(r *http.Request) {
		<-r.Context().Done()
		panic(http.ErrAbortHandler)
	}
	for _, tc := range []struct {
		name string
		h    http.HandlerFunc
		want error
	}{
		{"no answer at all", func(_ http.ResponseWriter, r *http.Request) { hang(r) }, registry.ErrUnavailable},
		{"no answer after the challenge", func(w http.ResponseWriter, r *http.Request) {
			if _, _, ok := r.BasicAuth(); ok {
				hang(r)
			}
			w.Header().Set("Www-Authenticate", "Basic")
			w.WriteHeader(http.StatusUnauthorized)
		}, registry.ErrTooLarge},
		{"an answer without end", func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush() //nolint:errcheck,forcetypeassert // a server of HTTP/1
			hang(r)
		}, registry.ErrTooLarge},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t)
			n.https("registry.test", tc.h)
			ctx, cancel := context.WithTimeout(t.Context(), 150*time.Millisecond)
			defer cancel()
			if _, err := n.repository().Manifest(ctx, "latest"); !errors.Is(err, tc.want) {
				t.Errorf("Manifest = %v; want %v", err, tc.want)
			}
		})
	}
}

func TestBlobsAreRedirectedWithoutSecrets(t *testing.T) {
	d := digest.FromString("content").String()
	content := answerWith(200, "content")
	to := func(url string) http.Handler { return basic(answerWith(307, "", "Location", url)) }
	loop := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, r.URL.Path+"x", http.StatusTemporaryRedirect)
	})
	for _, tc := range []struct {
		name  string
		first http.Handler
		want  error
	}{
		{"another host", to("https://storage.test/x?signature=1"), nil},
		{"a sub-domain", to("https://storage.registry.test/x"), nil},
		{"another port", to("https://registry.test:8443/x"), nil},
		{"from https to http", to("http://plain.test/x"), registry.ErrMalformed},
		{"another scheme", to("file:///etc/passwd"), registry.ErrMalformed},
		{"without end", basic(loop), registry.ErrMalformed},
		{"a host that asks for a credential", to("https://hostile.test/x"), registry.ErrDenied},
		{"a loopback address", to("https://127.0.0.1/x"), registry.ErrMalformed},
		{"a link-local address", to("https://metadata.test/x"), registry.ErrMalformed},
		{"a host that is down", to("https://down.test/x"), registry.ErrUnavailable},
		{"other content", to("https://other.test/x"), registry.ErrMismatch},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n := newNetwork(t)
			n.https("registry.test", tc.first)
			for _, name := range []string{"storage.test", "storage.registry.test", "registry.test:8443"} {
				n.https(name, content)
			}
			n.http("plain.test", content)
			n.https("hostile.test", basic(content))
			n.https("other.test", answerWith(200, "other"))
			n.resolved["127.0.0.1:443"], n.resolved["metadata.test:443"] = "127.0.0.1:443", "169.254.169.254:443"
			got, err := n.configured("[header]\nX-Secret = '"+canary+"'\n", alice).Blob(t.Context(), d, 100)
			if !errors.Is(err, tc.want) || err == nil && string(got) != "content" {
				t.Errorf("Blob = %q, %v; want %v", got, err, tc.want)
			}
			if got := n.leaked(); !cmp.Equal(got, []string{"registry.test"}) {
				t.Errorf("%v received secrets; want registry.test alone", got)
			}
			if requests := n.seen(); len(requests) > 8 {
				t.Errorf("%d requests", len(requests))
			}
		})
	}
}
