package doctor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// What a kubelet dials when nobody tells it: its own default, and that of a k3s with its own containerd.
const (
	kubeletDefault = "/run/containerd/containerd.sock"
	k3sDefault     = "/run/k3s/containerd/containerd.sock"
)

// A setting is one of a kubelet, and where it stands.
type setting struct{ value, where string }

// dials is what a kubelet is told to dial. Without an image service it asks the runtime for images too.
type dials struct{ runtime, images setting }

// over puts what is set in d over what is set in the other.
func (d dials) over(other dials) dials {
	if d.runtime.value == "" {
		d.runtime = other.runtime
	}
	if d.images.value == "" {
		d.images = other.images
	}
	return d
}

// kubelet looks at what the kubelet dials, now and after its next start.
func (n Node) kubelet(context.Context) (all []Finding) {
	ours := socketPath(n.Config.Listen)
	running := n.running("kubelet", "k3s", "k3s-server", "k3s-agent")
	for _, p := range running {
		args := n.arguments(p.pid)
		if strings.HasPrefix(p.name, "k3s") {
			all = append(all, judge(ours, p.String(), flags(args, p.String()).over(n.rancher("k3s")), k3sDefault))
			continue
		}
		d := flags(args, "its arguments")
		for _, file := range n.kubeletFiles(args) {
			d = d.over(n.kubeletFile(file))
		}
		all = append(all, judge(ours, p.String(), d, kubeletDefault))
	}
	next, files := n.startedWith()
	if len(running) == 0 {
		return []Finding{n.atItsStart(ours, next, files)}
	}
	if next.runtime.value == "" {
		return all // whoever starts the kubelet tells it elsewhere
	}
	// A kubelet that was started before its unit was changed.
	later := judge(ours, "the kubelet, once it is started anew,", next, kubeletDefault)
	has := func(l Level) bool { return slices.ContainsFunc(all, func(f Finding) bool { return f.Level == l }) }
	switch {
	case later.Level == Fail && has(OK):
		later.Level = Warn
		return append(all, later)
	case later.Level == OK && has(Fail):
		return append(all, warn("restart the kubelet; running pods go on", "%s", later.Found))
	}
	return all
}

// atItsStart looks at what a kubelet that does not run will dial.
func (n Node) atItsStart(ours string, d dials, files []string) Finding {
	for _, file := range append(files, "/var/lib/kubelet/instance-config.yaml", "/var/lib/kubelet/config.yaml") {
		d = d.over(n.kubeletFile(file))
	}
	for _, which := range []string{"k3s", "rke2"} {
		d = d.over(n.rancher(which))
	}
	if _, err := os.Stat(n.path("/var/lib/kubelet/config.yaml")); err != nil && d == (dials{}) {
		return unknown("run it on the node, as root, with the kubelet running", "no kubelet runs here and none is configured where kubeadm, k3s or RKE2 would")
	}
	return judge(ours, "the kubelet, which does not run,", d, kubeletDefault)
}

// judge says whether what a kubelet dials is pullgated.
func judge(ours, kubelet string, d dials, otherwise string) Finding {
	if d.runtime.value == "" {
		d.runtime = setting{otherwise, "its default"}
	}
	if got := socketPath(d.runtime.value); got != ours {
		return fail("pullgatectl node enable sends it through "+ours,
			"%s dials %s (%s), which passes pullgate by", kubelet, got, d.runtime.where)
	}
	if got := socketPath(d.images.value); got != "" && got != ours {
		return fail("leave the image service endpoint empty or set it to unix://"+ours+", then restart the kubelet",
			"%s pulls through %s (%s): pullgate sees no pull", kubelet, got, d.images.where)
	}
	return ok("%s dials %s (%s)", kubelet, ours, d.runtime.where)
}

