package podsource

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
)

const (
	userAgent   = "pullgated"      // the user agent in audit logs
	nodeUser    = "system:node:"   // the prefix of the user names of kubelets
	dialTimeout = 10 * time.Second // bounds a connection attempt
)

// client is a client of the API server, which decodes, and links in, only the types that it requests.
type client struct {
	core rest.Interface
	http *http.Client
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// load reads a kubeconfig. The error wraps ErrKubeconfig, and fs.ErrNotExist if a file that it needs is absent.
func load(path string) (config *rest.Config, err error) {
	file, err := clientcmd.LoadFromFile(path)
	if err == nil {
		err = clientcmd.ResolveLocalPaths(file)
	}
	if err == nil {
		config, err = clientcmd.NewDefaultClientConfig(*file, &clientcmd.ConfigOverrides{}).ClientConfig()
	}
	if err == nil && file.Contexts[file.CurrentContext] != nil { // client-go has looked for the other files
		user := file.AuthInfos[file.Contexts[file.CurrentContext].AuthInfo]
		if user != nil && user.TokenFile != "" {
			_, err = os.Stat(user.TokenFile)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrKubeconfig, path, err)
	}
	return config, nil
}

func newClient(config *rest.Config, dial dialFunc) (*client, error) {
	if dial == nil {
		dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	config = rest.CopyConfig(config)
	config.UserAgent = userAgent
	// A rate limit is not needed: there is one watch, and one GET at a time for each reader.
	config.QPS = -1
	config.Dial = dial
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	scheme := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(scheme), authenticationv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	transport, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	config.GroupVersion, config.APIPath = &corev1.SchemeGroupVersion, "/api"
	core, err := rest.RESTClientForConfigAndClient(config, transport)
	if err != nil {
		return nil, err
	}
	return &client{core, transport}, nil
}

func (c *client) close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

func (c *client) secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	// At a high verbosity client-go would log the answer.
	ctx = klog.NewContext(ctx, logr.Discard())
	s := &corev1.Secret{}
	err := c.core.Get().Namespace(namespace).Resource("secrets").Name(name).Do(ctx).Into(s)
	return s, err
}

func (c *client) createEvent(ctx context.Context, e *corev1.Event) error {
	return c.core.Post().Namespace(e.Namespace).Resource("events").Body(e).MaxRetries(0).Do(ctx).Error()
}

func (c *client) serviceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	a := &corev1.ServiceAccount{}
	err := c.core.Get().Namespace(namespace).Resource("serviceaccounts").Name(name).Do(ctx).Into(a)
	return a, err
}

// nodeOfCertificate returns the node of a kubelet's client certificate; ok is false if there is none.
func nodeOfCertificate(config *rest.Config) (node string, ok bool, err error) {
	data := config.CertData
	if len(data) == 0 && config.CertFile != "" {
		if data, err = os.ReadFile(config.CertFile); err != nil {
			return "", false, fmt.Errorf("%w: %w", ErrKubeconfig, err)
		}
	}
	if len(data) == 0 {
		return "", false, nil
	}
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue // the key may be in the same file
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return "", false, fmt.Errorf("%w: client certificate: %w", ErrKubeconfig, err)
		}
		node, err := nodeOfUser(certificate.Subject.CommonName, "the client certificate's common name")
		return node, true, err
	}
	return "", false, fmt.Errorf("%w: client certificate: no certificate in it", ErrKubeconfig)
}

func nodeOfUser(user, source string) (string, error) {
	node, ok := strings.CutPrefix(user, nodeUser)
	if !ok || node == "" {
		return "", fmt.Errorf("%w: %s is %q, not %sNAME; set the node's name", ErrNodeName, source, user, nodeUser)
	}
	return node, nil
}

// nodeOfReview asks the API server for the client's own user. The error is ErrNodeName if a retry cannot help.
func (c *client) nodeOfReview(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	kind := metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "SelfSubjectReview"}
	review, answer := &authenticationv1.SelfSubjectReview{TypeMeta: kind}, &authenticationv1.SelfSubjectReview{}
	err := c.core.Post().AbsPath("/apis/authentication.k8s.io/v1/selfsubjectreviews").Body(review).Do(ctx).Into(answer)
	if apierrors.IsNotFound(err) {
		return "", fmt.Errorf("%w: the kubeconfig has no client certificate, and the API server, before 1.28, "+
			"does not report the user of a client; set the node's name", ErrNodeName)
	}
	if err != nil {
		return "", err
	}
	return nodeOfUser(answer.Status.UserInfo.Username, "the user according to the API server")
}

// A Reason is the reason of a failure. The set is fixed: see Reasons.
type Reason string

// The values of a Reason.
const (
	Kubeconfig   Reason = "kubeconfig"   // a kubeconfig, or a file that it names, is absent or cannot be read
	Unreachable  Reason = "unreachable"  // the API server cannot be reached
	Timeout      Reason = "timeout"      // the API server does not answer in time
	Unauthorized Reason = "unauthorized" // means 401: the API server does not accept the identity
	Forbidden    Reason = "forbidden"    // means 403: the identity lacks a permission
	Missing      Reason = "missing"      // a Secret that a pod names does not exist
	Malformed    Reason = "malformed"    // a pull secret cannot be parsed
	// Excessive means that the pull secrets of one pod have so many wildcards that some are ignored.
	Excessive Reason = "excessive"
	Expired   Reason = "expired"   // means 410: the watch fell behind and is restarted
	Throttled Reason = "throttled" // means 429
	Server    Reason = "server"    // means a 5xx of the API server
	Other     Reason = "other"     // means every other failure
)

// Reasons returns every value of a Reason.
func Reasons() []Reason {
	return []Reason{
		Kubeconfig, Unreachable, Timeout, Unauthorized, Forbidden, Missing, Malformed, Excessive, Expired, Throttled, Server,
		Other,
	}
}

func reasonOf(err error) Reason {
	var network net.Error
	var status apierrors.APIStatus
	switch {
	case errors.Is(err, ErrKubeconfig):
		return Kubeconfig
	case apierrors.IsUnauthorized(err):
		return Unauthorized
	case apierrors.IsForbidden(err):
		return Forbidden
	case apierrors.IsNotFound(err):
		return Missing
	case apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return Expired
	case apierrors.IsTooManyRequests(err):
		return Throttled
	case apierrors.IsTimeout(err), apierrors.IsServerTimeout(err),
		errors.Is(err, errSlow), errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.As(err, &status) && status.Status().Code >= 500:
		return Server
	case errors.As(err, &status):
		return Other
	case errors.As(err, &network) && network.Timeout():
		return Timeout
	default:
		return Unreachable // the connection ended, or no answer could be read from it
	}
}
