package doctor

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/operator/apiserver"
	"github.com/pullgate/pullgate/internal/policies/policyfiles"
)

const (
	// webhookPatience is how long one request may take.
	webhookPatience = 3 * time.Second
	// maxEndpoints is how many endpoints of a service are tried.
	maxEndpoints = 3
)

// errUntested means that a webhook could not be tested from here, and that an API server may reach it.
var errUntested = errors.New("cannot be tested from here")

// clusters checks that the API servers answer from which the webhook has the labels of namespaces.
func (n Node) clusters(ctx context.Context) (all []Finding) {
	c, _ := config.LoadPolicyd(n.Path(policydConfig)) // the check of policies reports an error
	for _, name := range slices.Sorted(maps.Keys(c.Kubeconfigs)) {
		if n.NoNetwork {
			return unknown("run it without --no-network", "the API servers of kubeconfigs are not tested without a network")
		}
		file := c.Kubeconfigs[name]
		api, err := apiServerOf(n.Path(file))
		if err == nil {
			err = api.Get(ctx, "/api/v1/namespaces?limit=1", new(corev1.NamespaceList))
			api.Close()
		}
		if err != nil {
			all = append(all, failed(err, "check "+file+": its API server must answer, and its identity may list namespaces",
				"cluster %s: the labels of its namespaces are not known: %v", name, err)...)
			continue
		}
		all = append(all, ok("cluster %s: its API server lists namespaces", name)...)
	}
	return all
}

func (n Node) webhook(ctx context.Context) (all []Finding) {
	set, _ := policyfiles.Read(n.policyPaths()) // an error has its finding
	initialises := policyfiles.Initialises(set)
	switch {
	case n.Kubeconfig == "" && initialises:
		return ok("the policies complete new pods, which the webhook alone does; --kubeconfig checks it")
	case n.Kubeconfig == "":
		return nil
	case n.NoNetwork:
		return unknown("run it without --no-network", "registered webhooks are not tested without a network")
	}
	const remediation = "check --kubeconfig: its API server must answer, and its identity may list "
	api, err := apiServerOf(n.Kubeconfig)
	if err != nil {
		return unknown(remediation+"webhook configurations", "registered webhooks are not known: %v", err)
	}
	defer api.Close()
	mutates := false
	for _, resource := range []string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations"} {
		// What is read has the same names in both kinds.
		var list admissionregistrationv1.ValidatingWebhookConfigurationList
		if err := api.Get(ctx, "/apis/admissionregistration.k8s.io/v1/"+resource, &list); err != nil {
			return append(all, unknown(remediation+resource, "registered webhooks are not known: list %s: %v", resource, err)...)
		}
		for _, c := range list.Items {
			for _, w := range c.Webhooks {
				if path := pathOf(w.ClientConfig); ours.MatchString(path) {
					mutates = mutates || strings.HasSuffix(path, "/admission/mutate")
					all = append(all, n.webhookFinding(ctx, api, c.Name, w)...)
				}
			}
		}
	}
	if initialises && !mutates {
		all = append(all, fail("apply the MutatingWebhookConfiguration that pullgate-policyd manifests --policies prints",
			"no webhook of pullgate for /admission/mutate is registered: new pods are created without PodDefaults and "+
				"initialisers in %s", n.Config.Admission.Policies)...)
	}
	if len(all) == 0 {
		all = append(all, ok("no webhook of pullgate is registered, so nothing is judged in admission; the node enforces")...)
	}
	return all
}

var ours = regexp.MustCompile(`^(/clusters/[^/]+)?/admission/(validate|mutate)$`)

func (n Node) webhookFinding(
	ctx context.Context, api apiServer, configuration string, w admissionregistrationv1.ValidatingWebhook,
) []Finding {
	target, note, err := n.probe(ctx, api, w.ClientConfig)
	name := fmt.Sprintf("%s of %s, %s", w.Name, configuration, target)
	switch {
	case err == nil:
		return ok("%s: reached%s", name, note)
	case errors.Is(err, errUntested):
		return unknown("run it where services are reachable, with an identity that may get services and list endpointslices",
			"%s: %v", name, err)
	}
	consequence := "no pod is created or changed (failurePolicy Fail)"
	if ptr.Deref(w.FailurePolicy, "") == admissionregistrationv1.Ignore {
		consequence = "pods are admitted without it, and the node enforces"
	}
	return fail("kubectl get pods of the service, and compare caBundle with the certificate; or delete the webhook",
		"%s: not reachable: %v: %s", name, err, consequence)
}

func pathOf(c admissionregistrationv1.WebhookClientConfig) string {
	if c.Service != nil {
		return ptr.Deref(c.Service.Path, "")
	}
	u, err := url.Parse(ptr.Deref(c.URL, ""))
	if err != nil {
		return ""
	}
	return u.Path
}

type endpoint struct {
	addresses  []string // of the connection; the first that can be reached is used
	serverName string   // of the certificate
	elsewhere  bool     // says that an API server may reach an address although this machine does not
}

func (n Node) probe(
	ctx context.Context, api apiServer, c admissionregistrationv1.WebhookClientConfig,
) (target, note string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*webhookPatience)
	defer cancel()
	var at endpoint
	if c.Service != nil {
		target = fmt.Sprintf("service %s/%s", c.Service.Namespace, c.Service.Name)
		at, err = api.resolve(ctx, c.Service)
	} else {
		target = ptr.Deref(c.URL, "")
		at, err = endpointOf(target)
	}
	if err != nil {
		return target, "", err
	}
	conn, err := n.dialFirst(ctx, at)
	if err != nil {
		return target, "", err
	}
	if at.elsewhere {
		target += " at " + conn.RemoteAddr().String()
	}
	note, err = greet(ctx, conn, at.serverName, pathOf(c), c.CABundle)
	return target, note, err
}

