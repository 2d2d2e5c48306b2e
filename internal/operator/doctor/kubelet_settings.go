package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"

	"k8s.io/utils/ptr"
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
	// Runtime is the endpoint for the RuntimeService, Image that for the ImageService, by default the same.
	Runtime, Image        Setting
	ConfigFile, ConfigDir string  // the values of --config and --config-dir; "" if it has none
	Root                  Setting // the value of --root-dir, below which it keeps the volumes of pods
	Kubeconfig            string  // the path of its kubeconfig; "" if it is not known
	FlagsSetEndpoint      bool    // whether an endpoint is among its flags, which take precedence over files
	Healthz               string  // the URL that answers 200 if the kubelet is healthy; "" if it is disabled

	healthzIP   string
	healthzPort int
}

func kubeletDefaults() Settings {
	return Settings{
		Runtime: Setting{defaultEndpoint, byDefault}, Root: Setting{defaultRoot, byDefault},
		healthzIP: defaultHealthzIP, healthzPort: defaultHealthzPort,
	}
}

type kubeletFile struct {
	Runtime     *string `json:"containerRuntimeEndpoint"`
	Image       *string `json:"imageServiceEndpoint"`
	HealthzIP   *string `json:"healthzBindAddress"`
	HealthzPort *int    `json:"healthzPort"`
}

func (h Host) settings(args []word, s Settings) (Settings, error) {
	take(&s.Root, last(args, "root-dir"))
	s.Kubeconfig = cmp.Or(last(args, "kubeconfig").text, s.Kubeconfig)
	s.ConfigFile, s.ConfigDir = last(args, "config").text, last(args, "config-dir").text
	var files []string
	if s.ConfigDir != "" {
		var err error
		if files, err = h.files(s.ConfigDir); err != nil {
			return Settings{}, fmt.Errorf("list the kubelet's --config-dir: %w", err)
		}
		files = slices.DeleteFunc(files, func(f string) bool { return path.Ext(f) != ".conf" || isRanchersOwn(f) })
	}
	if s.ConfigFile != "" {
		files = append([]string{s.ConfigFile}, files...)
	}
	for _, file := range files {
		if err := h.readKubelet(file, &s); err != nil {
			return Settings{}, err
		}
	}
	runtime, image := last(args, "container-runtime-endpoint"), last(args, "image-service-endpoint")
	s.FlagsSetEndpoint = runtime.text != "" || image.text != ""
	take(&s.Runtime, runtime)
	take(&s.Image, image)
	s.healthzIP = cmp.Or(last(args, "healthz-bind-address").text, s.healthzIP)
	if port := last(args, "healthz-port"); port.text != "" {
		n, err := strconv.Atoi(port.text)
		if err != nil {
			return Settings{}, fmt.Errorf("%s: --healthz-port: %w", port.from, err)
		}
		s.healthzPort = n
	}
	s.Healthz = s.healthz()
	if s.Image.Value == "" {
		s.Image = s.Runtime
	}
	return s, nil
}

// CheckRoot returns an error with a hint if volumes of pods are not in admission.kubeletRoot.
func (s Settings) CheckRoot(configured string) error {
	if path.Clean(s.Root.Value) == path.Clean(configured) {
		return nil
	}
	return program.Hintf("set admission.kubeletRoot: "+s.Root.Value+" in pullgated's configuration, then systemctl "+
		"reload pullgated", "admission.kubeletRoot is %s, and the kubelet's --root-dir is %s (%s): every volume of a pod "+
		"counts as a hostPath", configured, s.Root.Value, s.Root.From)
}

func take(to *Setting, w word) {
	if w.text != "" {
		*to = Setting{w.text, w.from}
	}
}

func (s Settings) healthz() string {
	if s.healthzPort <= 0 {
		return ""
	}
	ip := s.healthzIP
	if parsed := net.ParseIP(ip); parsed != nil && parsed.IsUnspecified() {
		ip = map[bool]string{true: "127.0.0.1", false: "::1"}[parsed.To4() != nil]
	}
	return "http://" + net.JoinHostPort(ip, strconv.Itoa(s.healthzPort)) + "/healthz"
}

func (h Host) readKubelet(file string, s *Settings) error {
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
	if f.Runtime != nil { // "" is as if it were not set
		s.Runtime = Setting{defaultEndpoint, byDefault}
		take(&s.Runtime, word{*f.Runtime, file})
	}
	if f.Image != nil {
		s.Image = Setting{}
		take(&s.Image, word{*f.Image, file})
	}
	s.healthzIP, s.healthzPort = ptr.Deref(f.HealthzIP, s.healthzIP), ptr.Deref(f.HealthzPort, s.healthzPort)
	return nil
}

// last returns the last --name=value or --name value, which is effective; a zero word if there is none.
func last(args []word, name string) (found word) {
	for _, v := range values(args, name) {
		found = v
	}
	return found
}

