package criproxytest

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/distribution/reference"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A Profile is the runtime that a fake [Runtime] behaves as.
type Profile uint8

const (
	// Containerd is the zero value.
	Containerd Profile = iota
	// CRIO behaves as CRI-O 1.36 does. It refuses calls with another content type than application/grpc. Its image IDs are
	// bare hexadecimal digits, and beginnings of 3 and more resolve. A list of containers has no user_specified_image, and
	// a repo digest as image_ref. To remove an image by a name takes the name away; to remove one in use fails.
	CRIO
	// CRIODigest is CRIO with a repo digest as the image_ref of a pull's answer, as CRI-O up to 1.35.1 has it.
	CRIODigest
)

// Profiles returns all of them.
func Profiles() []Profile { return []Profile{Containerd, CRIO, CRIODigest} }

// String returns the name of the runtime.
func (p Profile) String() string {
	return map[Profile]string{Containerd: "containerd", CRIO: "CRI-O", CRIODigest: "CRI-O with digests"}[p]
}

// ID returns an image ID as the runtime writes it.
func (p Profile) ID(id string) string {
	if p == Containerd {
		return id
	}
	return strings.TrimPrefix(id, "sha256:")
}

// errNotParsed is CRI-O's word for a name that is none.
var errNotParsed = errors.New("invalid reference format")

// resolveCRIOLocked finds an image by an ID or the beginning of one, of 3 digits and more; else by a name.
func (r *Runtime) resolveCRIOLocked(name string) (*Image, error) {
	if len(name) >= 3 && strings.Trim(name, "0123456789abcdef") == "" {
		var found []*Image
		for i := range r.images {
			if strings.HasPrefix(CRIO.ID(r.images[i].ID), name) {
				found = append(found, &r.images[i])
			}
		}
		if len(found) == 1 {
			return found[0], nil
		}
		if isID("sha256:" + name) {
			return nil, nil //nolint:nilnil // absent
		}
	}
	if _, err := reference.ParseDockerRef(name); err != nil {
		return nil, errNotParsed
	}
	for i := range r.images {
		if r.images[i].named(name) {
			return &r.images[i], nil
		}
	}
	return nil, nil //nolint:nilnil // absent
}

// repoDigest is what CRI-O answers for a pull of a name: the repository with the manifest's digest.
func repoDigest(name string, img Image) string {
	repository := name
	if named, err := reference.ParseDockerRef(name); err == nil {
		repository = named.Name()
	}
	for _, n := range img.Names {
		if strings.HasPrefix(n, repository+"@") {
			return n
		}
	}
	return fmt.Sprintf("%s@sha256:%x", repository, sha256.Sum256([]byte(img.ID)))
}

func (r *Runtime) pulledCRIOLocked(name string, img Image) string {
	digest := repoDigest(name, img)
	r.addLocked(name, img)
	r.addLocked(digest, img)
	if r.profile == CRIODigest {
		return digest
	}
	return CRIO.ID(img.ID)
}

// removeCRIOLocked removes a name, and with the last name the image; or an image by its ID, unless a container uses it.
func (r *Runtime) removeCRIOLocked(name string, i *Image) error {
	byName := i.named(name)
	if byName {
		i.Names = slices.DeleteFunc(i.Names, func(n string) bool { return normal(n) == normal(name) })
		if slices.ContainsFunc(i.Names, func(n string) bool { return !isDigest(n) }) {
			return nil
		}
	}
	for id, c := range r.containers {
		if c.GetImageId() != i.ID {
			continue
		}
		if byName {
			return nil
		}
		return status.Errorf(codes.Unknown, "delete image: image used by %s: image is in use by a container", id)
	}
	r.images = slices.DeleteFunc(r.images, sameAs(i.ID))
	return nil
}

func (r *Runtime) message(i *Image) *runtimeapi.Image {
	m := &runtimeapi.Image{Id: r.profile.ID(i.ID), Size: 1}
	for _, n := range i.Names {
		if isDigest(n) {
			m.RepoDigests = append(m.RepoDigests, n)
		} else {
			m.RepoTags = append(m.RepoTags, n)
		}
	}
	if r.profile != Containerd {
		m.RepoDigests = everyDigest(i.Names)
	}
	return m
}

func isDigest(name string) bool { return strings.Contains(name, "@") }

// everyDigest returns each repository of the names with each digest, as CRI-O lists them; not all of them need exist.
func everyDigest(names []string) []string {
	var repositories, digests []string
	for _, n := range names {
		named, err := reference.ParseDockerRef(n)
		if err != nil {
			continue
		}
		repositories = append(repositories, named.Name())
		if digested, ok := named.(reference.Digested); ok {
			digests = append(digests, digested.Digest().String())
		}
	}
	slices.Sort(repositories)
	var all []string
	for _, r := range slices.Compact(repositories) {
		for _, d := range digests {
			all = append(all, r+"@"+d)
		}
	}
	return all
}

