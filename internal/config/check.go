package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/pkg/policy"
)

func invalid(path, value, detail string) *field.Error {
	return field.Invalid(field.NewPath(path), value, detail)
}

func oneOf[T ~string](path string, value T, supported ...T) field.ErrorList {
	if slices.Contains(supported, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(field.NewPath(path), value, supported)}
}

func checkFileHeader(c *Config) field.ErrorList { return checkHeader(c.APIVersion, c.Kind, Kind) }

func checkHeader(apiVersion, kind, want string) field.ErrorList {
	return append(oneOf("apiVersion", apiVersion, APIVersion), oneOf("kind", kind, want)...)
}

func checkEndpoints(c *Config) (errs field.ErrorList) {
	for _, f := range []struct {
		path, value string
		optional    bool // "" is valid
	}{
		{"listen", c.Listen, false},
		{"runtimeEndpoint", c.RuntimeEndpoint, false},
		{"imageEndpoint", c.ImageEndpoint, true},
		{"admin.listen", c.Admin.Listen, true},
		{"admission.policydSocket", c.Admission.PolicydSocket, false},
	} {
		if f.value == "" && f.optional {
			continue
		}
		errs = append(errs, checkEndpoint(f.path, f.value)...)
	}
	runtimes := []string{c.RuntimeEndpoint, c.ImageEndpoint}
	if c.Listen != "" && slices.Contains(runtimes, c.Listen) {
		errs = append(errs, invalid("listen", c.Listen, "must be another socket than the runtime's"))
	}
	if l := c.Admin.Listen; l != "" && slices.Contains(append(runtimes, c.Listen), l) {
		errs = append(errs, invalid("admin.listen", l, "must be another socket than those of listen and of the runtime"))
	}
	if s := c.Admission.PolicydSocket; s != "" && slices.Contains(append(runtimes, c.Listen, c.Admin.Listen), s) {
		errs = append(errs, invalid("admission.policydSocket", s,
			"must be another socket than those of listen, of admin.listen and of the runtime"))
	}
	return errs
}

func checkEndpoint(path, value string) field.ErrorList {
	socket, ok := strings.CutPrefix(value, "unix://")
	switch {
	case !ok || !isPath(socket):
		return field.ErrorList{invalid(path, value,
			"must be unix:// and an absolute path, as in unix:///run/containerd/containerd.sock")}
	case len(socket) > 107: // the size of sun_path, without the zero at its end
		return field.ErrorList{invalid(path, value, "the path must have at most 107 bytes")}
	default:
		return nil
	}
}

func isPath(s string) bool {
	return filepath.IsAbs(s) && filepath.Clean(s) == s && s != "/"
}

func checkPath(path, value, example, without string) field.ErrorList {
	if value == "" || isPath(value) {
		return nil
	}
	return field.ErrorList{invalid(path, value, "must be an absolute path, as in "+example+`, or "" for `+without)}
}

func checkValues(c *Config) (errs field.ErrorList) {
	if !filepath.IsAbs(c.StateDir) {
		errs = append(errs, invalid("stateDir", c.StateDir, "must be an absolute path"))
	}
	errs = append(errs, oneOf("untrackedImages", c.UntrackedImages, UntrackedPreloaded, UntrackedVerify)...)
	errs = append(errs, oneOf("runtimeCredentials", c.RuntimeCredentials, RuntimeCredentialsNone,
		RuntimeCredentialsPerNamespace)...)
	errs = append(errs, oneOf("kubeletSkipsAlwaysPrecheck", c.KubeletSkipsAlwaysPrecheck, Auto, True, False)...)
	errs = append(errs, checkNamespaces("exempt.namespaces", c.Exempt.Namespaces)...)
	errs = append(errs, checkDockerConfigFiles(c.NodeCredentials)...)
	errs = append(errs, checkPath("podSource.kubeconfig", c.PodSource.Kubeconfig, "/etc/kubernetes/kubelet.conf",
		"no pod source")...)
	if n := c.PodSource.NodeName; n != "" {
		for _, detail := range validation.IsDNS1123Subdomain(n) {
			errs = append(errs, invalid("podSource.nodeName", n, detail))
		}
		if c.PodSource.Kubeconfig == "" {
			errs = append(errs, invalid("podSource.nodeName", n, `must be "" without podSource.kubeconfig`))
		}
	}
	errs = append(errs, checkAddress("metrics.listen", c.Metrics.Listen, "127.0.0.1:9471")...)
	return append(errs, checkPath("decisionLog.path", c.DecisionLog.Path, "/var/log/pullgate/decisions.log", "no file")...)
}

