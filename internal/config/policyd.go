package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// PolicydKind is the required kind of a configuration of pullgate-policyd. Its apiVersion is APIVersion.
const PolicydKind = "PolicydConfiguration"

// A Policyd is a whole configuration of pullgate-policyd. DefaultPolicyd returns the defaults; the zero value is
// not valid. docs/pullgate-policyd.md explains each field. All fields need a restart.
type Policyd struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Policies     string        `json:"policies"`
	Node         PolicydNode   `json:"node"`
	Metrics      Metrics       `json:"metrics"`
	HTTPS        HTTPS         `json:"https"`
	PodTemplates []PodTemplate `json:"podTemplates"`
	Kubeconfig   string        `json:"kubeconfig"`
	// Kubeconfigs are further clusters, by name. Their API servers use paths of their own.
	Kubeconfigs map[string]string `json:"kubeconfigs"`
	// TrustedRoot is the path of a trusted_root.json, the same as admission.trustedRoot of pullgated; "" means that there
	// is none.
	TrustedRoot     string          `json:"trustedRoot"`
	Registries      Registries      `json:"registries"`
	Credentials     string          `json:"credentials"`
	NodeCredentials NodeFiles       `json:"nodeCredentials"`
	Bundles         string          `json:"bundles"`
	Limits          SignatureLimits `json:"limits"`
}

// Values of Policyd.Credentials.
const (
	// CredentialsPull uses the credential of the pull, which pullgated passes. The webhook has none.
	CredentialsPull = "Pull"
	// CredentialsNode uses docker configuration files.
	CredentialsNode = "Node"
	// CredentialsNone uses none.
	CredentialsNone = "None"
)

// Registries says how registries are reached.
type Registries struct {
	HostsDir string `json:"hostsDir"`
}

// SignatureLimits bound the verification of the signatures of one image.
type SignatureLimits struct {
	Signatures int64    `json:"signatures"`
	Bytes      Size     `json:"bytes"`
	Time       Duration `json:"time"`
}

// A Size is a number of bytes in the form of Kubernetes, "8Mi". The zero value is not valid.
type Size string

// UnmarshalJSON accepts numbers and strings.
func (s *Size) UnmarshalJSON(data []byte) error {
	*s = Size(strings.Trim(string(data), `"`)) // ParsePolicyd checks the value
	return nil
}

