package config

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/pkg/policy"
)

// checks collects the invalid fields of a configuration. Its methods check a value by the path of its field.
type checks field.ErrorList

// checked returns the errors of a check.
func checked(check func(*checks)) (errs []error) {
	var found checks
	check(&found)
	for _, err := range found {
		errs = append(errs, err)
	}
	return errs
}

func (c *checks) invalid(path, value, detail string) {
	*c = append(*c, field.Invalid(field.NewPath(path), value, detail))
}

// all returns an invalid field for each detail.
func (c *checks) all(path, value string, details []string) {
	for _, detail := range details {
		c.invalid(path, value, detail)
	}
}

func (c *checks) oneOf(path, value string, supported ...string) {
	if !slices.Contains(supported, value) {
		*c = append(*c, field.NotSupported(field.NewPath(path), value, supported))
	}
}

func (c *checks) header(apiVersion, kind, wantVersion, wantKind string) {
	c.oneOf("apiVersion", apiVersion, wantVersion)
	c.oneOf("kind", kind, wantKind)
}

func (c *checks) endpoint(path, value string) {
	switch socket, ok := strings.CutPrefix(value, "unix://"); {
	case !ok || !isPath(socket):
		c.invalid(path, value, "must be unix:// and an absolute path, as in unix:///run/containerd/containerd.sock")
	case len(socket) > 107: // the size of sun_path, without the zero at its end
		c.invalid(path, value, "the path must have at most 107 bytes")
	}
}

func (c *checks) optionalEndpoint(path, value string) {
	if value != "" {
		c.endpoint(path, value)
	}
}

func isPath(s string) bool { return filepath.IsAbs(s) && filepath.Clean(s) == s && s != "/" }

// path wants an absolute path, or "" for what without describes; with "" as without the path is required.
func (c *checks) path(path, value, example, without string) {
	detail := "must be an absolute path, as in " + example
	if without != "" {
		detail += `, or "" for ` + without
	}
	if !isPath(value) && (value != "" || without == "") {
		c.invalid(path, value, detail)
	}
}

func (c *checks) dockerConfigFiles(paths []string) {
	for i, path := range paths {
		c.path(fmt.Sprintf("nodeCredentials.dockerConfigFiles[%d]", i), path, "/var/lib/kubelet/config.json", "")
	}
}

func (c *checks) namespaces(path string, namespaces []string) {
	for i, ns := range namespaces {
		c.all(fmt.Sprintf("%s[%d]", path, i), ns, validation.IsDNS1123Label(ns))
	}
}

func (c *checks) address(path, value, example string) {
	if value == "" {
		return
	}
	_, port, err := net.SplitHostPort(value)
	if err != nil {
		c.invalid(path, value, "must be host:port, as in "+example+`, or "" for no server`)
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		c.invalid(path, value, "the port must be a number from 0 to 65535")
	}
}

