package criofiles

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
)

// A Node is a machine whose files are below a directory; "/" is the machine itself.
type Node string

// maxFile bounds what is read of a file; all that are looked for are shorter.
const maxFile = 1 << 20

// defaultAuthDir is where CRI-O looks for auth files of namespaces unless it is configured otherwise. It creates the
// directory at every start, so only its content shows that there are such files.
const defaultAuthDir = "/etc/crio/auth"

// provider is the plugin that writes auth files of namespaces.
const provider = "crio-credential-provider"

// NamespaceCredentials returns what shows that CRI-O pulls, or may pull, with credentials that it holds for a
// namespace: files in a directory for them, or the plugin that writes such files among the kubelet's credential
// providers. unread are the errors of what could not be read.
func (n Node) NamespaceCredentials() (found []string, unread []error) {
	for _, dir := range n.authDirs() {
		entries, err := os.ReadDir(n.path(dir))
		switch {
		case err != nil && !os.IsNotExist(err):
			unread = append(unread, err)
		case len(entries) > 0:
			found = append(found, dir+" has been used for auth files of namespaces")
		}
	}
	for _, file := range n.providerConfigs() {
		content, err := n.read(file)
		switch {
		case err != nil && !os.IsNotExist(err):
			unread = append(unread, err)
		case strings.Contains(content, provider):
			found = append(found, file+" names "+provider)
		}
	}
	return found, unread
}

// SearchRegistries returns the registries that CRI-O looks for a short name in, and the file that names them; "" if
// none does.
func (n Node) SearchRegistries() (registries []string, file string, unread []error) {
	files := append([]string{"/etc/containers/registries.conf"}, n.Glob("/etc/containers/registries.conf.d/*.conf")...)
	for _, f := range files {
		content, err := n.read(f)
		if os.IsNotExist(err) {
			continue
		}
		var c struct {
			Search []string `toml:"unqualified-search-registries"`
		}
		if err == nil {
			err = toml.Unmarshal([]byte(content), &c)
		}
		if err != nil {
			unread = append(unread, fmt.Errorf("%s: %w", f, err))
			continue
		}
		if c.Search != nil { // of several files the last counts
			registries, file = c.Search, f
		}
	}
	return registries, file, unread
}

var (
	authDir        = regexp.MustCompile(`(?i)namespaced[-_]auth[-_]dir["']?[\s=]+["']?(/[^\s"']*)`)
	providerConfig = regexp.MustCompile(`image-credential-provider-config["']?[\s=]+["']?(/[^\s"']*)`)
)

// authDirs returns the directories in which CRI-O is configured to look for auth files of namespaces, and the default.
func (n Node) authDirs() []string {
	files := append([]string{"/etc/crio/crio.conf", "/etc/default/crio", "/etc/sysconfig/crio"}, n.Glob("/etc/crio/crio.conf.d/*")...)
	return n.values(authDir, append(files, n.startedBy("crio")...), defaultAuthDir)
}

// providerConfigs returns the files from which kubelets are configured to read credential providers from.
func (n Node) providerConfigs() (files []string) {
	settings := []string{"/etc/default/kubelet", "/etc/sysconfig/kubelet", "/var/lib/kubelet/kubeadm-flags.env"}
	for _, which := range []string{"k3s", "rke2"} {
		settings = append(append(settings, "/etc/rancher/"+which+"/config.yaml"), n.Glob("/etc/rancher/"+which+"/config.yaml.d/*.yaml")...)
	}
	for _, path := range n.values(providerConfig, append(settings, n.startedBy("kubelet")...), "/var/lib/rancher/credentialprovider/config.yaml") {
		if info, err := os.Stat(n.path(path)); err == nil && info.IsDir() { // kubelet 1.36 and newer
			files = append(files, n.Glob(filepath.Join(path, "*"))...)
			continue
		}
		files = append(files, path)
	}
	return files
}

// startedBy returns the files that define how a program is started: its units, and the command lines of its processes
// as far as they can be seen.
func (n Node) startedBy(program string) (files []string) {
	for _, dir := range []string{"/etc/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/"} {
		files = append(append(files, dir+program+".service"), n.Glob(dir+program+".service.d/*.conf")...)
	}
	for _, comm := range n.Glob("/proc/[0-9]*/comm") {
		if name, err := n.read(comm); err == nil && strings.TrimSpace(name) == program {
			files = append(files, filepath.Join(filepath.Dir(comm), "cmdline"))
		}
	}
	return files
}

// values returns the values of a setting in the files, and a default.
func (n Node) values(setting *regexp.Regexp, files []string, byDefault string) []string {
	all := []string{byDefault}
	for _, file := range files {
		content, err := n.read(file)
		if err != nil {
			continue
		}
		for _, m := range setting.FindAllStringSubmatch(content, -1) {
			if path := filepath.Clean(m[1]); !slices.Contains(all, path) {
				all = append(all, path)
			}
		}
	}
	return all
}

// read returns the content of a file without its comments. The words of a command line are separated by spaces.
func (n Node) read(path string) (string, error) {
	content, err := disk.Read(n.path(path), maxFile)
	if err != nil {
		return "", err
	}
	var lines []string
	for line := range strings.Lines(strings.ReplaceAll(string(content), "\x00", " ")) {
		if !strings.HasPrefix(strings.TrimSpace(line), "#") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, ""), nil
}

func (n Node) path(path string) string { return filepath.Join(string(n), path) }

// Glob returns the paths of the node that fit a pattern, in order.
func (n Node) Glob(pattern string) []string {
	found, _ := filepath.Glob(n.path(pattern)) // an error is of the pattern
	for i, f := range found {
		found[i] = "/" + strings.TrimPrefix(strings.TrimPrefix(f, filepath.Clean(string(n))), "/")
	}
	slices.Sort(found)
	return found
}
