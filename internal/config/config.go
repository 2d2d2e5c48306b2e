package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/pkg/policy"
)

// What apiVersion and kind of a configuration must be.
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

// maxSize bounds the file; a configuration has a few lines.
const maxSize = 1 << 20

// ErrInvalid is returned for a configuration that cannot be used; the text says every reason.
var ErrInvalid = errors.New("config: invalid")

// A Config is a whole configuration. Default returns the one of an empty file; the zero value is
// not valid. docs/configuration.md explains each field. A field whose tag says reload:"yes" can change while the
// daemon runs.
type Config struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`

	// Listen is the endpoint that the kubelet dials, unix:// and an absolute path.
	Listen string `json:"listen"`
	// RuntimeEndpoint is the runtime's endpoint for the RuntimeService.
	RuntimeEndpoint string `json:"runtimeEndpoint"`
	// ImageEndpoint is the one for the ImageService; "" means RuntimeEndpoint. Load fills it in.
	ImageEndpoint string `json:"imageEndpoint"`
	// StateDir holds the store and the node's key.
	StateDir string `json:"stateDir"`
	// NoPullImageSecretRecheck turns enforcing off: shadow mode.
	NoPullImageSecretRecheck bool `json:"noPullImageSecretRecheck"`
	// ImagePullCredentialsVerificationPolicy and PreloadedImagesVerificationAllowlist mean what
	// they mean in a kubelet's configuration.
	ImagePullCredentialsVerificationPolicy string   `json:"imagePullCredentialsVerificationPolicy" reload:"yes"`
	PreloadedImagesVerificationAllowlist   []string `json:"preloadedImagesVerificationAllowlist" reload:"yes"`
	// KubeletConfig is the path of a kubelet's configuration file, which the two fields above are
	// taken from; "" is none. Parse fills them in.
	KubeletConfig string `json:"kubeletConfig" reload:"yes"`
	// Exempt says which pods may use every image.
	Exempt Exempt `json:"exempt" reload:"yes"`
	// UntrackedImages says what images are taken for that turn up without a pull.
	UntrackedImages string `json:"untrackedImages"`
	// AllowRestores lets pods that are not exempt have containers that are restored from a checkpoint.
	AllowRestores bool `json:"allowRestores" reload:"yes"`
	// KubeletSkipsAlwaysPrecheck says whether the kubelet is of 1.32 or newer.
	KubeletSkipsAlwaysPrecheck Tristate `json:"kubeletSkipsAlwaysPrecheck"`
	// RegistryOutageFallback lets an image on the node stand in for a pull that fails.
	RegistryOutageFallback bool `json:"registryOutageFallback"`
	// CredentialValidity is how long a proof counts; 0 is for ever.
	CredentialValidity Duration `json:"credentialValidity" reload:"yes"`
	// RegistryUnavailableGrace is how much longer a proof stands that cannot be renewed.
	RegistryUnavailableGrace Duration `json:"registryUnavailableGrace" reload:"yes"`
	// NodeCredentials are those that the node itself offers to every pod.
	NodeCredentials NodeCredentials `json:"nodeCredentials"`
	// RuntimeCredentials says whether the runtime holds credentials of its own for the pods of a namespace.
	RuntimeCredentials string `json:"runtimeCredentials"`
	// PodSource is the API server, where pull policies and pull secrets of pods are learnt.
	PodSource PodSource `json:"podSource"`
	// Metrics is the HTTP server for scrapes and probes.
	Metrics Metrics `json:"metrics"`
	// Admin is the admin API.
	Admin Admin `json:"admin"`
	// DecisionLog is the file that decisions are appended to.
	DecisionLog DecisionLog `json:"decisionLog"`

	policy policy.Policy
}

// Exempt says which pods may use every image.
type Exempt struct {
	StaticPods bool     `json:"staticPods"`
	Namespaces []string `json:"namespaces"`
}

// NodeCredentials says where the credentials are told that the node itself offers to every pod.
type NodeCredentials struct {
	// DockerConfigFiles are the files that the kubelet reads credentials from.
	DockerConfigFiles []string `json:"dockerConfigFiles"`
	// Listen is the endpoint that credential providers report to; "" means none. Parse fills it in:
	// unless it is given it is credentials.sock beside the socket of Config.Listen.
	Listen string `json:"listen"`
}

// PodSource is the API server as this node knows it.
type PodSource struct {
	// Kubeconfig is the path of a kubeconfig; "" means that there is no pod source.
	Kubeconfig string `json:"kubeconfig"`
	// NodeName is the name of the node; "" means the one of the identity in the kubeconfig.
	NodeName string `json:"nodeName"`
}

// Metrics is the HTTP server for scrapes and probes.
type Metrics struct {
	// Listen is host:port; "" means no server.
	Listen string `json:"listen"`
}

// Admin is the admin API.
type Admin struct {
	// Listen is the endpoint that pullgatectl dials; "" means none. Parse fills it in: unless it is given it is
	// admin.sock beside the socket of Config.Listen.
	Listen string `json:"listen"`
}

// DecisionLog is the file that decisions are appended to.
type DecisionLog struct {
	// Path is an absolute path; "" means no file.
	Path string `json:"path"`
}

// A Tristate is auto, true or false. The zero value is not valid.
type Tristate string

// The values of a Tristate.
const (
	Auto  Tristate = "auto"
	True  Tristate = "true"
	False Tristate = "false"
)

// UnmarshalJSON takes booleans as well as strings.
func (t *Tristate) UnmarshalJSON(data []byte) error {
	if string(data) != "null" { // which stands for the default, as elsewhere
		*t = Tristate(strings.Trim(string(data), `"`)) // Parse judges the value
	}
	return nil
}

