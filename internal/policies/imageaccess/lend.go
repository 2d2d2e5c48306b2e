package imageaccess

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/pkg/credential"
	"github.com/pullgate/pullgate/pkg/imageref"
)

// hubRegistry is where the images of docker.io are.
const hubRegistry = "registry-1.docker.io"

// Lend returns the credential for a pull of a pod, and the file that Rights names: none without one, and for a name
// that is written without its registry, because a runtime may look elsewhere. The login has the user name and the
// password, and in ServerAddress the only registry that the runtime gives them to; nothing of it is kept here. The
// error says why a file lends nothing, without any part of its content.
func (s *Set) Lend(name imageref.Ref, namespace, account string) (file string, l credential.Login, err error) {
	lends := s.Rights(name.Repository(), namespace, account).Enforced.Lend
	if lends == "" || name.IsShort() || name.MayBeImageID() {
		return "", l, nil
	}
	for _, f := range s.files {
		if f.Name != lends {
			continue
		}
		if l, err = f.lend(name.Repository()); err == nil {
			file = lends
		}
	}
	return file, l, err
}

func (f *File) lend(repository string) (credential.Login, error) {
	content, err := f.read(f.Credential)
	if err != nil {
		return credential.Login{}, err
	}
	login, ok, err := credential.DockerConfigLogin(content, repository)
	if err == nil && !ok {
		err = errNoEntry
	}
	if err != nil {
		return credential.Login{}, fmt.Errorf("%s: %w", f.Credential, err)
	}
	registry, _, _ := strings.Cut(repository, "/")
	if canonical(registry) == dockerHub() {
		registry = hubRegistry
	}
	login.ServerAddress = "https://" + registry
	return login, nil
}

// read returns the content of the file with the credential, if nobody else than its owner and root can read it.
func (f *File) read(path string) ([]byte, error) {
	content, err := disk.ReadIf(path, credential.MaxPayload, private)
	if err != nil {
		if p, ok := errors.AsType[*fs.PathError](err); ok {
			err = p.Err
		}
		return nil, fmt.Errorf("%s: %w", f.Credential, err)
	}
	return content, nil
}

func private(info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !ok:
		return errors.New("the owner is not known")
	case stat.Uid != 0 && int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("owned by user %d; must be owned by root", stat.Uid)
	case info.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("mode %#o: others than the owner can use it; run chmod 0600", info.Mode().Perm())
	}
	return nil
}

var errNoEntry = errors.New("has no entry with a user name and a password for the registry")

// Unusable returns for each file that lends nothing at the moment why that is: its credential cannot be read, or has no
// entry for one of its images. at returns where a path is; nil is for the paths themselves.
func (s *Set) Unusable(at func(path string) string) (all []error) {
	for _, f := range s.Files() {
		if f.Grant != Lend {
			continue
		}
		path := f.Credential
		if at != nil {
			path = at(path)
		}
		content, err := f.read(path)
		for i := 0; i < len(f.patterns) && err == nil; i++ {
			var ok bool
			// The entry for the beginning of a pattern is the one for an image, unless there is a more specific one.
			if _, ok, err = credential.DockerConfigLogin(content, f.patterns[i].sample()); err == nil && !ok {
				err = errNoEntry
			}
			if err != nil {
				err = fmt.Errorf("%s: %w: %s", f.Credential, err, f.Images[i])
			}
		}
		if err != nil {
			all = append(all, fmt.Errorf("%s %s lends nothing: %w", Kind, f.Name, err))
		}
	}
	return all
}
