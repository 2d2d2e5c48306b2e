package config

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
	"github.com/pullgate/pullgate/pkg/policy"
)

// kubelet has the fields that are read from a kubelet's configuration. Other versions have other fields.
type kubelet struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Policy     string   `json:"imagePullCredentialsVerificationPolicy"`
	Allowlist  []string `json:"preloadedImagesVerificationAllowlist"`
}

// NeverVerifyByKubelet reports whether nothing is verified because the kubelet does not verify, by kubeletConfig.
func (c Config) NeverVerifyByKubelet() bool {
	return c.KubeletConfig != "" && c.ImagePullCredentialsVerificationPolicy == string(policy.ModeNeverVerify)
}

func inKubelet(path string) string { return "kubeletConfig: " + path + ": " }

func checkKubeletPath(path string) []error {
	return checked(func(c *checks) { c.path("kubeletConfig", path, "/var/lib/kubelet/config.yaml", "") })
}

// loadKubelet reads a kubelet's configuration file, which must exist. A field that is not set has its default.
func loadKubelet(path string) (k kubelet, errs []error) {
	if errs = checkKubeletPath(path); len(errs) > 0 {
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

// decode reads one YAML document into a configuration. Fields that are absent or null keep their values, except in the
// header. A document without a field is an error: the file is probably not written completely. The errors in errs
// are about single fields; with err no part of the document may be used.
func decode[C any](data []byte, c *C, header ...*string) (errs []error, err error) {
	if len(data) > maxSize {
		return nil, fmt.Errorf("more than %d bytes", maxSize)
	}
	empty := false
	d := strictyaml.Decoder{
		Want: map[reflect.Type]string{reflect.TypeFor[Duration](): "a duration, as in 24h or 0s"},
		Rewrites: map[reflect.Type]func(*strictyaml.Mapping){reflect.TypeFor[C](): func(m *strictyaml.Mapping) {
			empty = len(m.Fields) == 0
			for _, field := range header {
				*field = ""
			}
		}},
	}
	errs, err = d.Decode(data, c)
	if err == nil && empty {
		err = errors.New("apiVersion: Required value: the file has no field")
	}
	return errs, err
}
