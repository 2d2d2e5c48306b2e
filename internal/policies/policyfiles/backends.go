package policyfiles

import (
	"cmp"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/klog/v2"

	"github.com/pullgate/pullgate/internal/mechanics/strictyaml"
)

// BackendKind is the name of the kind.
const BackendKind = "ImagePolicy"

const backendKey = "imagePolicy"

// A Backend says how images are reviewed, with the defaults filled in.
type Backend struct {
	Name                string        // of the file without its folder and suffix, unique in a Backends
	File                string        // its path
	Kubeconfig          string        // the absolute path of the file with the address and the credentials
	AllowTTL, DenyTTL   time.Duration // of cached answers; 0 means that they are not cached
	RetryBackoff        time.Duration // between the first two attempts
	DefaultAllow        bool          // Images are admitted if the backend does not answer. It is true if it is absent.
	DefaultAllowAbsent  bool          // The file leaves defaultAllow out.
	Namespaces          []string      // whose pods are reviewed; nil means all
	IncludeImageVolumes bool          // Images that are mounted as volumes are reviewed.
}

// Backends are the backends of all files, by name, all of which must allow an image. The caller must not modify them.
type Backends []Backend

// Warnings returns a sentence about each file that is valid and probably does not say what its author means.
func (s Backends) Warnings() (all []string) {
	for _, b := range s {
		if b.DefaultAllowAbsent {
			all = append(all, fmt.Sprintf("%s: %s.defaultAllow: absent: pullgate admits images if the backend does not "+
				"answer, kube-apiserver denies them; set it to true or false", b.File, backendKey))
		}
	}
	return all
}

// Log logs the backends.
func (s Backends) Log(log klog.Logger) {
	for _, b := range s {
		log.Info("Image review backend in use", "backend", b.Name, "file", b.File, "defaultAllow", b.DefaultAllow,
			"defaultAllowAbsent", b.DefaultAllowAbsent, "allowTTL", b.AllowTTL, "denyTTL", b.DenyTTL,
			"namespaces", b.Namespaces, "includeImageVolumes", b.IncludeImageVolumes)
	}
	for _, w := range s.Warnings() {
		log.Info("Policy file is valid, but may not do what you intend", "warning", w)
	}
}

// An Answer is what a backend, or its failure policy, says about an image.
type Answer struct {
	Backend, Image   string // names; the image is as the pod has it, "" if the answer is about several
	Allowed          bool   // if there is no valid answer, by the failure policy of the backend
	Reason           string // of the backend; it can be ""
	AuditAnnotations map[string]string
	Failure          string        // why there is no valid answer; "" if there is one
	Cached           bool          // It is an earlier answer.
	Took             time.Duration // how long the backend was waited for
}

// String returns a sentence for users, the same at the node and in the webhook.
func (a Answer) String() string {
	about, follows, when := "", "denied", fmt.Sprintf(" after %v", a.Took.Round(time.Millisecond))
	if a.Image != "" {
		about = fmt.Sprintf("image %q: ", a.Image)
	}
	if a.Allowed {
		follows = "allowed"
	}
	if a.Failure != "" {
		if a.Allowed {
			follows += ", because its defaultAllow is not false"
		}
		return fmt.Sprintf("%sno valid answer from the image review backend %s%s: %s; %s", about, a.Backend, when, a.Failure,
			follows)
	}
	if a.Cached {
		when = " (cached)"
	}
	if a.Reason != "" {
		when += ": " + a.Reason
	}
	return about + follows + " by the image review backend " + a.Backend + when
}

const maxTTL = 87600 * time.Hour

type backendDocument struct {
	ImagePolicy *backendPolicy `json:"imagePolicy"`
	Match       *struct {
		Namespaces *[]string `json:"namespaces"`
	} `json:"match"`
	IncludeImageVolumes *bool `json:"includeImageVolumes"`
}

type backendPolicy struct {
	KubeConfigFile string `json:"kubeConfigFile"`
	AllowTTL       int64  `json:"allowTTL"`
	DenyTTL        int64  `json:"denyTTL"`
	RetryBackoff   int64  `json:"retryBackoff"`
	DefaultAllow   *bool  `json:"defaultAllow"`
}

