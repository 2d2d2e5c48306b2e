package gate_test

import (
	"maps"
	"slices"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/pullgate/pullgate/internal/testkit/criproxytest"
)

// resolve finds an image as containerd does: by its whole ID, its name, or a prefix of its ID.
func (r *modelRuntime) resolve(name string) (content, bool) {
	for c := content(1); c <= allContents; c++ {
		if names, ok := r.images[c]; ok && (names[name] || strings.HasPrefix(c.id(), name)) {
			return c, true
		}
	}
	return unknown, false
}

func (r *modelRuntime) message(c content) *runtimeapi.Image {
	m := &runtimeapi.Image{Id: c.id(), Size: 1}
	for _, n := range slices.Sorted(maps.Keys(r.images[c])) {
		if strings.Contains(n, "@") {
			m.RepoDigests = append(m.RepoDigests, n)
		} else {
			m.RepoTags = append(m.RepoTags, n)
		}
	}
	return m
}

func (r *modelRuntime) imageStatus(q *runtimeapi.ImageStatusRequest) *runtimeapi.ImageStatusResponse {
	c, ok := r.resolve(q.GetImage().GetImage())
	if !ok {
		return &runtimeapi.ImageStatusResponse{}
	}
	return &runtimeapi.ImageStatusResponse{Image: r.message(c)}
}

func (r *modelRuntime) listImages() *runtimeapi.ListImagesResponse {
	resp := &runtimeapi.ListImagesResponse{}
	for c := content(1); c <= allContents; c++ {
		if _, ok := r.images[c]; ok {
			resp.Images = append(resp.Images, r.message(c))
		}
	}
	return resp
}

// name gives an image a name, and removes the name from every other image. An image that loses its last name stays.
func (r *modelRuntime) name(c content, name string) {
	for _, names := range r.images {
		delete(names, name)
	}
	if r.images[c] == nil {
		r.images[c] = map[string]bool{}
	}
	r.images[c][name] = true
	if r.kind.digests {
		r.images[c][c.manifest(repositoryOf(name))] = true
	}
}

// pulled gives an image the name of its pull, and its digest in that repository.
func (r *modelRuntime) pulled(c content, name string) {
	r.name(c, name)
	r.images[c][c.manifest(repositoryOf(name))] = true
}

// unname removes a name; the image is removed with its last name.
func (r *modelRuntime) unname(name string) {
	for c, names := range r.images {
		if !names[name] {
			continue
		}
		delete(names, name)
		if !slices.ContainsFunc(slices.Collect(maps.Keys(names)),
			func(n string) bool { return repositoryOf(n) == repositoryOf(name) && !strings.Contains(n, "@") }) {
			delete(names, c.manifest(repositoryOf(name)))
		}
		if len(names) == 0 {
			r.remove(c)
		}
	}
}

func (r *modelRuntime) remove(c content) {
	if _, ok := r.images[c]; ok {
		delete(r.images, c)
		r.truth.departed(c)
	}
}

// lets reports whether the registry allows a pull from a repository with a password.
func (r *modelRuntime) lets(repository, password string) bool {
	switch repository {
	case repositoryOf(openApp):
		return true
	case repositoryOf(baseImage):
		return password == "" || r.passwords[password]
	case repositoryOf(aliceApp1):
		return r.passwords[password] && password[0] == 'a'
	case repositoryOf(bobApp), repositoryOf(checkpointNames[0]):
		return r.passwords[password] && password[0] == 'b'
	case repositoryOf(sharedApp):
		return r.passwords[password] && password[0] != 'o'
	case repositoryOf(systemImage):
		return password == "op"
	default:
		return false
	}
}

// fetch is a pull from the registry, by a client's request or by the runtime itself.
func (r *modelRuntime) fetch(name, password string) (content, error) {
	c, ok := r.serves[name]
	switch {
	case r.down:
		return unknown, criproxytest.Unreached(name)
	case !ok, !r.lets(repositoryOf(name), password):
		return unknown, criproxytest.Denied(name)
	}
	return c, nil
}

func (r *modelRuntime) pullImage(name, password string, x *interruption) (*runtimeapi.PullImageResponse, error) {
	c, err := r.fetch(name, password)
	if err != nil {
		return nil, err
	}
	r.pulled(c, name)
	if x != nil && x.pull != nil {
		x.pull.served = true
		r.truth.proved(pair{c, repositoryOf(name)}, x.pull)
	}
	ref := c.id()
	if r.kind.digests {
		ref = c.manifest(repositoryOf(name))
	}
	return &runtimeapi.PullImageResponse{ImageRef: ref}, nil
}
