package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"sigs.k8s.io/yaml"

	"github.com/pullgate/pullgate/internal/regularfile"
	"github.com/pullgate/pullgate/pkg/policy"
)

// What apiVersion and kind of a kubelet's configuration must be.
const (
	kubeletAPIVersion = "kubelet.config.k8s.io/v1beta1"
	kubeletKind       = "KubeletConfiguration"
)

// kubelet is what is read of a kubelet's configuration. All else in the file is passed over, since
// kubelets of other versions have fields that nobody here knows.
type kubelet struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Policy     string   `json:"imagePullCredentialsVerificationPolicy"`
	Allowlist  []string `json:"preloadedImagesVerificationAllowlist"`
}

// kubeletFields returns the names of the fields that a kubelet's configuration stands in for.
func kubeletFields() []string { return fieldNames(reflect.TypeFor[kubelet]())[2:] }

// inKubelet is what errors begin with that are about a kubelet's file.
func inKubelet(path string) string { return "kubeletConfig: " + path + ": " }

// loadKubelet reads a kubelet's configuration file. The operator named it, so that one that is not
// there is an error. A field that is not set has the kubelet's default.
func loadKubelet(path string) (kubelet, []error) {
	if !isPath(path) {
		return kubelet{}, []error{wrong("kubeletConfig", path, "an absolute path, as in /var/lib/kubelet/config.yaml")}
	}
	data, err := regularfile.Read(path, maxSize)
	if err == nil && len(data) > maxSize {
		err = fmt.Errorf("%s: more than %d bytes", path, maxSize)
	}
	if err != nil {
		return kubelet{}, []error{fmt.Errorf("kubeletConfig: %w; allowed is a KubeletConfiguration that pullgated can read", err)}
	}
	var given map[string]any
	if err := yaml.Unmarshal(data, &given); err != nil {
		return kubelet{}, []error{fmt.Errorf("%s%w", inKubelet(path), err)}
	}
	names := fieldNames(reflect.TypeFor[kubelet]())
	maps.DeleteFunc(given, func(name string, _ any) bool { return !slices.Contains(names, name) })
	errs := checkShape("", reflect.TypeFor[kubelet](), given)
	k := kubelet{Policy: string(policy.ModeNeverVerifyPreloadedImages)}
	rest, err := json.Marshal(given)
	if err := errors.Join(err, json.Unmarshal(rest, &k)); err != nil {
		errs = append(errs, err)
	}
	if k.APIVersion != kubeletAPIVersion {
		errs = append(errs, wrong("apiVersion", k.APIVersion, kubeletAPIVersion))
	}
	if k.Kind != kubeletKind {
		errs = append(errs, wrong("kind", k.Kind, kubeletKind))
	}
	for i, err := range errs {
		errs[i] = fmt.Errorf("%s%w", inKubelet(path), err)
	}
	return k, errs
}
