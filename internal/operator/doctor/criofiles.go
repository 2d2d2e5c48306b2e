package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// defaultAuthDir is where CRI-O looks for auth files of namespaces unless it is configured otherwise. It creates the
// directory at every start, so only its content shows that there are such files.
const defaultAuthDir = "/etc/crio/auth"

const provider = "crio-credential-provider"

// NamespaceCredentials returns what shows that CRI-O pulls, or may pull, with credentials that it holds for a
// namespace: files in a directory for them, or the plugin that writes such files among the kubelet's credential
// providers. unread are the errors of what could not be read.
func (h Host) NamespaceCredentials() (found []string, unread []error) {
	for _, dir := range h.authDirs() {
		entries, err := os.ReadDir(h.Path(dir))
		switch {
		case err != nil && !os.IsNotExist(err):
			unread = append(unread, err)
		case len(entries) > 0:
			found = append(found, dir+" has been used for auth files of namespaces")
		}
	}
	for _, file := range h.providerConfigs() {
		content, err := h.uncommented(file)
		switch {
		case err != nil && !os.IsNotExist(err):
			unread = append(unread, err)
		case strings.Contains(content, provider):
			found = append(found, file+" names "+provider)
		}
	}
	return found, unread
}

// SearchRegistries returns where CRI-O looks for a short name, and the file that says so; "" if none does.
func (h Host) SearchRegistries() (registries []string, file string, unread []error) {
	files := append([]string{"/etc/containers/registries.conf"}, h.glob("/etc/containers/registries.conf.d/*.conf")...)
	for _, f := range files {
		content, err := h.uncommented(f)
		if os.IsNotExist(err) {
			continue
		}
		var c struct {
			Search []string `toml:"unqualified-search-registries"`
		}
		if err == nil {
			err = toml.Unmarshal([]byte(content), &c)
		}
		switch {
		case err != nil:
			unread = append(unread, fmt.Errorf("%s: %w", f, err))
		case c.Search != nil: // of several files the last counts
			registries, file = c.Search, f
		}
	}
	return registries, file, unread
}

var (
	authDir        = regexp.MustCompile(`(?i)namespaced[-_]auth[-_]dir["']?[\s=]+["']?(/[^\s"']*)`)
	providerConfig = regexp.MustCompile(`image-credential-provider-config["']?[\s=]+["']?(/[^\s"']*)`)
)

func (h Host) authDirs() []string {
	files := []string{"/etc/crio/crio.conf", "/etc/default/crio", "/etc/sysconfig/crio"}
	return h.values(authDir, slices.Concat(files, h.glob("/etc/crio/crio.conf.d/*"), h.startedBy("crio")), defaultAuthDir)
}

func (h Host) providerConfigs() (files []string) {
	settings := []string{"/etc/default/kubelet", "/etc/sysconfig/kubelet", "/var/lib/kubelet/kubeadm-flags.env"}
	for _, which := range []string{"k3s", "rke2"} {
		file := "/etc/rancher/" + which + "/config.yaml"
		settings = append(append(settings, file), h.glob(file+".d/*.yaml")...)
	}
	settings = append(settings, h.startedBy("kubelet")...)
	for _, path := range h.values(providerConfig, settings, "/var/lib/rancher/credentialprovider/config.yaml") {
		if info, err := os.Stat(h.Path(path)); err == nil && info.IsDir() { // kubelet 1.36 and newer
			files = append(files, h.glob(filepath.Join(path, "*"))...)
		} else {
			files = append(files, path)
		}
	}
	return files
}

func (h Host) startedBy(program string) (files []string) {
	for _, dir := range []string{"/etc/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/"} {
		files = append(append(files, dir+program+".service"), h.glob(dir+program+".service.d/*.conf")...)
	}
	for _, comm := range h.glob("/proc/[0-9]*/comm") {
		if name, err := h.uncommented(comm); err == nil && strings.TrimSpace(name) == program {
			files = append(files, filepath.Join(filepath.Dir(comm), "cmdline"))
		}
	}
	return files
}

func (h Host) values(setting *regexp.Regexp, files []string, byDefault string) []string {
	all := []string{byDefault}
	for _, file := range files {
		content, _ := h.uncommented(file) // what cannot be read sets nothing
		for _, m := range setting.FindAllStringSubmatch(content, -1) {
			if path := filepath.Clean(m[1]); !slices.Contains(all, path) {
				all = append(all, path)
			}
		}
	}
	return all
}

// uncommented returns the content of a file without its comments. The words of a command line are separated by spaces.
func (h Host) uncommented(path string) (string, error) {
	content, err := h.ReadFile(path)
	if err != nil {
		return "", err
	}
	text := strings.ReplaceAll(string(content), "\x00", " ")
	return regexp.MustCompile(`(?m)^[ \t]*#.*\n?`).ReplaceAllString(text, ""), nil
}

func (h Host) glob(pattern string) []string {
	found, _ := filepath.Glob(h.Path(pattern)) // an error is of the pattern
	for i, f := range found {
		found[i] = "/" + strings.TrimPrefix(strings.TrimPrefix(f, filepath.Clean(h.Root)), "/")
	}
	slices.Sort(found)
	return found
}
