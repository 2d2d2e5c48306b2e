package review_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// In a pod, the kubeconfig and its token are files of a Secret: links to links.
func TestKubeconfigInAVolume(t *testing.T) {
	dir := t.TempDir()
	version := func(name string, contents map[string]string) {
		t.Helper()
		errs := []error{os.Chmod(dir, 0o777), os.Mkdir(filepath.Join(dir, name), 0o755)}
		for file, content := range contents {
			errs = append(errs, os.WriteFile(filepath.Join(dir, name, file), []byte(content), 0o440))
			if err := os.Symlink("..data/"+file, filepath.Join(dir, file)); !errors.Is(err, os.ErrExist) {
				errs = append(errs, err)
			}
		}
		errs = append(errs, os.Symlink(name, dir+"/..data_tmp"), os.Rename(dir+"/..data_tmp", dir+"/..data"))
		must(t, errors.Join(errs...))
	}
	kubeconfig := `{apiVersion: v1, kind: Config, current-context: c, clusters: [{name: c, cluster: {server: "https://b.test"}}],
		contexts: [{name: c, context: {cluster: c, user: u}}], users: [{name: u, user: {tokenFile: token}}]}`
	version("..1", map[string]string{"scanner.kubeconfig": kubeconfig, "token": "one"})
	b := backend()
	b.Kubeconfig = filepath.Join(dir, "scanner.kubeconfig")
	set := newSet(t, b)
	version("..2", map[string]string{"scanner.kubeconfig": kubeconfig, "token": "two"})
	if err := set.Reload(); err != nil {
		t.Errorf("Reload = %v; want nil", err)
	}
}