// A Duration is a time span as Go and Kubernetes write it, "1h30m". The zero value is not valid.
type Duration string

// maxDuration is far beyond what anybody means, and far below what two of them overflow at.
const maxDuration = 10 * 365 * 24 * time.Hour

// Value returns the time span; that of a text which Parse refuses is 0.
func (d Duration) Value() time.Duration {
	v, err := time.ParseDuration(string(d))
	if err != nil || v != 0 && v < time.Second || v > maxDuration {
		return 0
	}
	return v
}

// valid reports whether a duration is one that Parse takes.
func (d Duration) valid() bool {
	v, err := time.ParseDuration(string(d))
	return err == nil && v == d.Value()
}

// Default returns the configuration of an absent or empty file.
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
		KubeletSkipsAlwaysPrecheck:             Auto,
		RegistryOutageFallback:                 true,
		CredentialValidity:                     "0s",
		RegistryUnavailableGrace:               "0s",
		NodeCredentials: NodeCredentials{
			DockerConfigFiles: []string{"/var/lib/kubelet/config.json"},
			Listen:            "unix:///run/pullgate/credentials.sock",
		},
		RuntimeCredentials: RuntimeCredentialsNone,
		Metrics:            Metrics{Listen: "127.0.0.1:9471"},
		Admin:              Admin{Listen: "unix:///run/pullgate/admin.sock"},
	}
}

// Policy returns the verification policy with its allowlist.
func (c Config) Policy() policy.Policy { return c.policy }

// Enforcement says in a few words what the configuration makes of a pod that has not proved access to an image.
func (c Config) Enforcement() string {
	switch {
	case c.NoPullImageSecretRecheck:
		return "shadow mode: recording and counting, denying nothing (policy " + string(c.policy.Mode()) + ")"
	case c.policy.Mode() == policy.ModeNeverVerify:
		return "not enforcing: policy " + string(c.policy.Mode()) + " allows every pod every image"
	default:
		return "enforcing with policy " + string(c.policy.Mode())
	}
}

// Load reads a file, and reports whether it was found: an absent one gives the defaults. A symbolic link whose target is
// absent is an error. An error wraps ErrInvalid if the content is wrong.
func Load(path string) (c Config, found bool, err error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		c, err := Parse(nil)
		return c, false, err
	}
	c, err = LoadPresent(path)
	return c, err == nil, err
}

// LoadPresent is Load for a file that must be there.
func LoadPresent(path string) (Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(data)
}

