package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/pkg/policy"
)

// The required apiVersion and kind of a configuration.
const (
	APIVersion = "config.pullgate.dev/v1alpha1"
	Kind       = "PullgateConfiguration"
)

// Values of untrackedImages.
const (
	UntrackedPreloaded = "Preloaded"
	UntrackedVerify    = "Verify"
)

// Values of runtimeCredentials.
const (
	RuntimeCredentialsNone         = "none"
	RuntimeCredentialsPerNamespace = "perNamespace"
)

// Values of admission.unjudged.
const (
	UnjudgedIgnore = "Ignore"
	UnjudgedRefuse = "Refuse"
)

const maxSize = 1 << 20

// ErrInvalid is returned for an invalid configuration; the text has every reason, one on each line.
var ErrInvalid = errors.New("config: invalid")

// A Config is a whole configuration. Default returns the defaults; the zero value is not valid.
// docs/configuration.md explains each field; "" as a path or an endpoint means none. A field with the tag reload:"yes"
// can change while the daemon runs.
type Config struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	Listen          string `json:"listen"`
	RuntimeEndpoint string `json:"runtimeEndpoint"`
	// ImageEndpoint is the runtime's endpoint for the ImageService; "" means RuntimeEndpoint. Load sets it.
	ImageEndpoint            string `json:"imageEndpoint"`
	StateDir                 string `json:"stateDir"`
	NoPullImageSecretRecheck bool   `json:"noPullImageSecretRecheck"`
	// ImagePullCredentialsVerificationPolicy and PreloadedImagesVerificationAllowlist have the same meaning as in a
	// kubelet's configuration.
	ImagePullCredentialsVerificationPolicy string   `json:"imagePullCredentialsVerificationPolicy" reload:"yes"`
	PreloadedImagesVerificationAllowlist   []string `json:"preloadedImagesVerificationAllowlist" reload:"yes"`
	// KubeletConfig is the path of a kubelet's configuration file, from which the two fields above are taken; "" means
	// none. Parse sets them.
	KubeletConfig              string          `json:"kubeletConfig" reload:"yes"`
	Exempt                     Exempt          `json:"exempt" reload:"yes"`
	UntrackedImages            string          `json:"untrackedImages"`
	AllowRestores              bool            `json:"allowRestores" reload:"yes"`
	KubeletSkipsAlwaysPrecheck Tristate        `json:"kubeletSkipsAlwaysPrecheck"`
	RegistryOutageFallback     bool            `json:"registryOutageFallback"`
	CredentialValidity         Duration        `json:"credentialValidity" reload:"yes"`
	RegistryUnavailableGrace   Duration        `json:"registryUnavailableGrace" reload:"yes"`
	NodeCredentials            NodeCredentials `json:"nodeCredentials"`
	RuntimeCredentials         string          `json:"runtimeCredentials"`
	PodSource                  PodSource       `json:"podSource"`
	Metrics                    Metrics         `json:"metrics"`
	Admin                      Admin           `json:"admin"`
	DecisionLog                DecisionLog     `json:"decisionLog"`
	Admission                  Admission       `json:"admission"`

	policy policy.Policy
}

// Exempt selects pods.
type Exempt struct {
	StaticPods bool     `json:"staticPods"`
	Namespaces []string `json:"namespaces"`
}

// NodeCredentials are the credentials that the node itself offers to pods.
type NodeCredentials struct {
	DockerConfigFiles []string `json:"dockerConfigFiles"`
	// Namespaces are those whose pods may use these credentials, and what they have opened. nil is every namespace.
	Namespaces []string `json:"namespaces,omitzero" reload:"yes"`
}

// NodeFiles are the credentials of the node that pullgate-policyd uses.
type NodeFiles struct {
	DockerConfigFiles []string `json:"dockerConfigFiles"`
}

// PodSource is the connection of this node to the API server.
type PodSource struct {
	Kubeconfig    string `json:"kubeconfig"`
	NodeName      string `json:"nodeName"`
	NodeCondition bool   `json:"nodeCondition"`
	// NodeReport is whether a NodeReport is written; see Config.Reports.
	NodeReport Tristate `json:"nodeReport"`
	PodEvents  bool     `json:"podEvents"`
}

// Metrics is the HTTP server for scrapes and probes.
type Metrics struct {
	Listen string `json:"listen"`
}

// Admin is the admin API.
type Admin struct {
	// Listen is the endpoint that pullgatectl and credential providers dial; "" means none. If the file does not set it,
	// Parse sets it to admin.sock beside the socket of Config.Listen.
	Listen string `json:"listen"`
}

// DecisionLog is the file that decisions are appended to.
type DecisionLog struct {
	Path string `json:"path"`
}