// Value returns the number of bytes, or 0 for a string that is not a size: a whole number, alone or with Ki or Mi after
// it.
func (s Size) Value() int64 {
	digits, factor := string(s), int64(1)
	switch {
	case strings.HasSuffix(digits, "Ki"):
		digits, factor = digits[:len(digits)-2], 1<<10
	case strings.HasSuffix(digits, "Mi"):
		digits, factor = digits[:len(digits)-2], 1<<20
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil {
		return 0
	}
	return int64(n) * factor
}

// The largest limits. pullgated accepts no answer with more signatures, and waits no longer.
const (
	maxSignatures     = 200
	minSignatureBytes = 64 << 10
	maxSignatureBytes = 64 << 20
	maxVerifyTime     = time.Minute
)

// PolicydNode is the server for pullgated.
type PolicydNode struct {
	Listen string `json:"listen"`
}

// HTTPS is a server with TLS.
type HTTPS struct {
	Listen       string `json:"listen"`
	CertFile     string `json:"certFile"`
	KeyFile      string `json:"keyFile"`
	ClientCAFile string `json:"clientCAFile"`
	// ClientCAFiles are the CAs of the clients of Policyd.Kubeconfigs, by the names of these.
	ClientCAFiles map[string]string `json:"clientCAFiles"`
}

// A PodTemplate says where the objects of a resource have a pod template. Several can be about one resource, and all
// versions of it are judged. A list on the path, or at its end, stands for all of its elements.
type PodTemplate struct {
	Group    string `json:"group"`
	Resource string `json:"resource"`
	Path     string `json:"path"`
}

// BuiltInPodTemplates returns where the resources of Kubernetes have pod templates. Their versions have them in the
// same place.
func BuiltInPodTemplates() []PodTemplate {
	return []PodTemplate{
		{"", "podtemplates", "template"},
		{"", "replicationcontrollers", "spec.template"},
		{"apps", "daemonsets", "spec.template"},
		{"apps", "deployments", "spec.template"},
		{"apps", "replicasets", "spec.template"},
		{"apps", "statefulsets", "spec.template"},
		{"batch", "cronjobs", "spec.jobTemplate.spec.template"},
		{"batch", "jobs", "spec.template"},
	}
}

// DefaultPolicyd returns the configuration of a file that has only apiVersion and kind.
func DefaultPolicyd() Policyd {
	return Policyd{
		APIVersion: APIVersion, Kind: PolicydKind, Metrics: Metrics{Listen: "127.0.0.1:9472"},
		Credentials:     CredentialsPull,
		NodeCredentials: NodeFiles{DockerConfigFiles: []string{"/etc/pullgate/docker-config.json"}},
		Limits:          SignatureLimits{Signatures: 50, Bytes: "8Mi", Time: "60s"},
	}
}

// LoadPolicyd reads a file, which must exist. An error wraps ErrInvalid if the content is invalid.
func LoadPolicyd(path string) (Policyd, error) {
	data, err := readFile(path)
	if err != nil {
		return Policyd{}, err
	}
	return ParsePolicyd(data)
}

// ParsePolicyd reads a configuration of pullgate-policyd from its YAML.
func ParsePolicyd(data []byte) (Policyd, error) {
	c := DefaultPolicyd()
	errs, err := decode(data, &c, &c.APIVersion, &c.Kind)
	if err != nil {
		return Policyd{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	errs = append(errs, checked(c.check)...)
	if len(errs) > 0 {
		return Policyd{}, fmt.Errorf("%w:\n%w", ErrInvalid, errors.Join(strictyaml.WithLines(data, errs)...))
	}
	return c, nil
}

func (c *Policyd) check(found *checks) {
	found.header(c.APIVersion, c.Kind, APIVersion, PolicydKind)
	found.path("policies", c.Policies, "/etc/pullgate/policies", "no policies")
	found.optionalEndpoint("node.listen", c.Node.Listen)
	found.address("metrics.listen", c.Metrics.Listen, "127.0.0.1:9472")
	found.path("kubeconfig", c.Kubeconfig, "/etc/pullgate/policyd.kubeconfig", "the configuration inside a cluster")
	found.podTemplates(c.PodTemplates)
	c.HTTPS.check(found, c.Metrics)
	c.checkClusters(found)
	c.checkSignatures(found)
}

func (h HTTPS) check(found *checks, m Metrics) {
	found.address("https.listen", h.Listen, "0.0.0.0:9443")
	if h.Listen != "" && h.Listen == m.Listen {
		found.invalid("https.listen", h.Listen, "must be another address than that of metrics.listen")
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
			found.invalid(f.path, f.value, `must be "" without https.listen`)
		case h.Listen != "" && (f.value != "" || f.required):
			found.path(f.path, f.value, f.example, "")
		}
	}
}

const maxClusters = 50 // each has a watch, and metrics

// checkClusters wants a CA for each cluster or for none: the API server of one must not ask in the name of another.
func (c *Policyd) checkClusters(found *checks) {
	if n := len(c.Kubeconfigs); n > maxClusters {
		*found = append(*found, field.TooMany(field.NewPath("kubeconfigs"), n, maxClusters))
	} else if n > 0 && c.HTTPS.Listen == "" {
		found.invalid("https.listen", "", "must be set with kubeconfigs")
	}
	files := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(c.Kubeconfigs)) {
		at, file := fmt.Sprintf("kubeconfigs[%s]", name), c.Kubeconfigs[name]
		found.all(at, name, validation.IsDNS1123Label(name))
		found.path(at, file, "/etc/pullgate/clusters/a.kubeconfig", "")
		if other, ok := files[file]; ok {
			found.invalid(at, file, "is also the file of "+other)
		}
		files[file] = name
		if c.HTTPS.ClientCAFile != "" && c.HTTPS.ClientCAFiles[name] == "" {
			*found = append(*found, field.Required(field.NewPath("https.clientCAFiles["+name+"]"),
				"API servers of other clusters could ask in its name, because https.clientCAFile is set"))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.HTTPS.ClientCAFiles)) {
		at, file := fmt.Sprintf("https.clientCAFiles[%s]", name), c.HTTPS.ClientCAFiles[name]
		found.path(at, file, "/etc/pullgate/clusters/a.ca.crt", "")
		if _, ok := c.Kubeconfigs[name]; !ok {
			found.invalid(at, file, "must be about a cluster of kubeconfigs")
		}
		if c.HTTPS.ClientCAFile == "" {
			found.invalid(at, file, "needs https.clientCAFile, which is for the paths without a cluster")
		}
	}
}

var fieldPath = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*$`)

// maxSegments bounds the path of a PodTemplate, because the webhook reads an object once for each segment.
const maxSegments = 16

// CheckPodTemplates returns what is wrong with the field podTemplates.
func CheckPodTemplates(list []PodTemplate) field.ErrorList {
	var found checks
	found.podTemplates(list)
	return field.ErrorList(found)
}

func (c *checks) podTemplates(list []PodTemplate) {
	for i, t := range list {
		at := fmt.Sprintf("podTemplates[%d]", i)
		c.all(at+".group", t.Group, validation.IsDNS1123Subdomain(t.Group))
		c.all(at+".resource", t.Resource, validation.IsDNS1123Label(t.Resource))
		same := func(b PodTemplate) bool { return b.Group == t.Group && b.Resource == t.Resource }
		if slices.ContainsFunc(BuiltInPodTemplates(), same) {
			c.invalid(at+".resource", t.Resource,
				"the pod templates of this resource are always judged; remove the entry")
		}
		if !fieldPath.MatchString(t.Path) {
			c.invalid(at+".path", t.Path, "must be names of fields, separated by dots, as in spec.worker.template")
		}
		if strings.Count(t.Path, ".") >= maxSegments {
			c.invalid(at+".path", t.Path, fmt.Sprintf("must have at most %d segments", maxSegments))
		}
		if slices.Contains(list[:i], t) {
			*c = append(*c, field.Duplicate(field.NewPath(at), t.Group+"/"+t.Resource+" "+t.Path))
		}
	}
}

func (c *Policyd) checkSignatures(found *checks) {
	found.oneOf("credentials", c.Credentials, CredentialsPull, CredentialsNode, CredentialsNone)
	found.dockerConfigFiles(c.NodeCredentials.DockerConfigFiles)
	found.path("trustedRoot", c.TrustedRoot, "/etc/pullgate/trusted_root.json", "none")
	found.path("registries.hostsDir", c.Registries.HostsDir, "/etc/containerd/certs.d", "none")
	found.path("bundles", c.Bundles, "/etc/pullgate/bundles", "none")
	if n := c.Limits.Signatures; n < 1 || n > maxSignatures {
		*found = append(*found, field.Invalid(field.NewPath("limits.signatures"), n,
			fmt.Sprintf("must be a number from 1 to %d", maxSignatures)))
	}
	if n := c.Limits.Bytes.Value(); n < minSignatureBytes || n > maxSignatureBytes {
		found.invalid("limits.bytes", string(c.Limits.Bytes), "must be a size from 64Ki to 64Mi, as in 8Mi")
	}
	if v := c.Limits.Time.Value(); v == 0 || v > maxVerifyTime {
		found.invalid("limits.time", string(c.Limits.Time),
			"must be a duration from 1s to 60s; pullgated waits 75s for an answer")
	}
}
