package config

import (
	"errors"
	"fmt"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/strictyaml"
)

// PolicydKind is the required kind of a configuration of pullgate-policyd. Its apiVersion is APIVersion.
const PolicydKind = "PolicydConfiguration"

// A Policyd is a whole configuration of pullgate-policyd. DefaultPolicyd returns the configuration of an empty file; the zero value is
// not valid. All fields need a restart.
type Policyd struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Policies is the path of the folder of policy files, the same as admission.policies of pullgated; "" means that there are none.
	Policies string `json:"policies"`
	// Node is the server for pullgated.
	Node PolicydNode `json:"node"`
	// Metrics is the HTTP server for scrapes and probes.
	Metrics Metrics `json:"metrics"`
	// HTTPS is the server for kube-apiserver: webhook and image review backend.
	HTTPS HTTPS `json:"https"`
	// PodTemplates are the custom resources that contain pod templates.
	PodTemplates []PodTemplate `json:"podTemplates"`
	// Kubeconfig is the path of a kubeconfig for the watch of namespaces; "" means the configuration inside a cluster, then KUBECONFIG.
	Kubeconfig string `json:"kubeconfig"`
}

// PolicydNode is the server for pullgated.
type PolicydNode struct {
	// Listen is the endpoint that pullgated dials, unix:// and an absolute path; "" means the socket that systemd passes on, if any.
	Listen string `json:"listen"`
}

// HTTPS is a server with TLS.
type HTTPS struct {
	// Listen is host:port; "" means no server.
	Listen string `json:"listen"`
	// CertFile and KeyFile are the paths of the certificate, with its intermediates, and of its key, both in PEM.
	CertFile string `json:"certFile"`
	KeyFile  string `json:"keyFile"`
	// ClientCAFile is the path of the CA certificates, in PEM, that must have signed the certificates of clients; "" means that clients
	// need none.
	ClientCAFile string `json:"clientCAFile"`
}

// A PodTemplate is where a custom resource has a pod template.
type PodTemplate struct {
	// Group and Resource name the custom resource: batch.example.org and trainings.
	Group    string `json:"group"`
	Resource string `json:"resource"`
	// Path has the names of the fields that lead to the template, separated by dots: spec.worker.template.
	Path string `json:"path"`
}

// DefaultPolicyd returns the configuration of an empty file.
func DefaultPolicyd() Policyd {
	return Policyd{APIVersion: APIVersion, Kind: PolicydKind, Metrics: Metrics{Listen: "127.0.0.1:9472"}}
}

// LoadPolicyd reads a file, which must exist. An error wraps ErrInvalid if the content is invalid.
func LoadPolicyd(path string) (Policyd, error) {
	data, err := readFile(path)
	if err != nil {
		return Policyd{}, err
	}
	return ParsePolicyd(data)
}

// ParsePolicyd reads a configuration of pullgate-policyd from its YAML. For empty data it returns the defaults.
func ParsePolicyd(data []byte) (Policyd, error) {
	c := DefaultPolicyd()
	errs, err := decode(data, &c, &c.APIVersion, &c.Kind)
	if err != nil {
		return Policyd{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for _, check := range []func(*Policyd) field.ErrorList{checkPolicydValues, checkHTTPS, checkPodTemplates} {
		for _, err := range check(&c) {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return Policyd{}, fmt.Errorf("%w:\n%w", ErrInvalid, errors.Join(strictyaml.WithLines(data, errs)...))
	}
	return c, nil
}

func checkPolicydValues(c *Policyd) field.ErrorList {
	errs := checkHeader(c.APIVersion, c.Kind, PolicydKind)
	if c.Policies != "" && !isPath(c.Policies) {
		errs = append(errs, invalid("policies", c.Policies, `must be an absolute path, as in /etc/pullgate/policies, or "" for no policies`))
	}
	if l := c.Node.Listen; l != "" {
		if err := checkEndpoint("node.listen", l); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, checkAddress("metrics.listen", c.Metrics.Listen, "127.0.0.1:9472")...)
	if k := c.Kubeconfig; k != "" && !isPath(k) {
		errs = append(errs, invalid("kubeconfig", k, `must be an absolute path, as in /etc/pullgate/policyd.kubeconfig, or "" for the configuration inside a cluster`))
	}
	return errs
}

func checkHTTPS(c *Policyd) field.ErrorList {
	h := c.HTTPS
	errs := checkAddress("https.listen", h.Listen, "0.0.0.0:9443")
	if h.Listen != "" && h.Listen == c.Metrics.Listen {
		errs = append(errs, invalid("https.listen", h.Listen, "must be another address than that of metrics.listen"))
	}
	for _, f := range []struct {
		path, value, example string
		required             bool
	}{
		{"https.certFile", h.CertFile, "/etc/pullgate/tls/tls.crt", true},
		{"https.keyFile", h.KeyFile, "/etc/pullgate/tls/tls.key", true},
		{"https.clientCAFile", h.ClientCAFile, "/etc/pullgate/tls/ca.crt", false},
	} {
		switch {
		case h.Listen == "" && f.value != "":
			errs = append(errs, invalid(f.path, f.value, `must be "" without https.listen`))
		case h.Listen == "" || f.value == "" && !f.required || isPath(f.value):
		default:
			errs = append(errs, invalid(f.path, f.value, "must be an absolute path, as in "+f.example))
		}
	}
	return errs
}

// fieldName is a name of a field in a custom resource.
var fieldName = regexp.MustCompile(`^[A-Za-z_$][A-Za-z0-9_$-]*(\.[A-Za-z_$][A-Za-z0-9_$-]*)*$`)

func checkPodTemplates(c *Policyd) (errs field.ErrorList) {
	for i, t := range c.PodTemplates {
		at := fmt.Sprintf("podTemplates[%d]", i)
		for _, detail := range validation.IsDNS1123Subdomain(t.Group) {
			errs = append(errs, invalid(at+".group", t.Group, detail))
		}
		for _, detail := range validation.IsDNS1123Label(t.Resource) {
			errs = append(errs, invalid(at+".resource", t.Resource, detail))
		}
		if !fieldName.MatchString(t.Path) {
			errs = append(errs, invalid(at+".path", t.Path, "must be names of fields, separated by dots, as in spec.worker.template"))
		}
		if slices.Contains(c.PodTemplates[:i], t) {
			errs = append(errs, field.Duplicate(field.NewPath(at), t.Group+"/"+t.Resource+" "+t.Path))
		}
	}
	return errs
}
