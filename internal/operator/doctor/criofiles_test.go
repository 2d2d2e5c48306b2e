package doctor_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pullgate/pullgate/internal/operator/doctor"
)

// node makes a machine with these files; a path that ends in a slash is a directory.
func node(t *testing.T, files map[string]string) doctor.Host {
	t.Helper()
	root := t.TempDir()
	for path, content := range files {
		dir := filepath.Dir(path)
		if strings.HasSuffix(path, "/") {
			dir = path
		}
		must(t, os.MkdirAll(filepath.Join(root, dir), 0o755))
		if dir == path {
			continue
		}
		must(t, os.WriteFile(filepath.Join(root, path), []byte(content), 0o600))
	}
	return doctor.Host{Root: root}
}

func TestNamespaceCredentials(t *testing.T) {
	const names, flag = "providers:\n- name: crio-credential-provider\n", "--image-credential-provider-config="
	for name, tc := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"nothing":                        {nil, nil},
		"the directory that CRI-O makes": {map[string]string{"/etc/crio/auth/": ""}, nil},
		"an auth file":                   {map[string]string{"/etc/crio/auth/a.json": "{}"}, []string{"/etc/crio/auth"}},
		"an auth file that was used":     {map[string]string{"/etc/crio/auth/in-use/": ""}, []string{"/etc/crio/auth"}},
		"another directory": {map[string]string{
			"/etc/crio/crio.conf.d/10.conf": "[crio.image]\nnamespaced_auth_dir = \"/srv/auth\"\n", "/srv/auth/in-use/": "",
		}, []string{"/srv/auth"}},
		"a directory that is commented out": {map[string]string{
			"/etc/crio/crio.conf": "[crio.image]\n# namespaced_auth_dir = \"/srv/auth\"\n", "/srv/auth/in-use/": "",
		}, nil},
		"a directory in the environment": {map[string]string{
			"/etc/sysconfig/crio": "CONTAINER_NAMESPACED_AUTH_DIR=/srv/auth\n", "/srv/auth/in-use/": "",
		}, []string{"/srv/auth"}},
		"a directory of the process": {map[string]string{
			"/proc/7/comm": "crio\n", "/proc/7/cmdline": "/usr/bin/crio\x00--namespaced-auth-dir\x00/srv/auth\x00",
			"/srv/auth/in-use/": "",
		}, []string{"/srv/auth"}},
		"a provider of the unit": {map[string]string{
			"/etc/systemd/system/kubelet.service.d/10.conf": "Environment=\"ARGS=" + flag + "/etc/providers.yaml\"\n",
			"/etc/providers.yaml":                           names,
		}, []string{"/etc/providers.yaml"}},
		"a provider of the process": {map[string]string{
			"/proc/8/comm":        "kubelet\n",
			"/proc/8/cmdline":     "/usr/bin/kubelet\x00--image-credential-provider-config\x00/etc/providers.yaml\x00",
			"/etc/providers.yaml": names,
		}, []string{"/etc/providers.yaml"}},
		"a provider in a directory": {map[string]string{
			"/var/lib/kubelet/kubeadm-flags.env": "KUBELET_KUBEADM_ARGS=\"" + flag + "/etc/providers.d\"\n",
			"/etc/providers.d/a.yaml":            names,
		}, []string{"/etc/providers.d/a.yaml"}},
		"a provider of k3s": {
			map[string]string{"/var/lib/rancher/credentialprovider/config.yaml": names}, []string{"/var/lib/rancher"},
		},
		"another provider": {map[string]string{
			"/etc/default/kubelet": flag + "/etc/p.yaml", "/etc/p.yaml": "providers:\n# crio-credential-provider\n- name: ecr\n",
		}, nil},
		"a provider file that is not there": {map[string]string{"/etc/default/kubelet": flag + "/etc/p.yaml"}, nil},
	} {
		got, unread := node(t, tc.files).NamespaceCredentials()
		if !slices.EqualFunc(got, tc.want, strings.HasPrefix) || len(unread) > 0 {
			t.Errorf("%s: found %q, unread %v; want those of %q, none", name, got, unread, tc.want)
		}
	}
}

func TestNamespaceCredentialsReportsUnreadableFiles(t *testing.T) {
	n := node(t, map[string]string{
		"/etc/crio/auth":       "a file",
		"/etc/default/kubelet": "--image-credential-provider-config=/etc/p.yaml", "/etc/p.yaml": strings.Repeat("x", 2<<20),
	})
	if found, unread := n.NamespaceCredentials(); len(unread) != 2 || len(found) > 0 {
		t.Errorf("NamespaceCredentials = %q, %v; want nothing found and two errors", found, unread)
	}
}

func TestSearchRegistries(t *testing.T) {
	const conf, dir = "/etc/containers/registries.conf", "/etc/containers/registries.conf.d/"
	for name, tc := range map[string]struct {
		files map[string]string
		want  string
		file  string
		broke int
	}{
		"nothing": {nil, "", "", 0},
		"one": {
			map[string]string{conf: "unqualified-search-registries = [\"a.test\", \"b.test\"]\n"}, "a.test b.test", conf, 0,
		},
		"overruled": {
			map[string]string{
				conf:           "unqualified-search-registries = [\"a.test\"]",
				dir + "1.conf": "unqualified-search-registries = [\"docker.io\"]", dir + "2.conf": "[aliases]\n",
			},
			"docker.io",
			dir + "1.conf", 0,
		},
		"no TOML": {map[string]string{conf: "[["}, "", "", 1},
	} {
		got, file, unread := node(t, tc.files).SearchRegistries()
		if strings.Join(got, " ") != tc.want || file != tc.file || len(unread) != tc.broke {
			t.Errorf("%s: SearchRegistries = %q, %q, %v; want %q, %q and %d errors", name, got, file, unread, tc.want, tc.file,
				tc.broke)
		}
	}
}