func (r *Runtime) asListedLocked(c *runtimeapi.Container) *runtimeapi.Container {
	if r.profile == Containerd {
		return c
	}
	c = proto.CloneOf(c)
	c.Image = &runtimeapi.ImageSpec{Image: c.GetImage().GetImage()}
	img := Image{ID: c.GetImageId()}
	if at := slices.IndexFunc(r.images, sameAs(img.ID)); at >= 0 {
		img = r.images[at]
	}
	c.ImageId = CRIO.ID(img.ID)
	c.ImageRef = c.ImageId
	if at := slices.IndexFunc(img.Names, isDigest); at >= 0 {
		c.ImageRef = img.Names[at]
	}
	return c
}

func (p Profile) refusal(name string, err error) error {
	source := fmt.Sprintf("initializing source docker://%s: ", name)
	switch {
	case p == Containerd:
		return err
	case err.Error() == Denied(name).Error():
		repository, tag, _ := strings.Cut(name, ":")
		reason := fmt.Sprintf("reading manifest %s in %s: authentication required", tag, repository)
		return status.Errorf(codes.Unknown, "unable to pull image or OCI artifact: pull image err: %s%s; artifact err: "+
			"image reference: get manifest from ref: create image source: %s", source, reason, reason)
	case err.Error() == Unreached(name).Error():
		return status.Errorf(codes.Unknown, "RegistryUnavailable: unable to pull image: %spinging container registry "+
			"repo.test: Get \"https://repo.test/v2/\": dial tcp 10.0.0.1:443: connect: connection refused", source)
	default:
		return err
	}
}

// serverOptions make a server refuse other content types than application/grpc; CRI-O's closes such a connection.
func (p Profile) serverOptions() []grpc.ServerOption {
	if p == Containerd {
		return nil
	}
	return []grpc.ServerOption{grpc.InTapHandle(func(ctx context.Context, i *tap.Info) (context.Context, error) {
		if slices.Equal(i.Header.Get("content-type"), []string{"application/grpc"}) {
			return ctx, nil
		}
		return nil, status.Error(codes.Unavailable, "content type refused")
	})}
}

// errAmbiguous is what containerd finds for the beginning of several image IDs.
var errAmbiguous = errors.New("ambiguous digest string")

// normal is a name as containerd stores it, the name itself if it is none.
func normal(name string) string {
	if named, err := reference.ParseDockerRef(name); err == nil {
		return named.String()
	}
	return name
}

func isID(name string) bool {
	hex, ok := strings.CutPrefix(name, "sha256:")
	return ok && len(hex) == 64 && strings.Trim(hex, "0123456789abcdef") == ""
}

func (i *Image) named(name string) bool {
	name = normal(name)
	return slices.ContainsFunc(i.Names, func(n string) bool { return normal(n) == name })
}

// resolveLocked finds an image as containerd does: by a whole ID; else by its name, normalised; else by the beginning
// of an ID, with or without the algorithm.
func (r *Runtime) resolveLocked(name string) (*Image, error) {
	if r.profile != Containerd {
		return r.resolveCRIOLocked(name)
	}
	whole := isID(name)
	for i := range r.images {
		if r.images[i].ID == name || !whole && r.images[i].named(name) {
			return &r.images[i], nil
		}
	}
	if whole {
		return nil, nil //nolint:nilnil // absent
	}
	var found *Image
	for i := range r.images {
		algorithm, hex, _ := strings.Cut(r.images[i].ID, ":")
		begins := strings.HasPrefix(hex, name) || len(name) > len(algorithm)+1 && strings.HasPrefix(r.images[i].ID, name)
		if !begins {
			continue
		}
		if found != nil {
			return nil, errAmbiguous
		}
		found = &r.images[i]
	}
	return found, nil
}

// unresolved is the answer to a call about an ambiguous image.
func (r *Runtime) unresolved(name string, err error) error {
	if r.profile != Containerd {
		return status.Errorf(codes.Unknown, "cannot parse input: %q: %v", name, err)
	}
	return status.Errorf(codes.Unknown, "can not resolve %q locally: %v", name, err)
}

// Denied is what containerd answers for a pull that the registry refuses.
func Denied(name string) error {
	return status.Errorf(codes.Unknown, "failed to pull and unpack image %q: failed to resolve reference %q: pulling "+
		"from host repo.test failed with status code [manifests 1]: 401 Unauthorized", name, name)
}

// Unreached is what containerd answers for a pull when the registry cannot be reached.
func Unreached(name string) error {
	return status.Errorf(codes.Unknown, "failed to pull and unpack image %q: failed to resolve reference %q: failed to "+
		"do request: Head \"https://repo.test/v2/\": dial tcp 10.0.0.1:443: connect: connection refused", name, name)
}