func (c Config) check(found *checks) {
	found.header(c.APIVersion, c.Kind, APIVersion, Kind)
	c.checkEndpoints(found)
	if !filepath.IsAbs(c.StateDir) {
		found.invalid("stateDir", c.StateDir, "must be an absolute path")
	}
	found.oneOf("untrackedImages", c.UntrackedImages, UntrackedPreloaded, UntrackedVerify)
	found.oneOf("runtimeCredentials", c.RuntimeCredentials, RuntimeCredentialsNone, RuntimeCredentialsPerNamespace)
	found.oneOf("kubeletSkipsAlwaysPrecheck", string(c.KubeletSkipsAlwaysPrecheck), "auto", "true", "false")
	found.namespaces("exempt.namespaces", c.Exempt.Namespaces)
	found.namespaces("nodeCredentials.namespaces", c.NodeCredentials.Namespaces)
	found.dockerConfigFiles(c.NodeCredentials.DockerConfigFiles)
	found.path("podSource.kubeconfig", c.PodSource.Kubeconfig, "/etc/kubernetes/kubelet.conf", "no pod source")
	found.oneOf("podSource.nodeReport", string(c.PodSource.NodeReport), "auto", "true", "false")
	if n := c.PodSource.NodeName; n != "" {
		found.all("podSource.nodeName", n, validation.IsDNS1123Subdomain(n))
		if c.PodSource.Kubeconfig == "" {
			found.invalid("podSource.nodeName", n, `must be "" without podSource.kubeconfig`)
		}
	}
	found.address("metrics.listen", c.Metrics.Listen, "127.0.0.1:9471")
	found.path("decisionLog.path", c.DecisionLog.Path, "/var/log/pullgate/decisions.log", "no file")
	c.checkDurations(found)
	a := c.Admission
	found.path("admission.policies", a.Policies, "/etc/pullgate/policies", "no policies")
	found.namespaces("admission.exempt.namespaces", a.Exempt.Namespaces)
	found.oneOf("admission.unjudged", a.Unjudged, UnjudgedIgnore, UnjudgedRefuse)
	found.path("admission.namespaceLabels", a.NamespaceLabels, "/etc/pullgate/namespaces.yaml", "no file")
	found.path("admission.trustedRoot", a.TrustedRoot, "/etc/pullgate/trusted_root.json", "none")
	found.path("admission.kubeletRoot", a.KubeletRoot, "/var/lib/kubelet", "")
}

func (c Config) checkEndpoints(found *checks) {
	listen, admin, policyd := c.Listen, c.Admin.Listen, c.Admission.PolicydSocket
	found.endpoint("listen", listen)
	found.endpoint("runtimeEndpoint", c.RuntimeEndpoint)
	found.optionalEndpoint("imageEndpoint", c.ImageEndpoint)
	found.optionalEndpoint("admin.listen", admin)
	found.endpoint("admission.policydSocket", policyd)
	others := []string{c.RuntimeEndpoint, c.ImageEndpoint}
	if listen != "" && slices.Contains(others, listen) {
		found.invalid("listen", listen, "must be another socket than the runtime's")
	}
	if others = append(others, listen); admin != "" && slices.Contains(others, admin) {
		found.invalid("admin.listen", admin, "must be another socket than those of listen and of the runtime")
	}
	if others = append(others, admin); policyd != "" && slices.Contains(others, policyd) {
		found.invalid("admission.policydSocket", policyd,
			"must be another socket than those of listen, of admin.listen and of the runtime")
	}
}

// minRecheck bounds how often all images in use are verified: each time is some requests to a registry.
const minRecheck = 10 * time.Minute

func (c Config) checkDurations(found *checks) {
	validity, grace, endorsement := c.CredentialValidity, c.RegistryUnavailableGrace, c.Admission.EndorsementValidity
	before := len(*found)
	paths := []string{"credentialValidity", "registryUnavailableGrace", "admission.endorsementValidity"}
	for i, v := range []Duration{validity, grace, endorsement} {
		if !v.valid() {
			found.invalid(paths[i], string(v), "must be 0s, or a duration from 1s to 87600h, as in 24h or 90m")
		}
	}
	if d := c.Admission.RecheckEndorsements; !d.valid() || d.Value() != 0 && d.Value() < minRecheck {
		found.invalid("admission.recheckEndorsements", string(d), "must be 0s, or a duration from 10m to 87600h, as in 24h")
	}
	// By a policy with conditions on the time, endorsements expire.
	expires := validity.Value() != 0 || endorsement.Value() != 0 || c.Admission.Policies != ""
	if len(*found) == before && !expires && grace.Value() != 0 {
		found.invalid("registryUnavailableGrace", string(grace),
			"must be 0s without credentialValidity, admission.endorsementValidity and admission.policies, because nothing "+
				"expires")
	}
}

func checkPolicy(c *Config, load func(path string) (kubelet, []error)) (errs []error) {
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
		k, bad := load(c.KubeletConfig)
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
		for line := range strings.SplitSeq(err.Error(), "\n") {
			errs = append(errs, errors.New(from+line))
		}
	}
	if len(errs) == 0 {
		c.policy = p
		c.ImagePullCredentialsVerificationPolicy = string(p.Mode())
	}
	return errs
}
