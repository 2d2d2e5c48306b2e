package doctor

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// Sockets of the runtimes that k3s and RKE2 start.
const (
	rancherContainerd = "unix:///run/k3s/containerd/containerd.sock"
	rancherDocker     = "unix:///run/k3s/cri-dockerd/cri-dockerd.sock"
)

// rancher is the configuration of k3s or RKE2.
type rancher struct {
	// file is its configuration file; beside it is the folder of its drop-ins.
	file    string
	product string // k3s or rke2
	values  map[string][]word
	cli     []word
}

// rancher reads the configuration of k3s or RKE2.
func (h Host) rancher(s service) (rancher, error) {
	product := s.program()
	r := rancher{file: "/etc/rancher/" + product + "/config.yaml", product: product, values: map[string][]word{}, cli: s.words[1:]}
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

// read adds the settings of one file: a key replaces its earlier value, unless it ends with "+".
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

// one returns the effective value of an option that has one value.
func (r rancher) one(name string, short ...string) word {
	var found word
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

// before has the settings that k3s itself makes. Files and flags of the kubelet take precedence.
func (r rancher) before() layers {
	t := layers{runtime: Setting{rancherContainerd, r.product + " itself"}}
	for _, w := range r.cli {
		if w.text == "--docker" {
			t.runtime = Setting{rancherDocker, w.from}
		}
	}
	if docker := r.one("docker"); docker.text == "true" {
		t.runtime = Setting{rancherDocker, docker.from}
	}
	runtime, image := r.one("container-runtime-endpoint"), r.one("image-service-endpoint")
	t.take(Setting{withScheme(runtime.text), runtime.from}, Setting{withScheme(image.text), image.from})
	return t
}

func withScheme(endpoint string) string {
	if path.IsAbs(endpoint) {
		return "unix://" + endpoint
	}
	return endpoint
}

// kubeletArgs returns the flags of the kubelet as far as they come from files and from the command line of k3s.
func (r rancher) kubeletArgs(h Host) []word {
	var args []word
	dir := r.one("data-dir", "d").text
	if dir == "" {
		dir = "/var/lib/rancher/" + r.product
	}
	// From 1.32 on; older ones do not make the folder.
	if dir = path.Join(dir, "agent/etc/kubelet.conf.d"); h.exists(dir) {
		args = append(args, word{"--config-dir=" + dir, r.product + " itself"})
	}
	for _, v := range append(r.values["kubelet-arg"], values(r.cli, "kubelet-arg")...) {
		name, value, _ := strings.Cut(strings.TrimPrefix(v.text, "--"), "=")
		w := word{"--" + strings.TrimRight(name, "-+") + "=" + value, v.from}
		if strings.HasSuffix(name, "-") { // "name-=value" goes before the others of that name
			args = append([]word{w}, args...)
			continue
		}
		args = append(args, w)
	}
	return args
}

// isRanchersOwn reports whether a file in the kubelet's --config-dir is rewritten whenever k3s or RKE2 starts, and
// so contains only settings that are also elsewhere.
func isRanchersOwn(file string) bool {
	base := path.Base(file)
	return base == "00-k3s-defaults.conf" || base == "00-rke2-defaults.conf"
}