// Parse reads a configuration from its YAML, and the file that kubeletConfig names. Empty data give
// the defaults.
func Parse(data []byte) (Config, error) {
	if len(data) > maxSize {
		return Config{}, fmt.Errorf("%w: more than %d bytes", ErrInvalid, maxSize)
	}
	if err := checkOneDocument(data); err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	var given map[string]any
	if err := yaml.UnmarshalStrict(data, &given); err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	c := Default()
	c.ImageEndpoint = ""
	if len(given) > 0 {
		c.APIVersion, c.Kind = "", ""
	}
	errs := checkShape("", reflect.TypeFor[Config](), given)
	rest, err := json.Marshal(given)
	if err := errors.Join(err, json.Unmarshal(rest, &c)); err != nil {
		return Config{}, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	for _, f := range []struct {
		section, socket string
		listen          *string
	}{{"nodeCredentials", "credentials.sock", &c.NodeCredentials.Listen}, {"admin", "admin.sock", &c.Admin.Listen}} {
		section, _ := given[f.section].(map[string]any)
		if _, ok := section["listen"]; !ok {
			*f.listen = beside(c.Listen, f.socket)
		}
	}
	for _, check := range []func(*Config) []error{checkHeader, checkEndpoints, checkValues} {
		errs = append(errs, check(&c)...)
	}
	errs = append(errs, checkPolicy(&c, given)...)
	if len(errs) > 0 {
		return Config{}, fmt.Errorf("%w:\n%w", ErrInvalid, errors.Join(errs...))
	}
	if c.ImageEndpoint == "" {
		c.ImageEndpoint = c.RuntimeEndpoint
	}
	return c, nil
}

// beside returns the endpoint of another socket in the directory of one, "" if that is none.
func beside(endpoint, name string) string {
	if checkEndpoint("", endpoint) != nil {
		return ""
	}
	return endpoint[:strings.LastIndex(endpoint, "/")+1] + name
}

// wrong says what is wrong with a field and what is allowed there.
func wrong(path, got, allowed string) error {
	return fmt.Errorf("%s: %q is not allowed; allowed is %s", path, got, allowed)
}

func checkHeader(c *Config) (errs []error) {
	if c.APIVersion != APIVersion {
		errs = append(errs, wrong("apiVersion", c.APIVersion, APIVersion))
	}
	if c.Kind != Kind {
		errs = append(errs, wrong("kind", c.Kind, Kind))
	}
	return errs
}

func checkEndpoints(c *Config) (errs []error) {
	for _, f := range []struct {
		path, value string
		optional    bool // "" is no endpoint to check
	}{
		{"listen", c.Listen, false},
		{"runtimeEndpoint", c.RuntimeEndpoint, false},
		{"imageEndpoint", c.ImageEndpoint, true},
		{"nodeCredentials.listen", c.NodeCredentials.Listen, true},
		{"admin.listen", c.Admin.Listen, true},
	} {
		if f.value == "" && f.optional {
			continue
		}
		if err := checkEndpoint(f.path, f.value); err != nil {
			errs = append(errs, err)
		}
	}
	runtimes := []string{c.RuntimeEndpoint, c.ImageEndpoint}
	if c.Listen != "" && slices.Contains(runtimes, c.Listen) {
		errs = append(errs, wrong("listen", c.Listen, "another socket than the runtime's own"))
	}
	taken := append(runtimes, c.Listen)
	if l := c.NodeCredentials.Listen; l != "" && slices.Contains(taken, l) {
		errs = append(errs, wrong("nodeCredentials.listen", l, "another socket than those of listen and of the runtime"))
	}
	if l := c.Admin.Listen; l != "" && slices.Contains(append(taken, c.NodeCredentials.Listen), l) {
		errs = append(errs, wrong("admin.listen", l, "another socket than those of listen, of nodeCredentials.listen and of the runtime"))
	}
	return errs
}

func checkEndpoint(path, value string) error {
	socket, ok := strings.CutPrefix(value, "unix://")
	switch {
	case !ok || !isPath(socket):
		return wrong(path, value, "unix:// and an absolute path, as in unix:///run/containerd/containerd.sock")
	case len(socket) > 107:
		return wrong(path, value, "a path of at most 107 bytes, which is what a socket address holds")
	default:
		return nil
	}
}

func checkValues(c *Config) (errs []error) {
	if !filepath.IsAbs(c.StateDir) {
		errs = append(errs, wrong("stateDir", c.StateDir, "an absolute path"))
	}
	if c.UntrackedImages != UntrackedPreloaded && c.UntrackedImages != UntrackedVerify {
		errs = append(errs, wrong("untrackedImages", c.UntrackedImages, "Preloaded or Verify"))
	}
	if r := c.RuntimeCredentials; r != RuntimeCredentialsNone && r != RuntimeCredentialsPerNamespace {
		errs = append(errs, wrong("runtimeCredentials", r, RuntimeCredentialsNone+" or "+RuntimeCredentialsPerNamespace))
	}
	if t := c.KubeletSkipsAlwaysPrecheck; t != Auto && t != True && t != False {
		errs = append(errs, wrong("kubeletSkipsAlwaysPrecheck", string(t), "auto, true or false"))
	}
	errs = append(errs, checkDurations(c)...)
	for i, ns := range c.Exempt.Namespaces {
		if !isLabel(ns) {
			errs = append(errs, wrong(fmt.Sprintf("exempt.namespaces[%d]", i), ns, "the name of a namespace: lower-case letters, digits and '-', at most 63"))
		}
	}
	for i, path := range c.NodeCredentials.DockerConfigFiles {
		if !isPath(path) {
			errs = append(errs, wrong(fmt.Sprintf("nodeCredentials.dockerConfigFiles[%d]", i), path, "an absolute path, as in /var/lib/kubelet/config.json"))
		}
	}
	if k := c.PodSource.Kubeconfig; k != "" && !isPath(k) {
		errs = append(errs, wrong("podSource.kubeconfig", k, `an absolute path, as in /etc/kubernetes/kubelet.conf, or "" for no pod source`))
	}
	if n := c.PodSource.NodeName; n != "" && !isSubdomain(n) {
		errs = append(errs, wrong("podSource.nodeName", n, "the name of a node: lower-case letters, digits, '-' and '.', at most 253"))
	}
	if c.PodSource.NodeName != "" && c.PodSource.Kubeconfig == "" {
		errs = append(errs, wrong("podSource.nodeName", c.PodSource.NodeName, `"" without podSource.kubeconfig`))
	}
	if c.Metrics.Listen != "" && !isAddress(c.Metrics.Listen) {
		errs = append(errs, wrong("metrics.listen", c.Metrics.Listen, `host:port, as in 127.0.0.1:9471, or "" for no server`))
	}
	if p := c.DecisionLog.Path; p != "" && !isPath(p) {
		errs = append(errs, wrong("decisionLog.path", p, `an absolute path, as in /var/log/pullgate/decisions.log, or "" for no file`))
	}
	return errs
}

func checkDurations(c *Config) (errs []error) {
	const allowed = "0s, or a duration from 1s to 87600h, as in 24h or 90m"
	for _, f := range []struct {
		path  string
		value Duration
	}{{"credentialValidity", c.CredentialValidity}, {"registryUnavailableGrace", c.RegistryUnavailableGrace}} {
		if !f.value.valid() {
			errs = append(errs, wrong(f.path, string(f.value), allowed))
		}
	}
	if len(errs) == 0 && c.CredentialValidity.Value() == 0 && c.RegistryUnavailableGrace.Value() != 0 {
		errs = append(errs, wrong("registryUnavailableGrace", string(c.RegistryUnavailableGrace), "0s without credentialValidity, since no proof expires"))
	}
	return errs
}

// checkPolicy makes the policy of the fields of this file, or of those of the kubelet's.
func checkPolicy(c *Config, given map[string]any) (errs []error) {
	from := "" // what errors of the policy begin with
	if c.KubeletConfig != "" {
		for _, name := range kubeletFields() {
			if _, ok := given[name]; ok {
				errs = append(errs, fmt.Errorf("%s: not allowed beside kubeletConfig, which says where the policy is taken from; give one of the two", name))
			}
		}
		k, bad := loadKubelet(c.KubeletConfig)
		if errs = append(errs, bad...); len(errs) > 0 {
			return errs
		}
		c.ImagePullCredentialsVerificationPolicy, c.PreloadedImagesVerificationAllowlist = k.Policy, k.Allowlist
		from = inKubelet(c.KubeletConfig)
	}
	p, err := policy.New(c.ImagePullCredentialsVerificationPolicy, c.PreloadedImagesVerificationAllowlist)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			errs = append(errs, errors.New(from+strings.TrimSuffix(line, "\n")))
		}
		return errs
	}
	c.policy = p
	c.ImagePullCredentialsVerificationPolicy = string(p.Mode())
	return nil
}
