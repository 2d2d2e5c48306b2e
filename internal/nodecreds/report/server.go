package report

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"time"

	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/connlimit"
	"github.com/pullgate/pullgate/internal/peercred"
	"github.com/pullgate/pullgate/pkg/credential"
)

// Limits of the server, which has one kind of caller with one small message.
const (
	callLimit      = 5 * time.Second
	stopLimit      = 2 * time.Second
	maxHeader      = 8 << 10
	maxBody        = 1 << 20
	maxCredentials = 256
	maxConnections = 64
)

var idForm = regexp.MustCompile(`^[0-9a-f]{64}$`)

// Credentials are where reports end up.
type Credentials interface {
	// Add notes a credential that is offered for images until it expires, and reports whether that
	// is news.
	Add(patterns []string, id credential.ID, expiry time.Time) bool
}

// Serve takes reports on a Unix socket until ctx ends, then closes it and returns nil. Only IDs that were
// made with the key of this fingerprint are taken, and only from root or the user that the process
// itself runs as. What is news is logged, to the logger of ctx.
func Serve(ctx context.Context, l net.Listener, keyFingerprint string, to Credentials) error {
	h := handler{log: klog.FromContext(ctx), fingerprint: keyFingerprint, to: to}
	mux := http.NewServeMux()
	mux.Handle("POST "+path, h)
	server := &http.Server{
		Handler: mux, MaxHeaderBytes: maxHeader, ConnContext: withPeer,
		ReadTimeout: callLimit, WriteTimeout: callLimit, IdleTimeout: callLimit,
	}
	done := make(chan error, 1)
	limited := connlimit.New(l, connlimit.Limits{Total: maxConnections}, h.log)
	go func() { done <- server.Serve(limited) }()
	select {
	case err := <-done:
		return fmt.Errorf("serve reports of credential providers: %w", err)
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopLimit)
	defer cancel()
	if err := server.Shutdown(stop); err != nil {
		_ = server.Close() // a caller that hangs is its own affair
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve reports of credential providers: %w", err)
	}
	return nil
}

type handler struct {
	log         klog.Logger
	fingerprint string
	to          Credentials
}

// ServeHTTP notes a report.
func (h handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if uid, ok := peer(req.Context()); !ok || uid != 0 && uid != os.Geteuid() {
		refuse(w, http.StatusForbidden, "only root may report; let the kubelet run pullgated credential-provider as root")
		return
	}
	r, err := h.read(http.MaxBytesReader(w, req.Body, maxBody))
	if err != nil {
		refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	if r.KeyFingerprint != h.fingerprint {
		refuse(w, http.StatusConflict, "the IDs were made with another key than that of this pullgated; "+
			"give credential-provider the stateDir of pullgated as --state-dir, or restart pullgated if its node.key was exchanged")
		return
	}
	var news []credential.ID
	for _, c := range r.Credentials {
		if h.to.Add(c.Images, c.ID, r.Expires) {
			news = append(news, c.ID)
		}
	}
	if len(news) > 0 {
		h.log.Info("Node credentials reported by a credential provider", "credentialIDs", news, "expires", r.Expires)
	}
	w.WriteHeader(http.StatusNoContent)
}

// read reads and checks a report. Unknown fields are refused: one that a newer client sends may say that
// a credential is for less than it seems.
func (h handler) read(body io.Reader) (r Report, err error) {
	d := json.NewDecoder(body)
	d.DisallowUnknownFields()
	if err := d.Decode(&r); err != nil {
		return Report{}, fmt.Errorf("the report is not readable: %w; use the same version of pullgated for both", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return Report{}, errors.New("the report is not readable: more than one value; use the same version of pullgated for both")
	}
	switch {
	case !time.Now().Before(r.Expires):
		return Report{}, errors.New("expires: allowed is a time that is yet to come")
	case len(r.Credentials) == 0 || len(r.Credentials) > maxCredentials:
		return Report{}, fmt.Errorf("credentials: %d are given; allowed are 1 to %d", len(r.Credentials), maxCredentials)
	}
	for i, c := range r.Credentials {
		if !idForm.MatchString(string(c.ID)) {
			return Report{}, fmt.Errorf("credentials[%d].id: allowed are 64 hexadecimal digits, lower case", i)
		}
		if len(c.Images) == 0 {
			return Report{}, fmt.Errorf("credentials[%d].images: allowed is at least one pattern", i)
		}
	}
	return r, nil
}

func refuse(w http.ResponseWriter, code int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, text) // a caller that hangs up is its own affair
}

// peerKey is the key of the user who is at the other end of a connection.
type peerKey struct{}

// withPeer adds who dialled a connection, if it can be told.
func withPeer(ctx context.Context, c net.Conn) context.Context {
	who, err := peercred.Of(c)
	if err != nil {
		return ctx
	}
	return context.WithValue(ctx, peerKey{}, int(who.Uid))
}

func peer(ctx context.Context) (uid int, ok bool) {
	uid, ok = ctx.Value(peerKey{}).(int)
	return uid, ok
}
