package config_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/pkg/policy"
)

const (
	kubeletHeader = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	names         = "imagePullCredentialsVerificationPolicy: " +
		"NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [busybox]\n"
)

// withKubelet parses a configuration that takes the policy from a kubelet's file with this content.
func withKubelet(t *testing.T, content, own string) (path string, c config.Config, err error) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "kubelet.yaml")
	must(t, os.WriteFile(path, []byte(content), 0o600))
	c, err = config.Parse([]byte(header + "kubeletConfig: " + path + "\n" + own))
	return path, c, err
}

func TestKubeletConfigGivesThePolicy(t *testing.T) {
	for name, tc := range map[string]struct {
		content   string
		mode      policy.Mode
		allowlist []string
	}{
		"neither is set": {kubeletHeader, policy.ModeNeverVerifyPreloadedImages, nil},
		"both are set":   {kubeletHeader + names, policy.ModeNeverVerifyAllowlistedImages, []string{"busybox"}},
		"policy alone": {
			kubeletHeader + "imagePullCredentialsVerificationPolicy: AlwaysVerify\n", policy.ModeAlwaysVerify, nil,
		},
		"null and empty": {kubeletHeader + "imagePullCredentialsVerificationPolicy: " +
			"\"\"\npreloadedImagesVerificationAllowlist:\n", policy.ModeNeverVerifyPreloadedImages, nil},
		"JSON": {`{"kind":"KubeletConfiguration","apiVersion":"kubelet.config.k8s.io/v1beta1",` +
			`"imagePullCredentialsVerificationPolicy":"NeverVerify"}`, policy.ModeNeverVerify, nil},
		// Fields of kubelets of other versions, and fields that the kubelet also treats as other fields.
		"other fields": {kubeletHeader + "cgroupDriver: systemd\nfromTheFuture: {a: [1, {b: null}]}\nauthentication: 5\n" +
			names, policy.ModeNeverVerifyAllowlistedImages, []string{"busybox"}},
		"other case": {
			kubeletHeader + "ImagePullCredentialsVerificationPolicy: AlwaysVerify\n",
			policy.ModeNeverVerifyPreloadedImages, nil,
		},
	} {
		path, got, err := withKubelet(t, tc.content, "")
		want := config.Default()
		want.KubeletConfig, want.ImagePullCredentialsVerificationPolicy, want.PreloadedImagesVerificationAllowlist = path,
			string(tc.mode), tc.allowlist
		mustBe(t, name, got, err, want)
		if p := got.Policy(); p.Mode() != tc.mode || p.Allowlisted("docker.io/library/busybox") != (tc.allowlist != nil) {
			t.Errorf("%s: policy %s; want %s with allowlist %v", name, p.Mode(), tc.mode, tc.allowlist)
		}
	}
}

// Each document is a kubelet's file, and after a line of dots the fields of pullgated's own.
func TestKubeletConfigIsRefused(t *testing.T) {
	refuse := func(content, own string) error {
		_, got, err := withKubelet(t, content, own)
		mustBe(t, content, got, nil, config.Config{})
		return err
	}
	refuses(t, "testdata/refused-kubelet.txt", kubeletHeader, func(document []byte) error {
		content, own, _ := strings.Cut(string(document), "...\n")
		return refuse(content, own)
	})
	for want, content := range map[string]string{
		`apiVersion: Unsupported value: ""`:   "",
		"too large: more than 1048576 bytes;": kubeletHeader + strings.Repeat("#", 1<<20),
	} {
		if err := refuse(content, ""); !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("%d bytes: %v; want ErrInvalid with %q", len(content), err, want)
		}
	}
	// Null means that the field is not set.
	if _, _, err := withKubelet(t, kubeletHeader,
		"imagePullCredentialsVerificationPolicy:\npreloadedImagesVerificationAllowlist: null\n"); err != nil {
		t.Errorf("null beside kubeletConfig = %v; want nil", err)
	}
}

// The operator named the file, so an absent file is not treated as an empty one.
func TestKubeletConfigMustBeThere(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	must(t, syscall.Mkfifo(pipe, 0o600))
	for path, want := range map[string]string{
		filepath.Join(dir, "absent"): "kubeletConfig: open " + filepath.Join(dir, "absent") +
			": no such file or directory; must be a KubeletConfiguration that pullgated can read",
		dir:  "kubeletConfig: " + dir + ": not a regular file; must be",
		pipe: "kubeletConfig: " + pipe + ": not a regular file; must be",
		"kubelet.yaml": `kubeletConfig: Invalid value: "kubelet.yaml": must be an absolute path, as in ` +
			`/var/lib/kubelet/config.yaml`,
	} {
		_, err := config.Parse([]byte(header + "kubeletConfig: " + path + "\n"))
		if !errors.Is(err, config.ErrInvalid) || !strings.Contains(err.Error(), want) {
			t.Errorf("kubeletConfig %s = %v; want ErrInvalid with %s", path, err, want)
		}
	}
}