// values returns all values of a flag in their order. A "_" in its name is taken for "-", as the kubelet does.
func values(args []word, name string) (found []word) {
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

// Sockets of the runtimes that k3s and RKE2 start.
const (
	rancherContainerd = "unix:///run/k3s/containerd/containerd.sock"
	rancherDocker     = "unix:///run/k3s/cri-dockerd/cri-dockerd.sock"
)

type rancher struct {
	// file is its configuration file; beside it is the folder of its drop-ins.
	file    string
	product string // k3s or rke2
	values  map[string][]word
	cli     []word
}

func (h Host) rancher(s service) (rancher, error) {
	product := s.program()
	r := rancher{
		file: "/etc/rancher/" + product + "/config.yaml", product: product, values: map[string][]word{}, cli: s.words[1:],
	}
	if named := append(values(r.cli, "c"), values(r.cli, "config")...); len(named) > 0 {
		r.file = named[0].text
	}
	if v := s.environment[strings.ToUpper(product)+"_CONFIG_FILE"]; v.text != "" {
		r.file = v.text
	}
	if !path.IsAbs(r.file) {
		return rancher{}, fmt.Errorf("the configuration of %s is at %s, which is not an absolute path", product, r.file)
	}
	files, err := h.files(r.file + ".d")
	if err != nil {
		return rancher{}, fmt.Errorf("list the configuration of %s: %w", product, err)
	}
	if h.exists(r.file) {
		files = append([]string{r.file}, files...)
	}
	for _, file := range files {
		ext := strings.ToLower(path.Ext(file))
		if file != r.file && (path.Dir(file) != r.file+".d" || ext != ".yaml" && ext != ".yml") {
			continue
		}
		if err := r.read(h, file); err != nil {
			return rancher{}, err
		}
	}
	return r, nil
}

func (r rancher) read(h Host, file string) error {
	content, err := h.ReadFile(file)
	var given map[string]any
	if err == nil {
		err = yaml.Unmarshal(content, &given)
	}
	if err != nil {
		return fmt.Errorf("read configuration %s: %w", file, err)
	}
	for _, name := range slices.Sorted(maps.Keys(given)) { // so that "key" comes before "key+"
		value := given[name]
		key, more := strings.CutSuffix(name, "+")
		var words []word
		list, ok := value.([]any)
		if !ok {
			list = []any{value}
		}
		for _, v := range list {
			if v != nil {
				words = append(words, word{fmt.Sprint(v), file})
			}
		}
		if more {
			words = append(r.values[key], words...)
		}
		r.values[key] = words
	}
	return nil
}

func (r rancher) one(name string, short ...string) (found word) {
	for _, v := range r.values[name] {
		found = v
	}
	for _, n := range append(short, name) {
		if v := last(r.cli, n); v.text != "" {
			found = v
		}
	}
	return found
}

func (r rancher) dataDir() string {
	return cmp.Or(r.one("data-dir", "d").text, "/var/lib/rancher/"+r.product)
}

func (r rancher) before() Settings {
	s := kubeletDefaults()
	s.Runtime = Setting{rancherContainerd, r.product + " itself"}
	s.Kubeconfig = path.Join(r.dataDir(), "agent/kubelet.kubeconfig")
	for _, w := range r.cli {
		if w.text == "--docker" {
			s.Runtime = Setting{rancherDocker, w.from}
		}
	}
	if docker := r.one("docker"); docker.text == "true" {
		s.Runtime = Setting{rancherDocker, docker.from}
	}
	for name, to := range map[string]*Setting{
		"container-runtime-endpoint": &s.Runtime, "image-service-endpoint": &s.Image,
	} {
		endpoint := r.one(name)
		if path.IsAbs(endpoint.text) {
			endpoint.text = "unix://" + endpoint.text
		}
		take(to, endpoint)
	}
	return s
}

func (r rancher) kubeletArgs(h Host) (args []word) {
	// From 1.32 on; older ones do not make the folder.
	if dir := path.Join(r.dataDir(), "agent/etc/kubelet.conf.d"); h.exists(dir) {
		args = append(args, word{"--config-dir=" + dir, r.product + " itself"})
	}
	for _, v := range append(r.values["kubelet-arg"], values(r.cli, "kubelet-arg")...) {
		name, value, _ := strings.Cut(strings.TrimPrefix(v.text, "--"), "=")
		w := word{"--" + strings.TrimRight(name, "-+") + "=" + value, v.from}
		if strings.HasSuffix(name, "-") { // "name-=value" goes before the others of that name
			args = append([]word{w}, args...)
		} else {
			args = append(args, w)
		}
	}
	return args
}

// isRanchersOwn reports whether k3s or RKE2 writes a file at each start, with settings that are also elsewhere.
func isRanchersOwn(file string) bool {
	base := path.Base(file)
	return base == "00-k3s-defaults.conf" || base == "00-rke2-defaults.conf"
}