// Admission are the policies that restrict pods beyond their credentials.
type Admission struct {
	Policies        string `json:"policies" reload:"yes"`
	Enforce         bool   `json:"enforce" reload:"yes"`
	Exempt          Exempt `json:"exempt" reload:"yes"`
	Unjudged        string `json:"unjudged" reload:"yes"`
	NamespaceLabels string `json:"namespaceLabels" reload:"yes"`
	KubeletRoot     string `json:"kubeletRoot" reload:"yes"`
	RecheckRestarts bool   `json:"recheckRestarts" reload:"yes"`
	// TrustedRoot is the path of the sigstore trusted root that pullgate-policyd verifies signatures by, the same as its
	// trustedRoot; "" means none. It is not decoded here: what was verified by another one does not count.
	TrustedRoot         string   `json:"trustedRoot" reload:"yes"`
	EndorsementValidity Duration `json:"endorsementValidity" reload:"yes"`
	RecheckEndorsements Duration `json:"recheckEndorsements" reload:"yes"`
	PolicydSocket       string   `json:"policydSocket"`
}

// A Tristate is "auto", "true" or "false". The zero value is not valid.
type Tristate string

// UnmarshalJSON accepts booleans and strings.
func (t *Tristate) UnmarshalJSON(data []byte) error {
	if string(data) != "null" { // null means the default
		*t = Tristate(strings.Trim(string(data), `"`)) // Parse checks the value
	}
	return nil
}

// A Duration is a time span in the form of Go and Kubernetes, "1h30m". The zero value is not valid.
type Duration string

// maxDuration is longer than any useful duration; the sum of two does not overflow.
const maxDuration = 10 * 365 * 24 * time.Hour

// Value returns the time span, or 0 for a string that Parse refuses.
func (d Duration) Value() time.Duration {
	v, err := time.ParseDuration(string(d))
	if err != nil || v != 0 && v < time.Second || v > maxDuration {
		return 0
	}
	return v
}

func (d Duration) valid() bool {
	v, err := time.ParseDuration(string(d))
	return err == nil && v == d.Value()
}

// Default returns the configuration of an absent file.
func Default() Config {
	return Config{
		APIVersion:                             APIVersion,
		Kind:                                   Kind,
		Listen:                                 "unix:///run/pullgate/cri.sock",
		RuntimeEndpoint:                        "unix:///run/containerd/containerd.sock",
		ImageEndpoint:                          "unix:///run/containerd/containerd.sock",
		StateDir:                               "/var/lib/pullgate",
		ImagePullCredentialsVerificationPolicy: string(policy.ModeNeverVerifyPreloadedImages),
		Exempt:                                 Exempt{StaticPods: true},
		UntrackedImages:                        UntrackedPreloaded,
		KubeletSkipsAlwaysPrecheck:             "auto",
		CredentialValidity:                     "0s",
		RegistryUnavailableGrace:               "0s",
		NodeCredentials:                        NodeCredentials{DockerConfigFiles: []string{"/var/lib/kubelet/config.json"}},
		RuntimeCredentials:                     RuntimeCredentialsNone,
		PodSource:                              PodSource{NodeCondition: true, NodeReport: "auto", PodEvents: true},
		Metrics:                                Metrics{Listen: "127.0.0.1:9471"},
		Admin:                                  Admin{Listen: "unix:///run/pullgate/admin.sock"},
		Admission: Admission{
			Enforce:     true,
			Exempt:      Exempt{StaticPods: true},
			Unjudged:    UnjudgedIgnore,
			KubeletRoot: "/var/lib/kubelet",

			EndorsementValidity: "0s",
			RecheckEndorsements: "0s",

			PolicydSocket: "unix:///run/pullgate/policy.sock",
		},
	}
}

// Policy returns the verification policy with its allowlist.
func (c Config) Policy() policy.Policy { return c.policy }

// YAML returns the configuration with all its fields. An empty list is shown as [], not as null.
func (c Config) YAML() ([]byte, error) {
	c.Exempt.Namespaces = append([]string{}, c.Exempt.Namespaces...)
	c.PreloadedImagesVerificationAllowlist = append([]string{}, c.PreloadedImagesVerificationAllowlist...)
	return yaml.Marshal(c)
}

// Enforces reports whether a pod that has not proved access to an image is denied it.
func (c Config) Enforces() bool {
	return !c.NoPullImageSecretRecheck && c.policy.Mode() != policy.ModeNeverVerify
}

// Reports reports whether pullgated writes the NodeReport of its node, for which it needs a pod source. "auto" means in
// shadow mode.
func (c Config) Reports() bool {
	on := c.PodSource.NodeReport
	return c.PodSource.Kubeconfig != "" && (on == "true" || on == "auto" && c.NoPullImageSecretRecheck)
}

// Enforcement describes in a few words the effect of the configuration on a pod that has not proved access to an image.
func (c Config) Enforcement() string {
	switch {
	case c.NoPullImageSecretRecheck:
		return "shadow mode: proofs are recorded and not required (policy " + string(c.policy.Mode()) + ")"
	case c.policy.Mode() == policy.ModeNeverVerify:
		return "not enforcing: policy " + string(c.policy.Mode()) + " allows every pod every image"
	default:
		return "enforcing with policy " + string(c.policy.Mode())
	}
}

