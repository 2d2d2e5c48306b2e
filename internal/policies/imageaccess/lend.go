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
	logins, err := credential.ParseLogins(content)
	if err != nil {
		return credential.Login{}, fmt.Errorf("%s: %w", f.Credential, err)
	}
	login, ok := logins.For(repository)
	if !ok {
		return credential.Login{}, fmt.Errorf("%s: %w", f.Credential, errNoEntry)
	}
	registry, _, _ := strings.Cut(repository, "/")
	if registry == dockerHub() { // a runtime asks every other host by its name
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
	if err := disk.CheckOwner(info); err != nil {
		return err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("mode %#o: others than the owner can use it; run chmod 0600", info.Mode().Perm())
	}
	return nil
}

var errNoEntry = errors.New("has no entry with a user name and a password for the registry")

// A Prober finds files that lend nothing. It reads a credential only if its file has changed, and keeps nothing of it.
// It is used by one goroutine.
type Prober struct{ seen map[*File]probe }

type probe struct {
	info fs.FileInfo
	err  error
}

// same reports whether two results of a stat are of one file that has not changed.
func same(a, b fs.FileInfo) bool {
	x, xOK := a.Sys().(*syscall.Stat_t)
	y, yOK := b.Sys().(*syscall.Stat_t)
	return xOK && yOK && x.Dev == y.Dev && x.Ino == y.Ino && x.Uid == y.Uid && a.Mode() == b.Mode() &&
		a.Size() == b.Size() && a.ModTime().Equal(b.ModTime())
}

// Unusable returns for each file that lends nothing at the moment why that is: its credential cannot be read, or has no
// entry for one of its images. at returns where a path is; nil is for the paths themselves.
func (p *Prober) Unusable(s *Set, at func(path string) string) (all []error) {
	before := p.seen
	p.seen = map[*File]probe{}
	for _, f := range s.Files() {
		if f.Grant != Lend {
			continue
		}
		path := f.Credential
		if at != nil {
			path = at(path)
		}
		info, failed := os.Stat(path) // before it is read
		now, ok := before[f]
		if !ok || failed != nil || !same(now.info, info) {
			now = probe{info, f.unusable(path)}
		}
		if failed == nil {
			p.seen[f] = now
		}
		if now.err != nil {
			all = append(all, now.err)
		}
	}
	return all
}

func (f *File) unusable(path string) error {
	content, err := f.read(path)
	var logins credential.Logins
	if err == nil {
		if logins, err = credential.ParseLogins(content); err != nil {
			err = fmt.Errorf("%s: %w", f.Credential, err)
		}
	}
	for i := 0; i < len(f.patterns) && err == nil; i++ {
		// The entry for the beginning of a pattern is the one for an image, unless there is a more specific one.
		if _, ok := logins.For(f.patterns[i].sample()); !ok {
			err = fmt.Errorf("%s: %w: %s", f.Credential, errNoEntry, f.Images[i])
		}
	}
	if err != nil {
		return fmt.Errorf("%s %s lends nothing: %w", Kind, f.Name, err)
	}
	return nil
}
