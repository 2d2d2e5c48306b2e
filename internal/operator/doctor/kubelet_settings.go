package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path"
	"strconv"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/mechanics/program"
)

// Defaults of every kubelet that is supported.
const (
	defaultEndpoint    = "unix:///run/containerd/containerd.sock"
	defaultRoot        = "/var/lib/kubelet"
	defaultHealthzIP   = "127.0.0.1"
	defaultHealthzPort = 10248

	byDefault = "the kubelet's default"
)

// A Setting is a value and where it is set: the path of a file, or a few words.
type Setting struct {
	Value string `json:"endpoint"`
	From  string `json:"from"`
}

// Settings are the settings of a kubelet that matter here.
type Settings struct {
	// Runtime is the endpoint that it dials for the RuntimeService, Image the one for the ImageService, which is
	// the same unless it is set separately.
	Runtime, Image Setting
	// ConfigFile and ConfigDir are the values of --config and --config-dir; "" if it has none.
	ConfigFile, ConfigDir string
	// Root is the value of --root-dir, below which it keeps the volumes of pods.
	Root Setting
	// FlagsSetEndpoint reports whether an endpoint is among its flags, which take precedence over files.
	FlagsSetEndpoint bool
	// Healthz is the URL that answers 200 if the kubelet is healthy; "" if it is disabled.
	Healthz string
}

// kubeletFile has the fields that are read of a kubelet's configuration file. Other fields are ignored, since kubelets
// of other versions have fields that are unknown here.
type kubeletFile struct {
	Runtime     *string `json:"containerRuntimeEndpoint"`
	Image       *string `json:"imageServiceEndpoint"`
	HealthzIP   *string `json:"healthzBindAddress"`
	HealthzPort *int    `json:"healthzPort"`
}

// layers collects settings, those with the lowest precedence first.
type layers struct {
	runtime, image Setting
	healthzIP      string
	healthzPort    int
}

// settings returns what a kubelet with these arguments gets, by files as they are now. before has the settings with
// lower precedence than a configuration file; without it, these are the kubelet's defaults.
func (h Host) settings(args []word, before layers) (Settings, error) {
	t := layers{runtime: Setting{defaultEndpoint, byDefault}, healthzIP: defaultHealthzIP, healthzPort: defaultHealthzPort}
	t.take(before.runtime, before.image)
	s := Settings{Root: Setting{defaultRoot, byDefault}}
	if root := last(args, "root-dir"); root.text != "" {
		s.Root = Setting{root.text, root.from}
	}
	s.ConfigFile, s.ConfigDir = last(args, "config").text, last(args, "config-dir").text
	if s.ConfigFile != "" {
		if err := h.readKubelet(s.ConfigFile, &t); err != nil {
			return Settings{}, err
		}
	}
	if s.ConfigDir != "" {
		files, err := h.files(s.ConfigDir)
		if err != nil {
			return Settings{}, fmt.Errorf("list the kubelet's --config-dir: %w", err)
		}
		for _, file := range files {
			if path.Ext(file) != ".conf" || isRanchersOwn(file) {
				continue
			}
			if err := h.readKubelet(file, &t); err != nil {
				return Settings{}, err
			}
		}
	}
	runtime, image := last(args, "container-runtime-endpoint"), last(args, "image-service-endpoint")
	s.FlagsSetEndpoint = runtime.text != "" || image.text != ""
	t.take(Setting{runtime.text, runtime.from}, Setting{image.text, image.from})
	if ip := last(args, "healthz-bind-address").text; ip != "" {
		t.healthzIP = ip
	}
	if port := last(args, "healthz-port"); port.text != "" {
		n, err := strconv.Atoi(port.text)
		if err != nil {
			return Settings{}, fmt.Errorf("%s: --healthz-port: %w", port.from, err)
		}
		t.healthzPort = n
	}
	s.Runtime, s.Image, s.Healthz = t.runtime, t.image, t.healthz()
	if s.Image.Value == "" {
		s.Image = s.Runtime
	}
	return s, nil
}

