package config

import (
	"fmt"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/pkg/policy"
)

// The required apiVersion and kind of a kubelet's configuration.
const (
	kubeletAPIVersion = "kubelet.config.k8s.io/v1beta1"
	kubeletKind       = "KubeletConfiguration"
)

// kubelet has the fields that are read from a kubelet's configuration. Others are ignored, because kubelets of other
// versions have other fields.
type kubelet struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Policy     string   `json:"imagePullCredentialsVerificationPolicy"`
	Allowlist  []string `json:"preloadedImagesVerificationAllowlist"`
}

func inKubelet(path string) string { return "kubeletConfig: " + path + ": " }

// loadKubelet reads a kubelet's configuration file. An absent file is an error, because the operator named it. A field
// that is not set has the kubelet's default.
func loadKubelet(path string) (k kubelet, errs []error) {
	if !isPath(path) {
		return kubelet{}, []error{invalid("kubeletConfig", path,
			"must be an absolute path, as in /var/lib/kubelet/config.yaml")}
	}
	data, err := disk.Read(path, maxSize)
	if err != nil {
		return kubelet{}, []error{fmt.Errorf("kubeletConfig: %w; must be a KubeletConfiguration that pullgated can read",
			err)}
	}
	k = kubelet{Policy: string(policy.ModeNeverVerifyPreloadedImages)}
	d := strictyaml.Decoder{Lenient: true}
	errs, err = d.Decode(data, &k)
	if err != nil {
		return kubelet{}, []error{fmt.Errorf("%s%w", inKubelet(path), err)}
	}
	for _, err := range append(oneOf("apiVersion", k.APIVersion, kubeletAPIVersion),
		oneOf("kind", k.Kind, kubeletKind)...) {
		errs = append(errs, err)
	}
	errs = strictyaml.WithLines(data, errs)
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s%w", inKubelet(path), err)
	}
	return k, errs
}
