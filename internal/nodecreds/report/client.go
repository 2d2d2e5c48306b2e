package report

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	// path is where reports are posted.
	path = "/v1/credentials"
	// sendLimit bounds everything that a report costs the kubelet.
	sendLimit = time.Second
	// maxText bounds what is shown of a refusal.
	maxText = 1 << 10
)

// A Report is what one credential provider gave out.
type Report struct {
	// KeyFingerprint is that of the key the IDs were made with.
	KeyFingerprint string `json:"keyFingerprint"`
	// Expires is when the kubelet has certainly ceased to use the answer.
	Expires     time.Time    `json:"expires"`
	Credentials []Credential `json:"credentials"`
}

// A Credential is one that was given out, with the patterns of images that it is for.
type Credential struct {
	ID     credential.ID `json:"id"`
	Images []string      `json:"images"`
}

// An Exchange is what a kubelet asked a credential provider, and the answer, as they were sent.
type Exchange struct{ Request, Answer []byte }

// Tell reports what an exchange gave to the whole node to the daemon on a socket, with IDs under the key
// in a file. It does nothing if there is nothing to report: the answer is bound to a service account, or
// holds no credential. It takes a second at most. An error is one line without any credential; after
// it the daemon takes what was given out for credentials of pods.
func Tell(ctx context.Context, socket, keyFile string, e Exchange) error {
	version, wide, err := nodeWide(e.Request)
	if err != nil || !wide {
		return err
	}
	a, err := parse(e.Answer, version, time.Now())
	if err != nil || len(a.accounts) == 0 {
		return err
	}
	key, err := credential.LoadKey(keyFile)
	if err != nil {
		return fmt.Errorf("%w; --state-dir must be the stateDir of pullgated, which makes the key when it first starts", err)
	}
	r := a.report(key)
	if len(r.Credentials) == 0 {
		return nil
	}
	return send(ctx, socket, r)
}

func send(ctx context.Context, socket string, r Report) error {
	ctx, cancel := context.WithTimeout(ctx, sendLimit)
	defer cancel()
	body, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://pullgated"+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		},
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("report to %s: %w; see systemctl status pullgated, and that --socket is its nodeCredentials.listen", socket, err)
	}
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxText))
	if err := errors.Join(err, resp.Body.Close()); err != nil {
		return fmt.Errorf("report to %s: %w", socket, err)
	}
	if resp.StatusCode != http.StatusNoContent {
		return fmt.Errorf("report to %s: %s: %s", socket, resp.Status, strings.Join(strings.Fields(string(text)), " "))
	}
	return nil
}
