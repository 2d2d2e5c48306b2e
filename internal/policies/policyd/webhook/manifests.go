package webhook

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/pullgate/pullgate/internal/config"
	"github.com/pullgate/pullgate/internal/policies/policyd/verify"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// MaxCA is how many bytes of certificates are accepted, and MaxTrustedRoot how many of a trusted root.
const (
	MaxCA          = 1 << 20
	MaxTrustedRoot = maxConfigMap - 1<<10
)

// ManifestOptions say what the objects are for. The names of the flags of pullgate-policyd manifests are in the errors
// about them.
type ManifestOptions struct {
	// URL is where kube-apiserver reaches a pullgate-policyd outside of the cluster; "" means that it runs in the
	// cluster.
	URL string

	// Namespace, Image and Policies are for a pullgate-policyd in the cluster. Policies are nil if they are not known:
	// the ConfigMap is not printed then, and namespaces are watched.
	Namespace string
	Image     string
	Policies  *ManifestPolicies

	// TrustedRoot is the content of the trusted_root.json of the nodes, for a pullgate-policyd in the cluster; nil if
	// they have none.
	TrustedRoot []byte

	// CA are the certificates, in PEM, of the authority that signs the certificate of pullgate-policyd. They can be
	// absent with a URL: kube-apiserver uses those of its system.
	CA []byte
	// Exclude are namespaces whose objects are not judged. That of pullgate-policyd itself is always among them.
	Exclude []string
	// FailurePolicy is Ignore or Fail.
	FailurePolicy string
	// Timeout is how long kube-apiserver waits for an answer.
	Timeout time.Duration
	// Templates are the custom resources with pod templates.
	Templates []config.PodTemplate
}

// WriteManifests writes the documents in the order in which they have to be created. The error joins what is wrong with
// the options.
func WriteManifests(w io.Writer, o ManifestOptions) error {
	if err := o.validate(); err != nil {
		return err
	}
	text, err := o.render()
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}

func (o ManifestOptions) validate() error {
	var errs field.ErrorList
	if o.URL != "" {
		errs = append(errs, validateURL(o.URL)...)
	} else {
		for _, detail := range validation.IsDNS1123Label(o.Namespace) {
			errs = append(errs, invalid("--namespace", o.Namespace, detail))
		}
		if _, err := imageref.Parse(o.Image); err != nil {
			errs = append(errs, invalid("--image", o.Image, "must be the name of an image whose entry point is pullgate-policyd, as in registry.example.com/pullgate-policyd:v1.0.0"))
		}
		if n := o.Policies.size(); n > maxConfigMap {
			errs = append(errs, invalid("--policies", fmt.Sprintf("%d bytes", n), "a ConfigMap holds at most 1 MiB; leave the flag out, and mount another volume in /etc/pullgate/policies"))
		}
	}
	errs = append(errs, o.validateCA()...)
	switch n := len(o.TrustedRoot); {
	case n > MaxTrustedRoot:
		errs = append(errs, invalid("--trusted-root", fmt.Sprintf("%d bytes", n), "a ConfigMap holds at most 1 MiB"))
	case o.TrustedRoot != nil:
		if _, err := verify.ExpiredParts(o.TrustedRoot, time.Now()); err != nil {
			errs = append(errs, invalid("--trusted-root", fmt.Sprintf("%d bytes", n), err.Error()))
		}
	}
	for _, n := range o.Exclude {
		for _, detail := range validation.IsDNS1123Label(n) {
			errs = append(errs, invalid("--exclude-namespaces", n, detail))
		}
	}
	if allowed := []string{string(admissionregistrationv1.Ignore), string(admissionregistrationv1.Fail)}; !slices.Contains(allowed, o.FailurePolicy) {
		errs = append(errs, field.NotSupported(field.NewPath("--failure-policy"), o.FailurePolicy, allowed))
	}
	if o.Timeout < time.Second || o.Timeout > 30*time.Second || o.Timeout%time.Second != 0 {
		errs = append(errs, invalid("--timeout", o.Timeout.String(), "must be whole seconds from 1s to 30s"))
	}
	errs = append(errs, config.CheckPodTemplates(o.Templates)...)
	all := make([]error, len(errs))
	for i, err := range errs {
		all[i] = err
	}
	return errors.Join(all...)
}

func invalid(flag, value, detail string) *field.Error {
	return field.Invalid(field.NewPath(flag), value, detail)
}

func validateURL(text string) field.ErrorList {
	const want = "must be an https URL without user, query and fragment, as in https://policyd.example.com:9443" + ValidatePath
	u, err := url.Parse(text)
	switch {
	case err != nil || u.User != nil: // the value can have a password
		return field.ErrorList{field.Forbidden(field.NewPath("--url"), want)}
	case u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
	case u.Path == "" || u.Path == "/" || u.Path == ValidatePath:
		return nil
	}
	return field.ErrorList{invalid("--url", text, want)}
}

// validateCA returns what is wrong with the certificates. Their content is never in an error.
func (o ManifestOptions) validateCA() field.ErrorList {
	const path = "--ca-file"
	if len(o.CA) > MaxCA {
		return field.ErrorList{invalid(path, fmt.Sprintf("more than %d bytes", MaxCA), "give a file with the certificates of the authority alone")}
	}
	if o.CA == nil {
		if o.URL != "" {
			return nil
		}
		return field.ErrorList{field.Required(field.NewPath(path), "kube-apiserver trusts no certificate of a Service without it; give the file with the certificate of the authority that signs the one of pullgate-policyd")}
	}
	certificates := 0
	for rest := o.CA; ; certificates++ {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return field.ErrorList{field.Forbidden(field.NewPath(path), fmt.Sprintf("a block %s; give a file with the certificates of the authority alone", block.Type))}
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return field.ErrorList{field.Forbidden(field.NewPath(path), fmt.Sprintf("certificate %d: %v; give the file that the authority issued", certificates+1, err))}
		}
	}
	if certificates == 0 {
		return field.ErrorList{invalid(path, fmt.Sprintf("%d bytes", len(o.CA)), "no certificate in PEM; one in DER is converted with openssl x509 -inform der")}
	}
	return nil
}

// excluded returns the namespaces whose objects are not judged.
func (o ManifestOptions) excluded() []string {
	names := slices.Clone(o.Exclude)
	if o.URL == "" {
		names = append(names, o.Namespace)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// endpoint returns the whole URL.
func (o ManifestOptions) endpoint() string {
	return strings.TrimSuffix(strings.TrimSuffix(o.URL, ValidatePath), "/") + ValidatePath
}