func checkDockerConfigFiles(n NodeCredentials) (errs field.ErrorList) {
	for i, path := range n.DockerConfigFiles {
		if !isPath(path) {
			errs = append(errs, invalid(fmt.Sprintf("nodeCredentials.dockerConfigFiles[%d]", i), path,
				"must be an absolute path, as in /var/lib/kubelet/config.json"))
		}
	}
	return errs
}

func checkNamespaces(path string, namespaces []string) (errs field.ErrorList) {
	for i, ns := range namespaces {
		for _, detail := range validation.IsDNS1123Label(ns) {
			errs = append(errs, invalid(fmt.Sprintf("%s[%d]", path, i), ns, detail))
		}
	}
	return errs
}

func checkAdmission(c *Config) (errs field.ErrorList) {
	a := c.Admission
	errs = append(errs, checkPath("admission.policies", a.Policies, "/etc/pullgate/policies", "no policies")...)
	errs = append(errs, checkNamespaces("admission.exempt.namespaces", a.Exempt.Namespaces)...)
	errs = append(errs, oneOf("admission.unjudged", a.Unjudged, UnjudgedIgnore, UnjudgedRefuse)...)
	errs = append(errs, checkPath("admission.namespaceLabels", a.NamespaceLabels, "/etc/pullgate/namespaces.yaml",
		"no file")...)
	errs = append(errs, checkPath("admission.trustedRoot", a.TrustedRoot, "/etc/pullgate/trusted_root.json", "none")...)
	if !isPath(a.KubeletRoot) {
		errs = append(errs, invalid("admission.kubeletRoot", a.KubeletRoot,
			"must be an absolute path, as in /var/lib/kubelet"))
	}
	return errs
}

func checkAddress(path, value, example string) field.ErrorList {
	if value == "" {
		return nil
	}
	_, port, err := net.SplitHostPort(value)
	if err != nil {
		return field.ErrorList{invalid(path, value, "must be host:port, as in "+example+`, or "" for no server`)}
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return field.ErrorList{invalid(path, value, "the port must be a number from 0 to 65535")}
	}
	return nil
}

func checkDurations(c *Config) (errs field.ErrorList) {
	for _, f := range []struct {
		path  string
		value Duration
	}{
		{"credentialValidity", c.CredentialValidity},
		{"registryUnavailableGrace", c.RegistryUnavailableGrace},
		{"admission.endorsementValidity", c.Admission.EndorsementValidity},
	} {
		if !f.value.valid() {
			errs = append(errs, invalid(f.path, string(f.value),
				"must be 0s, or a duration from 1s to 87600h, as in 24h or 90m"))
		}
	}
	if len(errs) == 0 && c.CredentialValidity.Value() == 0 && c.Admission.EndorsementValidity.Value() == 0 &&
		c.RegistryUnavailableGrace.Value() != 0 {
		errs = append(errs, invalid("registryUnavailableGrace", string(c.RegistryUnavailableGrace),
			"must be 0s without credentialValidity and admission.endorsementValidity, because nothing expires"))
	}
	return errs
}

func checkPolicy(c *Config) (errs []error) {
	const mode, allowlist = "imagePullCredentialsVerificationPolicy", "preloadedImagesVerificationAllowlist"
	from := "" // prefix of errors about the policy
	if c.KubeletConfig != "" {
		const detail = "the policy is that of kubeletConfig; set one of the two"
		if c.ImagePullCredentialsVerificationPolicy != "" {
			errs = append(errs, field.Forbidden(field.NewPath(mode), detail))
		}
		if c.PreloadedImagesVerificationAllowlist != nil {
			errs = append(errs, field.Forbidden(field.NewPath(allowlist), detail))
		}
		k, bad := loadKubelet(c.KubeletConfig)
		if errs = append(errs, bad...); len(errs) > 0 {
			return errs
		}
		c.ImagePullCredentialsVerificationPolicy, c.PreloadedImagesVerificationAllowlist = k.Policy, k.Allowlist
		from = inKubelet(c.KubeletConfig)
	}
	if m := policy.Mode(c.ImagePullCredentialsVerificationPolicy); m != "" && !slices.Contains(policy.Modes(), m) {
		errs = append(errs, fmt.Errorf("%s%w", from, field.NotSupported(field.NewPath(mode), m, policy.Modes())))
		// to check the allowlist too
		c.ImagePullCredentialsVerificationPolicy = string(policy.ModeNeverVerifyAllowlistedImages)
	}
	p, err := policy.New(c.ImagePullCredentialsVerificationPolicy, c.PreloadedImagesVerificationAllowlist)
	if err != nil {
		for line := range strings.Lines(err.Error()) {
			errs = append(errs, errors.New(from+strings.TrimSuffix(line, "\n")))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	c.policy = p
	c.ImagePullCredentialsVerificationPolicy = string(p.Mode())
	return nil
}