// CheckRoot returns an error with a hint if the kubelet keeps the volumes of pods elsewhere than in the
// admission.kubeletRoot of pullgated.
func (s Settings) CheckRoot(configured string) error {
	if path.Clean(s.Root.Value) == path.Clean(configured) {
		return nil
	}
	return program.Hintf("set admission.kubeletRoot: "+s.Root.Value+" in pullgated's configuration, then systemctl reload pullgated",
		"admission.kubeletRoot is %s, and the kubelet's --root-dir is %s (%s): every volume of a pod counts as a hostPath", configured, s.Root.Value, s.Root.From)
}

// take sets the endpoints that are not empty.
func (t *layers) take(runtime, image Setting) {
	if runtime.Value != "" {
		t.runtime = runtime
	}
	if image.Value != "" {
		t.image = image
	}
}

func (t *layers) healthz() string {
	if t.healthzPort <= 0 {
		return ""
	}
	ip := t.healthzIP
	if parsed := net.ParseIP(ip); parsed != nil && parsed.IsUnspecified() {
		ip = map[bool]string{true: "127.0.0.1", false: "::1"}[parsed.To4() != nil]
	}
	return "http://" + net.JoinHostPort(ip, strconv.Itoa(t.healthzPort)) + "/healthz"
}

// readKubelet adds the settings of a kubelet's configuration file, or of a part of one.
func (h Host) readKubelet(file string, t *layers) error {
	content, err := h.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the kubelet's configuration: %w", err)
	}
	var f kubeletFile
	if err == nil {
		err = yaml.Unmarshal(content, &f)
	}
	if err != nil {
		return fmt.Errorf("read the kubelet's configuration %s: %w", file, err)
	}
	for _, v := range []struct {
		to    *Setting
		value *string
		unset Setting
	}{
		{&t.runtime, f.Runtime, Setting{defaultEndpoint, byDefault}},
		{&t.image, f.Image, Setting{}},
	} {
		switch {
		case v.value == nil:
		case *v.value == "": // as if it were not set
			*v.to = v.unset
		default:
			*v.to = Setting{*v.value, file}
		}
	}
	if f.HealthzIP != nil {
		t.healthzIP = *f.HealthzIP
	}
	if f.HealthzPort != nil {
		t.healthzPort = *f.HealthzPort
	}
	return nil
}

// last returns the effective value of a flag, the last --name=value or --name value; a zero word if args do not have
// it.
func last(args []word, name string) word {
	var found word
	for _, v := range values(args, name) {
		found = v
	}
	return found
}

// values returns all values of a flag in their order. A "_" in its name is taken for "-", as the kubelet does.
func values(args []word, name string) []word {
	var found []word
	for i := 0; i < len(args) && args[i].text != "--"; i++ {
		flag, ok := strings.CutPrefix(args[i].text, "-")
		flag, value, joined := strings.Cut(strings.TrimPrefix(flag, "-"), "=")
		if !ok || strings.ReplaceAll(flag, "_", "-") != name {
			continue
		}
		switch {
		case joined:
			found = append(found, word{value, args[i].from})
		case i+1 < len(args):
			i++
			found = append(found, args[i])
		}
	}
	return found
}

// Same reports whether two endpoints are one socket: written with unix:// or without, below /run or /var/run.
func Same(a, b string) bool { return Socket(a) != "" && Socket(a) == Socket(b) }

// Socket returns the path of an endpoint's socket, "" if it is not a Unix socket.
func Socket(endpoint string) string {
	socket, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok && strings.Contains(endpoint, "://") || !path.IsAbs(socket) {
		return ""
	}
	socket = path.Clean(socket)
	if rest, ok := strings.CutPrefix(socket, "/var/run/"); ok {
		socket = "/run/" + rest
	}
	return socket
}