// WaitsForRegistry reports whether a pod of a kubelet before 1.33 waits in an outage of the registry, proved or not.
func (c Config) WaitsForRegistry() bool {
	return !c.RegistryOutageFallback && c.PodSource.Kubeconfig == "" && c.KubeletSkipsAlwaysPrecheck != "true"
}

// Load reads a file, and reports whether it was found: for an absent file it returns the defaults, unless the file is
// required. A symbolic link whose target is absent is an error. An error wraps ErrInvalid if the content is invalid.
func Load(path string, required bool) (c Config, found bool, err error) {
	if _, err := os.Lstat(path); !required && errors.Is(err, fs.ErrNotExist) {
		c, err := Parse([]byte("apiVersion: " + APIVersion + "\nkind: " + Kind))
		return c, false, err
	}
	data, err := readFile(path)
	if err == nil {
		c, err = Parse(data)
	}
	return c, err == nil, err
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return data, nil
}

// unset is the value of an endpoint that the file does not set. Its default depends on another field.
const unset = "\x00"

// Parse reads a configuration from its YAML, and the file that kubeletConfig names.
func Parse(data []byte) (Config, error) { return parse(data, loadKubelet) }

// ParseForOthers reads a configuration of other machines from its YAML. It does not read the file that kubeletConfig
// names: the policy is the default one then.
func ParseForOthers(data []byte) (Config, error) {
	return parse(data, func(path string) (kubelet, []error) { return kubelet{}, checkKubeletPath(path) })
}

func parse(data []byte, load func(path string) (kubelet, []error)) (Config, error) {
	c := Default()
	c.ImageEndpoint, c.Admin.Listen = "", unset
	c.ImagePullCredentialsVerificationPolicy = ""
	c.NodeCredentials.Namespaces = []string{unset} // null in the file clears it
	errs, err := decode(data, &c, &c.APIVersion, &c.Kind)
	if err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if c.Admin.Listen == unset {
		c.Admin.Listen = beside(c.Listen, "admin.sock")
	}
	if c.NodeCredentials.DockerConfigFiles == nil { // null in the file
		c.NodeCredentials.DockerConfigFiles = Default().NodeCredentials.DockerConfigFiles
	}
	if slices.Equal(c.NodeCredentials.Namespaces, []string{unset}) {
		c.NodeCredentials.Namespaces = nil
	} else if c.NodeCredentials.Namespaces == nil {
		errs = append(errs, field.Invalid(field.NewPath("nodeCredentials.namespaces"), "null",
			"must be a list; leave the field out for every namespace, or write [] for none"))
	}
	errs = append(errs, checked(c.check)...)
	if c.KubeletConfig == "" {
		errs = strictyaml.WithLines(data, append(errs, checkPolicy(&c, load)...))
	} else { // its errors are about another file
		errs = append(strictyaml.WithLines(data, errs), checkPolicy(&c, load)...)
	}
	if len(errs) > 0 {
		return Config{}, fmt.Errorf("%w:\n%w", ErrInvalid, errors.Join(errs...))
	}
	if c.ImageEndpoint == "" {
		c.ImageEndpoint = c.RuntimeEndpoint
	}
	return c, nil
}

// beside returns the endpoint of another socket in the directory of a valid endpoint, otherwise "".
func beside(endpoint, name string) string {
	if len(checked(func(c *checks) { c.endpoint("", endpoint) })) > 0 {
		return ""
	}
	return endpoint[:strings.LastIndex(endpoint, "/")+1] + name
}

// NeedRestart returns the paths of the fields that differ between two configurations and cannot change while the
// daemon runs, in the order of the fields.
func NeedRestart(running, next Config) []string {
	return differing("", reflect.ValueOf(running), reflect.ValueOf(next))
}

// Reloaded returns the running configuration with those fields of the next one that can change while the daemon runs.
func Reloaded(running, next Config) Config {
	take(reflect.ValueOf(&running).Elem(), reflect.ValueOf(next))
	running.policy = next.policy
	return running
}

func take(into, from reflect.Value) {
	for f, v := range into.Fields() {
		switch {
		case f.Tag.Get("reload") != "":
			v.Set(from.FieldByIndex(f.Index))
		case f.IsExported() && f.Type.Kind() == reflect.Struct:
			take(v, from.FieldByIndex(f.Index))
		}
	}
}

func differing(prefix string, a, b reflect.Value) (paths []string) {
	for f, v := range a.Fields() {
		name := f.Tag.Get("json")
		if name == "" || f.Tag.Get("reload") != "" {
			continue
		}
		w := b.FieldByIndex(f.Index)
		if f.Type.Kind() == reflect.Struct {
			paths = append(paths, differing(prefix+name+".", v, w)...)
			continue
		}
		empty := v.Kind() == reflect.Slice && v.Len() == 0 && w.Len() == 0 // nil or not nil
		if !empty && !reflect.DeepEqual(v.Interface(), w.Interface()) {
			paths = append(paths, prefix+name)
		}
	}
	return paths
}