// LoadBackends reads files into Backends: all of them or none; see [strictyaml.Load].
func LoadBackends(list []File) (Backends, error) {
	d := &strictyaml.Decoder{RefuseNull: true, Want: map[reflect.Type]string{
		reflect.TypeFor[int64](): "a whole number, without quotes and unit",
	}}
	all, err := strictyaml.Load(list, func(f File) (Backend, string, []error) {
		b, errs := parseBackend(d, f)
		return b, b.Name, errs
	}, "the backend has the name %q, which the backend of %s has too; rename one of the files")
	slices.SortFunc(all, func(a, b Backend) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}

// parseBackend reads one file. The backend has a name also if there are errors.
func parseBackend(d *strictyaml.Decoder, f File) (Backend, []error) {
	base := filepath.Base(f.Name)
	b := Backend{Name: strings.TrimSuffix(base, filepath.Ext(base)), File: f.Name}
	var doc backendDocument
	errs, err := d.Decode(f.Data, &doc)
	if err != nil {
		return b, []error{err}
	}
	mistyped := len(errs) > 0
	p := doc.ImagePolicy
	switch {
	case p != nil:
		errs = append(errs, b.setPolicy(p, mistyped)...)
	case !mistyped: // with an error it may be present
		errs = append(errs, field.Required(field.NewPath(backendKey), "must be the configuration of a backend"))
	}
	if m := doc.Match; m != nil && m.Namespaces != nil {
		errs = append(errs, b.setNamespaces(*m.Namespaces)...)
	}
	b.IncludeImageVolumes = doc.IncludeImageVolumes == nil || *doc.IncludeImageVolumes
	return b, errs
}

// setPolicy checks the fields under the key. mistyped says that some are zero because they have an error already.
func (b *Backend) setPolicy(p *backendPolicy, mistyped bool) (errs []error) {
	path := field.NewPath(backendKey)
	const want = "must be an absolute path, as in /etc/pullgate/scanner.kubeconfig"
	switch c := p.KubeConfigFile; {
	case c == "" && !mistyped:
		errs = append(errs, field.Required(path.Child("kubeConfigFile"), want))
	case c != "" && (!filepath.IsAbs(c) || filepath.Clean(c) != c || c == "/"):
		errs = append(errs, field.Invalid(path.Child("kubeConfigFile"), c, want))
	}
	b.Kubeconfig = p.KubeConfigFile
	duration := func(name string, n int64, unit, byZero, most time.Duration, units, off string) time.Duration {
		switch limit := int64(most / unit); {
		case n == 0:
			return byZero
		case n > 0 && n <= limit:
			return time.Duration(n) * unit
		case n != -1:
			errs = append(errs, field.Invalid(path.Child(name), n,
				fmt.Sprintf("must be 1 to %d %s, 0 for the default %d, or -1 for %s", limit, units, byZero/unit, off)))
		}
		return 0
	}
	b.AllowTTL = duration("allowTTL", p.AllowTTL, time.Second, time.Hour, maxTTL, "seconds", "no cache")
	b.DenyTTL = duration("denyTTL", p.DenyTTL, time.Second, 30*time.Second, maxTTL, "seconds", "no cache")
	b.RetryBackoff = duration("retryBackoff", p.RetryBackoff, time.Millisecond, 500*time.Millisecond, 5*time.Minute,
		"milliseconds", "no wait")
	b.DefaultAllowAbsent = p.DefaultAllow == nil
	b.DefaultAllow = p.DefaultAllow == nil || *p.DefaultAllow
	return errs
}

func (b *Backend) setNamespaces(names []string) (errs []error) {
	path := field.NewPath("match", "namespaces")
	if len(names) == 0 {
		errs = append(errs, field.Invalid(path, "[]",
			"must have at least one entry; leave the field out to review images in all namespaces"))
	}
	for i, name := range names {
		for _, detail := range validation.IsDNS1123Label(name) {
			errs = append(errs, field.Invalid(path.Index(i), name, detail))
		}
	}
	b.Namespaces = names
	return errs
}
