package apiserver

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// maxAnswer bounds an answer.
const maxAnswer = 16 << 20

// Options say how the API server is reached. The zero value is what kubectl does without flags.
type Options struct {
	Kubeconfig string        // a file; "" is $KUBECONFIG, else ~/.kube/config
	Context    string        // of the kubeconfig; "" is its current one
	Timeout    time.Duration // bounds each request, with a plugin that it needs; 0 is no bound
}

// A Client makes requests to one API server.
type Client struct {
	http *http.Client
	base string

	// Namespace is that of the context, "default" if it has none.
	Namespace string
}

// New reads the kubeconfig, and makes no connection.
func New(o Options) (*Client, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath, rules.WarnIfAllMissing = o.Kubeconfig, false
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules,
		&clientcmd.ConfigOverrides{CurrentContext: o.Context})
	config, err := loaded.ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, program.Hintf("set KUBECONFIG, or give --kubeconfig a file that works with kubectl",
			"kubeconfig not found, or without a cluster: %s", strings.Join(rules.GetLoadingPrecedence(), ", "))
	}
	if err != nil {
		return nil, err
	}
	c := &Client{}
	if c.Namespace, _, err = loaded.Namespace(); err != nil {
		return nil, err
	}
	config.Timeout = o.Timeout
	shared, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	own := *shared
	// The identity goes with every request of the client, also to another host.
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	c.http = &own
	at, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, err
	}
	c.base = strings.TrimSuffix(at.String(), "/")
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get decodes the object at a path into a pointer. The errors of an API server that answered are those of
// k8s.io/apimachinery/pkg/api/errors.
func (c *Client) Get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+path, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Accept", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }() // it was read as far as it is used
	body := io.LimitReader(resp.Body, maxAnswer)
	if resp.StatusCode != http.StatusOK {
		var s metav1.Status
		if err := json.NewDecoder(body).Decode(&s); err != nil || s.Message == "" {
			s.Message = resp.Status
		}
		s.Code = int32(resp.StatusCode) //nolint:gosec // it has three digits
		return &apierrors.StatusError{ErrStatus: s}
	}
	return json.NewDecoder(body).Decode(into)
}