// startedWith returns the flags that the kubelet's unit starts it with, and the configuration files that it names. Of flags
// the last counts.
func (n Node) startedWith() (d dials, files []string) {
	var units []string
	for _, dir := range []string{"/etc", "/usr/lib", "/lib"} {
		units = append(units, n.glob(dir+"/systemd/system/kubelet.service.d/*.conf")...)
	}
	// The last drop-in by name counts, wherever it is, and each before the unit itself.
	slices.SortStableFunc(units, func(a, b string) int { return strings.Compare(filepath.Base(b), filepath.Base(a)) })
	for _, dir := range []string{"/etc", "/usr/lib", "/lib"} {
		units = append(units, dir+"/systemd/system/kubelet.service")
	}
	for _, unit := range units {
		words := n.words(unit)
		d = d.over(flags(words, unit))
		files = append(files, n.kubeletFiles(words)...)
	}
	for _, env := range []string{"/etc/default/kubelet", "/etc/sysconfig/kubelet", "/var/lib/kubelet/kubeadm-flags.env"} {
		d = d.over(flags(n.words(env), env))
	}
	return d, files
}

// words returns the words of a file that systemd reads, without quotes and comments.
func (n Node) words(path string) (words []string) {
	for line := range strings.Lines(n.read(path)) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "#") && !strings.HasPrefix(line, ";") {
			words = append(words, strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\"'\\", r) })...)
		}
	}
	return words
}

// flags returns what a command line says. Of a flag that is there twice the last counts.
func flags(args []string, where string) (d dials) {
	for name, into := range map[string]*setting{"container-runtime-endpoint": &d.runtime, "image-service-endpoint": &d.images} {
		if value := flag(args, name); value != "" {
			*into = setting{value, where}
		}
	}
	return d
}

// flag returns the value of a flag: --name=value, --name value, KEY=--name=value, and the same with one hyphen.
func flag(args []string, name string) (value string) {
	for i, arg := range args {
		if at := strings.Index(arg, "-"+name); at >= 0 {
			rest := arg[at+1+len(name):]
			switch {
			case strings.HasPrefix(rest, "="):
				value = rest[1:]
			case rest == "" && i+1 < len(args):
				value = args[i+1]
			}
		}
	}
	return value
}

// kubeletFiles returns the configuration files that arguments name, the one that counts most first.
func (n Node) kubeletFiles(args []string) (files []string) {
	if dir := flag(args, "config-dir"); dir != "" {
		files = n.glob(filepath.Join(dir, "*.conf"))
		slices.Reverse(files)
	}
	if file := flag(args, "-config"); file != "" {
		files = append(files, file)
	}
	return files
}

// kubeletFile returns what a KubeletConfiguration says, or what kubeadm keeps of one.
func (n Node) kubeletFile(path string) dials {
	var c struct {
		Runtime string `json:"containerRuntimeEndpoint"`
		Images  string `json:"imageServiceEndpoint"`
	}
	if yaml.Unmarshal([]byte(n.read(path)), &c) != nil {
		return dials{} // the kubelet does not start with it either
	}
	return dials{runtime: setting{c.Runtime, path}, images: setting{c.Images, path}}.withoutEmpty()
}

// withoutEmpty takes the place off what is not set.
func (d dials) withoutEmpty() dials {
	for _, s := range []*setting{&d.runtime, &d.images} {
		if s.value == "" {
			s.where = ""
		}
	}
	return d
}

// rancher returns what k3s or RKE2 is configured with.
func (n Node) rancher(which string) (d dials) {
	files := n.glob("/etc/rancher/" + which + "/config.yaml.d/*.yaml")
	slices.Reverse(files)
	for _, path := range append(files, "/etc/rancher/"+which+"/config.yaml") {
		var c struct {
			Runtime string `json:"container-runtime-endpoint"`
			Images  string `json:"image-service-endpoint"`
			Args    any    `json:"kubelet-arg"`
			More    any    `json:"kubelet-arg+"` // adds to those of the files before
		}
		if yaml.Unmarshal([]byte(n.read(path)), &c) != nil {
			continue
		}
		var args []string
		for _, some := range []any{c.Args, c.More} {
			switch some := some.(type) {
			case string:
				args = append(args, "-"+some)
			case []any:
				for _, arg := range some {
					args = append(args, fmt.Sprintf("-%v", arg))
				}
			}
		}
		d = d.over(flags(args, path)).over(dials{runtime: setting{c.Runtime, path}, images: setting{c.Images, path}}.withoutEmpty())
	}
	return d
}
