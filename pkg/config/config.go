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
	"strings"

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

// maxSize bounds the file; a configuration has a few lines.
const maxSize = 1 << 20

// ErrInvalid is returned for a configuration that cannot be used; the text says every reason.
var ErrInvalid = errors.New("config: invalid")

// A Config is a whole configuration. Default returns the one of an empty file; the zero value is
// not valid. docs/configuration.md explains each field.
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
	ImagePullCredentialsVerificationPolicy string   `json:"imagePullCredentialsVerificationPolicy"`
	PreloadedImagesVerificationAllowlist   []string `json:"preloadedImagesVerificationAllowlist"`
	// Exempt says which pods may use every image.
	Exempt Exempt `json:"exempt"`
	// UntrackedImages says what images are taken for that turn up without a pull.
	UntrackedImages string `json:"untrackedImages"`
	// KubeletSkipsAlwaysPrecheck says whether the kubelet is of 1.32 or newer.
	KubeletSkipsAlwaysPrecheck Tristate `json:"kubeletSkipsAlwaysPrecheck"`
	// RegistryOutageFallback lets an image on the node stand in for a pull that fails.
	RegistryOutageFallback bool `json:"registryOutageFallback"`
	// PodSource is the API server, where pull policies and pull secrets of pods are learnt.
	PodSource PodSource `json:"podSource"`
	// Metrics is the HTTP server for scrapes and probes.
	Metrics Metrics `json:"metrics"`

	policy policy.Policy
}

// Exempt says which pods may use every image.
type Exempt struct {
	StaticPods bool     `json:"staticPods"`
	Namespaces []string `json:"namespaces"`
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
		Metrics:                                Metrics{Listen: "127.0.0.1:9471"},
	}
}

// Policy returns the verification policy with its allowlist.
func (c Config) Policy() policy.Policy { return c.policy }

// Load reads a file. An absent one gives the defaults. An error wraps ErrInvalid if the content is
// wrong.
func Load(path string) (Config, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Parse(nil)
	}
	if err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSize+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return Config{}, fmt.Errorf("read configuration: %w", err)
	}
	return Parse(data)
}

// Parse reads a configuration from its YAML. Empty data give the defaults.
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
	for _, check := range []func(*Config) []error{checkHeader, checkEndpoints, checkValues, checkPolicy} {
		errs = append(errs, check(&c)...)
	}
	if len(errs) > 0 {
		return Config{}, fmt.Errorf("%w:\n%w", ErrInvalid, errors.Join(errs...))
	}
	if c.ImageEndpoint == "" {
		c.ImageEndpoint = c.RuntimeEndpoint
	}
	return c, nil
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
	for _, f := range []struct{ path, value string }{
		{"listen", c.Listen}, {"runtimeEndpoint", c.RuntimeEndpoint}, {"imageEndpoint", c.ImageEndpoint},
	} {
		if f.path == "imageEndpoint" && f.value == "" {
			continue // runtimeEndpoint, which is checked
		}
		socket, ok := strings.CutPrefix(f.value, "unix://")
		if !ok || !filepath.IsAbs(socket) || filepath.Clean(socket) != socket || socket == "/" {
			errs = append(errs, wrong(f.path, f.value, "unix:// and an absolute path, as in unix:///run/containerd/containerd.sock"))
		} else if len(socket) > 107 {
			errs = append(errs, wrong(f.path, f.value, "a path of at most 107 bytes, which is what a socket address holds"))
		}
	}
	if c.Listen != "" && (c.Listen == c.RuntimeEndpoint || c.Listen == c.ImageEndpoint) {
		errs = append(errs, wrong("listen", c.Listen, "another socket than the runtime's own"))
	}
	return errs
}

func checkValues(c *Config) (errs []error) {
	if !filepath.IsAbs(c.StateDir) {
		errs = append(errs, wrong("stateDir", c.StateDir, "an absolute path"))
	}
	if c.UntrackedImages != UntrackedPreloaded && c.UntrackedImages != UntrackedVerify {
		errs = append(errs, wrong("untrackedImages", c.UntrackedImages, "Preloaded or Verify"))
	}
	if t := c.KubeletSkipsAlwaysPrecheck; t != Auto && t != True && t != False {
		errs = append(errs, wrong("kubeletSkipsAlwaysPrecheck", string(t), "auto, true or false"))
	}
	for i, ns := range c.Exempt.Namespaces {
		if !isLabel(ns) {
			errs = append(errs, wrong(fmt.Sprintf("exempt.namespaces[%d]", i), ns, "the name of a namespace: lower-case letters, digits and '-', at most 63"))
		}
	}
	if k := c.PodSource.Kubeconfig; k != "" && (!filepath.IsAbs(k) || filepath.Clean(k) != k) {
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
	return errs
}

func checkPolicy(c *Config) []error {
	p, err := policy.New(c.ImagePullCredentialsVerificationPolicy, c.PreloadedImagesVerificationAllowlist)
	if err != nil {
		return []error{err}
	}
	c.policy = p
	c.ImagePullCredentialsVerificationPolicy = string(p.Mode())
	return nil
}