func (n Node) dialFirst(ctx context.Context, at endpoint) (net.Conn, error) {
	var errs []error
	for _, address := range at.addresses {
		limited, cancel := context.WithTimeout(ctx, webhookPatience)
		conn, err := n.Dial(limited, "tcp", address)
		cancel()
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	if at.elsewhere {
		return nil, fmt.Errorf("%w: %w", errUntested, errors.Join(errs...))
	}
	return nil, errors.Join(errs...)
}

func endpointOf(address string) (endpoint, error) {
	u, err := url.Parse(address)
	if err != nil || u.Scheme != "https" || u.Hostname() == "" {
		return endpoint{}, errors.New("the URL is not that of an https server")
	}
	return endpoint{
		addresses:  []string{net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443"))},
		serverName: u.Hostname(),
	}, nil
}

// greet checks a certificate, makes a GET, which pullgate refuses, and closes the connection.
func greet(
	ctx context.Context, conn net.Conn, serverName, path string, caBundle []byte,
) (note string, err error) {
	ctx, cancel := context.WithTimeout(ctx, webhookPatience)
	defer cancel()
	defer func() { _ = conn.Close() }() // the answer was read
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return "", err
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if len(caBundle) > 0 {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(caBundle) {
			return "", errors.New("caBundle has no certificate")
		}
	}
	encrypted := tls.Client(conn, settings)
	if err := encrypted.HandshakeContext(ctx); err != nil {
		return "", err
	}
	dial := func(context.Context, string, string) (net.Conn, error) { return encrypted, nil }
	transport := &http.Transport{DialTLSContext: dial, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+serverName+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := transport.RoundTrip(req)
	switch {
	case err != nil && strings.Contains(err.Error(), "tls: certificate required"):
		return "; it wants a client certificate, so no request was sent", nil
	case err != nil:
		return "", err
	case resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != http.MethodPost:
		err = fmt.Errorf("it answers %d to GET %s, as the webhook of pullgate does not", resp.StatusCode, path)
	}
	return "", errors.Join(err, resp.Body.Close())
}

// An apiServer finds what is behind a service.
type apiServer struct{ *apiserver.Client }

func apiServerOf(kubeconfig string) (apiServer, error) {
	c, err := apiserver.New(apiserver.Options{Kubeconfig: kubeconfig, Timeout: webhookPatience})
	return apiServer{c}, err
}

// resolve returns the addresses of a service: those of its endpoints, and the cluster IP, which an API server uses
// unless it has aggregator routing. An endpoint shows more: whether a pod answers.
func (a apiServer) resolve(ctx context.Context, of *admissionregistrationv1.ServiceReference) (endpoint, error) {
	name, namespace, port := of.Name, of.Namespace, ptr.Deref(of.Port, 443)
	at := endpoint{serverName: name + "." + namespace + ".svc", elsewhere: true}
	var s corev1.Service
	err := a.Get(ctx, fmt.Sprintf("/api/v1/namespaces/%s/services/%s", url.PathEscape(namespace), url.PathEscape(name)),
		&s)
	if apierrors.IsNotFound(err) {
		return endpoint{}, errors.New("the service does not exist")
	}
	if err != nil {
		return endpoint{}, fmt.Errorf("%w: the address of the service is not known: %w", errUntested, err)
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		at.addresses = []string{net.JoinHostPort(s.Spec.ExternalName, strconv.Itoa(int(port)))}
		return at, nil
	}
	ready, err := a.ready(ctx, namespace, name, portName(s.Spec.Ports, port))
	if err == nil && len(ready) == 0 {
		return endpoint{}, errors.New("the service has no ready endpoint")
	}
	// Without the permission to list endpoints, the cluster IP is tried alone.
	at.addresses = ready[:min(len(ready), maxEndpoints)]
	if ip := s.Spec.ClusterIP; ip != "" && ip != corev1.ClusterIPNone {
		at.addresses = append(at.addresses, net.JoinHostPort(ip, strconv.Itoa(int(port))))
	}
	if len(at.addresses) == 0 {
		return endpoint{}, fmt.Errorf("%w: the service has no cluster IP: %w", errUntested, err)
	}
	return at, nil
}

func portName(ports []corev1.ServicePort, port int32) string {
	for _, p := range ports {
		if p.Port == port {
			return p.Name
		}
	}
	return ""
}

func (a apiServer) ready(ctx context.Context, namespace, name, portName string) (addresses []string, err error) {
	var slices discoveryv1.EndpointSliceList
	selector := url.QueryEscape("kubernetes.io/service-name=" + name)
	if err := a.Get(ctx, fmt.Sprintf("/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices?labelSelector=%s",
		url.PathEscape(namespace), selector), &slices); err != nil {
		return nil, err
	}
	for _, s := range slices.Items {
		for _, p := range s.Ports {
			for _, e := range s.Endpoints {
				// Absent means that it is not known, and is used.
				if ptr.Deref(p.Name, "") == portName && len(e.Addresses) > 0 && ptr.Deref(e.Conditions.Ready, true) {
					addresses = append(addresses, net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(ptr.Deref(p.Port, 0)))))
				}
			}
		}
	}
	return addresses, nil
}
