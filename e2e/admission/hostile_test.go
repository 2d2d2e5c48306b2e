package admission_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pullgate/pullgate/internal/testkit"
)

// maxMemory is what hostile clients can make a pullgate-policyd use. It is the limit in the manifests.
const maxMemory = 256 << 20

// TestHostileClients has clients misbehave towards a pullgate-policyd, which answers others and uses a bounded memory.
// Shows: 004-R6
func TestHostileClients(t *testing.T) {
	t.Parallel()
	w := &world{dir: t.TempDir()}
	w.authority = testkit.Value(testkit.NewAuthority("authority of webhooks"))(t)
	testkit.Must(t, os.Mkdir(w.path(clusterOne), 0o700))
	testkit.Must(t, os.WriteFile(w.path(clusterOne, "labels.yaml"), []byte(labelsRestricted), 0o600))
	h := w.startWebhook(t, "hostile", loopback, w.path(clusterOne))
	answers := func(after string) {
		t.Helper()
		status, text, err := h.Post(t.Context(), "/admission/validate", strings.NewReader(review("{}", 1)))
		if err != nil || status != http.StatusOK || !strings.Contains(text, `"allowed":true`) {
			t.Errorf("after %s: %d %s, %v; want an admission", after, status, text, err)
		}
	}
	answers("the start")

	// The server keeps 512 of 1,000 connections, for a few seconds.
	var all sync.WaitGroup
	for i := range 1000 {
		all.Go(func() { check(t, w.misbehave(t.Context(), h, i%4)) })
	}
	all.Wait()
	answers("1,000 connections")

	many, large := strings.Repeat, make([]byte, 100<<20)
	for name, body := range map[string]func() io.Reader{
		"a body of 100 MiB": func() io.Reader { return bytes.NewReader(large) },
		"a large object":    func() io.Reader { return strings.NewReader(review(`{"x":"`+many("x", 2<<20)+`"}`, 1)) },
		"many containers":   func() io.Reader { return strings.NewReader(review("{}", 1<<19)) },
		"an unclosed list":  func() io.Reader { return strings.NewReader(many("[{},", 1<<20)) },
	} {
		for range 16 {
			all.Go(func() { _, _, _ = h.Post(t.Context(), "/admission/validate", body()) }) // of which some are refused
		}
		all.Wait()
		answers(name)
	}
	if u, err := h.Usage(); err != nil || u.Peak > maxMemory {
		t.Errorf("the peak of the memory is %d MiB, %v; want at most %d MiB", u.Peak>>20, err, maxMemory>>20)
	} else {
		t.Logf("the peak of the memory is %d MiB", u.Peak>>20)
	}
}

// review returns the review of an update of a pod with a number of containers.
func review(container string, n int) string {
	object := `{"spec":{"containers":[` + strings.Repeat(container+",", n-1) + container + `]}}`
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u-1",`+
		`"kind":{"version":"v1","kind":"Pod"},"resource":{"version":"v1","resource":"pods"},"operation":"UPDATE",`+
		`"namespace":"hostile","name":"app","object":%s,"oldObject":%s}}`, object, object)
}

// misbehave makes a connection and keeps it until the server closes it.
func (w *world) misbehave(ctx context.Context, h *webhook, how int) error {
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", h.Address)
	if err != nil {
		return err
	}
	defer func() { _ = raw.Close() }()
	limit := time.Now().Add(20 * time.Second)
	_ = raw.SetDeadline(limit)
	const post = "POST /admission/validate HTTP/1.1\r\nHost: x\r\n"
	conn, trickled := raw, ""
	switch how {
	case 0: // sends nothing
	case 1:
		trickled = strings.Repeat("\x16\x03\x01\x40\x00\x01", 100) // a handshake that does not end
	case 2:
		trickled = post + "X: " + strings.Repeat("x", 1000)
	case 3:
		trickled = post + "Content-Type: application/json\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("{", 1000)
	}
	if how > 1 {
		conn = tls.Client(raw, &tls.Config{RootCAs: w.authority.Pool(), ServerName: "localhost"})
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for _, c := range []byte(trickled) {
			if _, err := conn.Write([]byte{c}); err != nil {
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}()
	_, err = io.Copy(io.Discard, conn)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		return fmt.Errorf("the server keeps a connection of kind %d", how)
	}
	_ = raw.Close()
	<-ended
	return nil
}
