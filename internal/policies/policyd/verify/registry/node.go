package registry

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pullgate/pullgate/internal/mechanics/disk"
	"github.com/pullgate/pullgate/internal/policies/admission"
	"github.com/pullgate/pullgate/pkg/credential"
)

// NodeLogin returns the credential for a repository, docker.io/library/busybox, in files that are config.json or, if
// that is their name, .dockercfg; the zero value if there is none. Entries match as for kubelets: of several the most
// specific one, and of the same ones that of the first file. A file that cannot be read is an error, unless it is
// absent. Credential helpers are not run.
func NodeLogin(files []string, repository string) (admission.Login, error) {
	var ring credential.SealedKeyring
	var entries []account
	for _, path := range files {
		found, err := readAccounts(path)
		if err != nil {
			return admission.Login{}, err
		}
		for _, key := range slices.Sorted(maps.Keys(found)) {
			// The look-up compares patterns; which credential an entry has is known by its index.
			ring = append(ring, credential.NewSealed([]string{key}, "entry"))
			entries = append(entries, found[key])
		}
	}
	for _, offer := range ring.Lookup(repository) {
		c, err := entries[offer.From].credential()
		if err != nil {
			return admission.Login{}, fmt.Errorf("%s: an entry for %s: %w", strings.Join(files, ", "), repository, err)
		}
		if !c.Anonymous() {
			return c, nil
		}
	}
	return admission.Login{}, nil
}

type account struct {
	admission.Login

	Auth string
}

func readAccounts(path string) (map[string]account, error) {
	data, err := disk.Read(path, credential.MaxPayload)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var file struct{ Auths map[string]account }
	if filepath.Base(path) == ".dockercfg" {
		err = json.Unmarshal(data, &file.Auths)
	} else {
		err = json.Unmarshal(data, &file)
	}
	if err != nil || len(file.Auths) > credential.MaxEntries {
		return nil, fmt.Errorf("%s: not a docker configuration, or too large", path)
	}
	return file.Auths, nil
}

func (a account) credential() (admission.Login, error) {
	if a.Auth != "" {
		decoded, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(a.Auth), "="))
		user, password, ok := strings.Cut(string(decoded), ":")
		if err != nil || !ok {
			return admission.Login{}, errors.New("auth is not base64 of user:password")
		}
		a.Username, a.Password = user, strings.TrimRight(password, "\x00")
	}
	return a.Login, nil
}
