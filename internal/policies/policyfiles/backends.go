package policyfiles

import (
	"fmt"
	"time"

	"k8s.io/klog/v2"
)

// BackendKind is the name of the kind of policy files.
const BackendKind = "ImagePolicy"

// backendKey is the field by which a file is recognized.
const backendKey = "imagePolicy"

// A Backend says how images are reviewed, with the defaults filled in.
type Backend struct {
	// Name is the name of the file without its folder and suffix. It is unique in a Backends.
	Name string
	// File is the path of the file.
	File string
	// Kubeconfig is the absolute path of the file with the address and the credentials.
	Kubeconfig string
	// AllowTTL and DenyTTL are how long answers are cached; 0 means that they are not.
	AllowTTL, DenyTTL time.Duration
	// RetryBackoff is the time between the first two attempts.
	RetryBackoff time.Duration
	// DefaultAllow reports whether images are admitted if the backend does not answer. It is true if the file leaves it
	// out.
	DefaultAllow bool
	// DefaultAllowAbsent reports whether the file leaves defaultAllow out.
	DefaultAllowAbsent bool
	// Namespaces are those whose pods are reviewed; nil means all. The caller must not modify it.
	Namespaces []string
	// IncludeImageVolumes reports whether images that are mounted as volumes are reviewed.
	IncludeImageVolumes bool
}

// A Backends has the backends of all files, all of which must allow an image. It is immutable. A nil Backends has none.
type Backends struct{ backends []Backend }

// Len returns the number of backends.
func (s *Backends) Len() int {
	if s == nil {
		return 0
	}
	return len(s.backends)
}

// All returns all backends, by name. The caller must not modify them.
func (s *Backends) All() []Backend {
	if s == nil {
		return nil
	}
	return s.backends
}

// Warnings returns a sentence about each file that is valid and probably does not say what its author means.
func (s *Backends) Warnings() []string {
	var all []string
	for _, b := range s.All() {
		if b.DefaultAllowAbsent {
			all = append(all, fmt.Sprintf("%s: %s.defaultAllow: absent: pullgate admits images if the backend does not answer, kube-apiserver denies them; set it to true or false", b.File, backendKey))
		}
	}
	return all
}

// BackendsOf returns the backends of a folder; nil if it has none.
func BackendsOf(s *Set) *Backends { return Of[*Backends](s, BackendKind) }

// Log logs the backends that are in use from now on.
func (s *Backends) Log(log klog.Logger) {
	for _, b := range s.All() {
		log.Info("Image review backend in use", "backend", b.Name, "file", b.File, "defaultAllow", b.DefaultAllow, "defaultAllowAbsent", b.DefaultAllowAbsent,
			"allowTTL", b.AllowTTL, "denyTTL", b.DenyTTL, "namespaces", b.Namespaces, "includeImageVolumes", b.IncludeImageVolumes)
	}
	for _, w := range s.Warnings() {
		log.Info("Policy file is valid, but may not do what you intend", "warning", w)
	}
}
