package imageref

import (
	"fmt"
	"strings"

	"github.com/distribution/reference"
)

// idRepository is the repository in the normal form of a name like sha256:7692. Runtimes resolve such a name as an
// image ID, or as a prefix of one.
const idRepository = "docker.io/library/sha256"

// A Name is a normalised image name. It is comparable. The zero value is not a name.
type Name struct {
	repository string
	suffix     string // ":tag" or "@digest"
}

// maxLength bounds what is parsed: a name of a mebibyte, which a user can write, takes a third of a second. A host has
// at most 253 bytes, and path, tag and digest together have fewer than 600.
const maxLength = 4096

// Parse normalises a name as containerd does: docker.io/library is added where no registry is
// given, :latest where there is neither tag nor digest, and of a name with both the digest counts.
func Parse(s string) (Name, error) {
	named, err := parse(s, reference.ParseDockerRef)
	if err != nil {
		return Name{}, err
	}
	n := Name{repository: named.Name()}
	switch named := named.(type) {
	case reference.Canonical:
		n.suffix = "@" + named.Digest().String()
	case reference.Tagged:
		n.suffix = ":" + named.Tag()
	default:
		return Name{}, fmt.Errorf("image name %q: neither tag nor digest in its normal form", s)
	}
	return n, nil
}

//nolint:ireturn // as the package reference returns it
func parse(s string, by func(string) (reference.Named, error)) (reference.Named, error) {
	if len(s) > maxLength {
		return nil, fmt.Errorf("image name %.80q…: longer than %d bytes", s, maxLength)
	}
	named, err := by(s)
	if err != nil {
		return nil, fmt.Errorf("image name %q: %w", s, err)
	}
	return named, nil
}

// String returns the normal form, "repository:tag" or "repository@digest"; "" for the zero value.
func (n Name) String() string { return n.repository + n.suffix }

// Repository returns the name without tag and digest, "docker.io/library/busybox".
func (n Name) Repository() string { return n.repository }

// CanonicalRegistry returns one form of the names of a registry: "repo.test" for "REPO.test:443". Host names do not
// distinguish upper and lower case, 443 is the default port, and a port can begin with zeros. The runtime still takes
// them for different registries.
func CanonicalRegistry(host string) string {
	host = strings.ToLower(host)
	if i := strings.LastIndexByte(host, ':') + 1; i > 0 && !strings.HasSuffix(host, "]") { // which ends an IPv6 address
		host = host[:i] + strings.TrimLeft(host[i:], "0")
	}
	return strings.TrimSuffix(host, ":443")
}

// DockerHub returns the names of Docker Hub's registry, docker.io first. They serve the same repositories under the
// same paths.
func DockerHub() []string {
	return []string{"docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"}
}

// IsDigest reports whether the name is a repository and a digest.
func (n Name) IsDigest() bool { return strings.HasPrefix(n.suffix, "@") }

// Digest returns the digest of a name that has one, such as "sha256:…"; "" for every other name.
func (n Name) Digest() string {
	if !n.IsDigest() {
		return ""
	}
	return n.suffix[1:]
}

// IsImageID reports whether runtimes take the name for an image ID or a prefix of one.
func (n Name) IsImageID() bool { return n.repository == idRepository }

// NameOnly reports whether a name as it is written has neither tag nor digest. A name that does not parse has none.
func NameOnly(s string) bool {
	named, err := parse(s, reference.ParseNormalizedNamed)
	return err != nil || reference.IsNameOnly(named)
}

// KubeletName returns the name that a kubelet sends for one written in a pod: ":latest" is added, to
// the string as it is, where there is neither tag nor digest.
func KubeletName(s string) (string, error) {
	named, err := parse(s, reference.ParseNormalizedNamed)
	if err != nil {
		return "", err
	}
	if reference.IsNameOnly(named) {
		return s + ":latest", nil
	}
	return s, nil
}
