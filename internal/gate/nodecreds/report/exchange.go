package report

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pullgate/pullgate/pkg/credential"
)

const (
	// defaultLifetime is how long an answer without a lifetime counts as used. Plugins do not receive the default in the
	// kubelet's configuration.
	defaultLifetime = 24 * time.Hour
	// margin is added to the lifetime of an answer, for a pull that begins at its end.
	margin = time.Hour
)

// group is the prefix of every apiVersion of the plugin protocol.
const group = "credentialprovider.kubelet.k8s.io/"

var (
	errRequest = errors.New("this version of pullgated does not support the kubelet's request")
	errAnswer  = errors.New("the provider's answer is not valid for a kubelet")
)

// header contains the fields of every message of the protocol.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// is reports whether a message is of a kind in a known version; all versions have the same fields.
func (h header) is(kind string) bool {
	version, ok := strings.CutPrefix(h.APIVersion, group)
	return ok && h.Kind == kind && slices.Contains([]string{"v1", "v1beta1", "v1alpha1"}, version)
}

// nodeWide reports whether the answer to a request is for every pod of the node, and returns the version of the
// request. An answer that is bound to a service account is not for every pod. Neither is an answer to a request with an
// unknown field, which may bind the answer to something else.
func nodeWide(request []byte) (apiVersion string, wide bool, err error) {
	var r struct {
		header
		Image                     string            `json:"image"`
		ServiceAccountToken       string            `json:"serviceAccountToken"`
		ServiceAccountAnnotations map[string]string `json:"serviceAccountAnnotations"`
	}
	d := json.NewDecoder(bytes.NewReader(request))
	d.DisallowUnknownFields()
	if d.Decode(&r) != nil || !r.is("CredentialProviderRequest") {
		return "", false, errRequest
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return "", false, errRequest
	}
	return r.APIVersion, r.ServiceAccountToken == "" && len(r.ServiceAccountAnnotations) == 0, nil
}

// account is an entry of an answer.
type account struct {
	Username string `json:"username"`
	Password string `json:"password"`
}

// answered is the content of a provider's answer.
type answered struct {
	expires  time.Time          // when the kubelet no longer uses it
	accounts map[string]account // by the pattern of images that it is for
}

// parse reads an answer of the time now, to a request of a version. No error contains any of the content.
func parse(answer []byte, apiVersion string, now time.Time) (answered, error) {
	var a struct {
		header
		CacheDuration *string            `json:"cacheDuration"`
		Auth          map[string]account `json:"auth"`
	}
	// An error of encoding/json quotes the content, so it is not returned.
	if json.Unmarshal(answer, &a) != nil || !a.is("CredentialProviderResponse") || a.APIVersion != apiVersion {
		return answered{}, errAnswer
	}
	if a.CacheDuration == nil {
		return answered{now.Add(defaultLifetime), a.Auth}, nil
	}
	d, err := time.ParseDuration(*a.CacheDuration)
	if err != nil {
		return answered{}, errAnswer
	}
	return answered{now.Add(max(d, 0)).Add(margin), a.Auth}, nil
}

// report returns the IDs of the answered credentials, each once and sorted; an anonymous entry has none.
func (a answered) report(key credential.Key) Report {
	images := map[credential.ID][]string{}
	for _, pattern := range slices.Sorted(maps.Keys(a.accounts)) {
		// As in the kubelet's call to the runtime: only these two fields are set.
		id := key.ID(credential.New(credential.Login{Username: a.accounts[pattern].Username, Password: a.accounts[pattern].Password}))
		if id != "" {
			images[id] = append(images[id], pattern)
		}
	}
	r := Report{KeyFingerprint: key.Fingerprint(), Expires: a.expires.UTC()}
	for id, patterns := range images {
		r.Credentials = append(r.Credentials, Credential{ID: id, Images: patterns})
	}
	slices.SortFunc(r.Credentials, func(a, b Credential) int { return cmp.Compare(a.ID, b.ID) })
	return r
}
