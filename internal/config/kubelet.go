package config

import (
	"fmt"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/pkg/policy"
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
	errs = checked(func(c *checks) { c.path("kubeletConfig", path, "/var/lib/kubelet/config.yaml", "") })
	if len(errs) > 0 {
		return kubelet{}, errs
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
	const version, kind = "kubelet.config.k8s.io/v1beta1", "KubeletConfiguration"
	errs = append(errs, checked(func(c *checks) { c.header(k.APIVersion, k.Kind, version, kind) })...)
	errs = strictyaml.WithLines(data, errs)
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s%w", inKubelet(path), err)
	}
	return k, errs
}
